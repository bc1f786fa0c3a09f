package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/rcfarm/rcfarm/integration/checker"
	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/store"
)

const (
	garbageWrites = 60
	garbageEvery  = 50 * time.Millisecond
)

// nodeGarbage writes records that no reader may accept, with a node's token, while its preparer lives: its own record,
// its orphans and its reports. All other work must continue. The undo restarts the preparer, as an operator does when
// the intruder is gone, and it writes its records again.
func nodeGarbage(ctx context.Context, c *chaos, rng *rand.Rand) (string, func(context.Context) error, error) {
	n := c.nodes[rng.IntN(len(c.nodes))]
	var errs []error
	for range garbageWrites {
		key, value := n.garbage(c.keys, rng)
		_, err := n.Client.Commit(ctx, []consul.Op{consul.Set(key, []byte(value))})
		errs = append(errs, err)
		if !wait(ctx, garbageEvery) {
			break
		}
	}
	err := errors.Join(errs...)
	if slices.Contains(errs, nil) {
		err = nil // one write is enough for a fault
	}
	return n.Record.Name, func(ctx context.Context) error {
		n.halt()
		return n.resume(ctx, n.Resume)
	}, err
}

// garbage returns a key that the node's token may write, and an unacceptable value.
func (s *simulated) garbage(keys *store.Keys, rng *rand.Rand) (key, value string) {
	name := s.Record.Name
	switch rng.IntN(3) {
	case 0:
		if rng.IntN(len(badAnything)+len(badNodes)) == 0 { // an impossible WentBack; readers accept the rest
			lie := s.Record
			lie.WentBack = "zz"
			if text, err := json.Marshal(&lie); err == nil {
				return keys.Nodes.Key(name), string(text)
			}
		}
		return keys.Nodes.Key(name), hostile(rng, name, badNodes)
	case 1:
		return keys.OrphanPages.Key(name, fmt.Sprint(rng.IntN(3))), hostile(rng, name, badPages)
	default:
		ids := []string{"01J0000000000000000000000/replicas.0"} // of no controller
		for id := range s.Running() {
			ids = append(ids, id.String())
		}
		slices.Sort(ids)
		return keys.Realities.Key(name, ids[rng.IntN(len(ids))]), hostile(rng, name, badReports)
	}
}

// NODE stands for the node's name, and MARK for the mark by which the checker knows the value.
var badAnything = []string{
	`MARK`, `"MARK"`, `["MARK"]`, `{"MARK":`, `{"MARK":1}`, `{"name":7,"node":7,"rc_id":7,"revision":"MARK"}`,
	`{"name":"another","node":"another","MARK":[[[[[[[[{}]]]]]]]]}`,
	`{"name":"MARK` + strings.Repeat("x", 300<<10) + `"}`,
}

var badNodes = []string{
	`{"name":"NODE","capacity":{"slots":60},"orphan_pages":{"edition":"MARK","count":1,"orphans":-1}}`,
	`{"name":"NODE","capacity":{"slots":60},"orphan_pages":{"edition":"MARK","count":2000000000,"orphans":2000000000}}`,
	`{"name":"NODE","capacity":{"slots":-9223372036854775808,"cpu":9223372036854775807,"memory":-1},"host":"MARK"}`,
	`{"name":"NODE","capacity":{"slots":9223372036854775807},"port_range":{"min":-1,"max":9223372036854775807},"host":"MARK"}`,
}

var badPages = []string{
	`{"node":"NODE","page":-1,"edition":"MARK","orphans":null}`,
	`{"node":"NODE","page":0,"edition":"MARK","orphans":[{"rc_id":"","role":"","index":-1,"digest":"","revision":-1}]}`,
	`{"node":"NODE","page":0,"edition":"MARK","orphans":[{"rc_id":"../..","role":"MARK/","index":9223372036854775807,"cpu":-1}]}`,
}

var badReports = []string{
	`{"rc_id":"x","role":"replicas","index":-1,"node":"NODE","state":"stopped","revision":9223372036854775807,"message":"MARK"}`,
	`{"rc_id":"x","role":"replicas","index":0,"node":"another","state":"stopped","revision":9223372036854775807,"message":"MARK"}`,
	`{"rc_id":"x","role":"replicas","index":0,"node":"NODE","state":"MARK","revision":-9223372036854775808,"restarts":-1}`,
}

func hostile(rng *rand.Rand, node string, kind []string) string {
	all := slices.Concat(badAnything, kind)
	return strings.NewReplacer("NODE", node, "MARK", checker.HostileMark).Replace(all[rng.IntN(len(all))])
}
