package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/rcfarm/rcfarm/integration/simnode"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// What P8 allows, by its text and docs/architecture.md, not by the programs' constants.
const (
	farmConnections     = 60
	preparerConnections = 6
	standingQueries     = 16 + 16 + 6 // of one farm
)

// manyRCs: one farm has 2,000 controllers, each with a pod, and Consul has its default limit of 200 connections per
// client address. From its start on, the farm has no more connections than P8 allows, by the kernel's list. The same
// applies to two preparers. No more queries wait at Consul, by Consul's count, than with one controller.
func manyRCs(e *env) {
	e.startConsul(`{"telemetry": {"disable_hostname": true}}`)
	const rcs = 2000
	if _, err := e.store.EnsureSchema(e.t.Context()); err != nil {
		e.t.Fatal(err)
	}
	e.fleet("", simnode.Fleet{Name: "many", Size: 50, Prepare: func(_ int, n *node.Node) {
		n.Labels = map[string]string{"kind": "many"}
	}})
	daemons := map[*daemon]int{e.preparer(1): preparerConnections, e.preparer(2): preparerConnections}
	for i := range rcs {
		e.writeRC(fmt.Sprintf("rc-%d", i), 1, func(r *rc.RC) { r.NodeSelector = "kind=many" })
	}
	others := e.blockingQueries()
	farm := e.farm("f1", "")
	daemons[farm] = farmConnections
	seen := e.watchFootprint(slices.Collect(maps.Keys(daemons)))
	started := time.Now()
	hello := e.hello(2, nil)
	hello.Selector = "rack"
	e.applied(hello)
	e.within(2*limit, func() error { return e.owned(map[string]int{"f1": rcs + 1}) })
	e.t.Logf("%d controllers were owned after %s", rcs, time.Since(started).Round(time.Millisecond))
	e.within(2*limit, func() error {
		recs, _, err := e.store.Statuses.List(e.t.Context(), store.Default)
		for i := range recs {
			if st := recs[i].Value; st.Available == 0 || !st.Is(rc.Converged) {
				return fmt.Errorf("status %+v", st)
			}
		}
		if err == nil && len(recs) != rcs+1 {
			err = fmt.Errorf("%d statuses", len(recs))
		}
		return err
	})
	hello.Env = map[string]string{"ROUND": "2"}
	e.applied(hello)
	waiting := e.blockingQueries() // at rest
	f := seen()
	for d, most := range daemons {
		e.t.Logf("%s had up to %d connections in %d looks", d.name, f.conns[d], f.looks)
		if f.conns[d] > most {
			e.t.Errorf("%s had %d connections, at most %d are allowed (P8)", d.name, f.conns[d], most)
		}
		if f.conns[d] < 4 {
			e.t.Errorf("%s had %d connections: something else was counted", d.name, f.conns[d])
		}
		if text := d.logText(); strings.Contains(text, "too many concurrent connections") {
			e.t.Errorf("Consul refused connections of %s", d.name)
		}
	}
	e.t.Logf("%d queries wait at Consul, %d without the farm; up to %d did", waiting, others, f.queries)
	// A few queries may just have been answered. Far fewer would mean that the test counts something else.
	const more = 5
	if waiting-others < standingQueries-more || max(waiting, f.queries)-others > standingQueries+more {
		e.t.Errorf(
			"%d queries wait at Consul, up to %d did, %d without the farm, "+
				"which should have %d, whatever the number of controllers (P8)",
			waiting, f.queries, others, standingQueries)
	}
}

type footprint struct {
	looks   int
	conns   map[*daemon]int // the largest number that each of footprintRow looks in a row reached
	queries int             // the largest number of queries of all clients that waited at once
}

// A connection's end may show later than its replacement, so one look proves nothing.
const (
	footprintEvery = 50 * time.Millisecond
	footprintRow   = 4 // looks
)

func (e *env) watchFootprint(daemons []*daemon) (end func() footprint) {
	ctx, cancel := context.WithCancel(e.t.Context())
	f := footprint{conns: map[*daemon]int{}}
	var errs [2]error
	var watching sync.WaitGroup
	watching.Go(func() {
		last := map[*daemon][]int{}
		for ; errs[0] == nil && pause(ctx, footprintEvery); f.looks++ {
			for _, d := range daemons {
				n, err := connections(d.current().cmd.Process.Pid, e.consul.Addr)
				errs[0] = errors.Join(errs[0], err)
				if last[d] = append(last[d], n); len(last[d]) >= footprintRow {
					last[d] = last[d][len(last[d])-footprintRow:]
					f.conns[d] = max(f.conns[d], slices.Min(last[d]))
				}
			}
		}
	})
	watching.Go(func() {
		for errs[1] == nil && pause(ctx, time.Second) {
			_, n, err := e.queriesBlocking(ctx)
			if ctx.Err() == nil {
				errs[1] = err
			}
			f.queries = max(f.queries, n)
		}
	})
	return func() footprint {
		e.t.Helper()
		cancel()
		watching.Wait()
		if err := errors.Join(errs[:]...); err != nil {
			e.t.Fatal(err)
		}
		return f
	}
}

func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

func connections(pid int, addr string) (int, error) {
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		return 0, err
	}
	links, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	if err != nil {
		return 0, err
	}
	inodes := map[string]bool{}
	for _, link := range links {
		if target, err := os.Readlink(link); err == nil && strings.HasPrefix(target, "socket:[") {
			inodes[strings.Trim(target, "socket:[]")] = true
		}
	}
	table, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/tcp", pid))
	if err != nil {
		return 0, err
	}
	n := 0
	for line := range strings.Lines(string(table)) {
		// proc_net_tcp(5): the third field is the remote address, 01 in the fourth means established
		f := strings.Fields(line)
		if len(f) < 10 || f[3] != "01" || !inodes[f[9]] {
			continue
		}
		_, hex, _ := strings.Cut(f[2], ":")
		if remote, err := strconv.ParseUint(hex, 16, 16); err == nil && strconv.FormatUint(remote, 10) == port {
			n++
		}
	}
	return n, nil
}

// blockingQueries returns how many queries wait, by Consul's count in an interval that begins after the call.
func (e *env) blockingQueries() int {
	e.t.Helper()
	asked, n := time.Now(), 0
	e.within(limit, func() error {
		begun, found, err := e.queriesBlocking(e.t.Context())
		if err != nil || begun.Before(asked) {
			return fmt.Errorf("the interval began at %s, before %s: %w", begun, asked, err)
		}
		n = found
		return nil
	})
	return n
}

// queriesBlocking returns the beginning of Consul's last interval of metrics, and the queries that waited at its end.
func (e *env) queriesBlocking(ctx context.Context) (begun time.Time, n int, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+e.consul.Addr+"/v1/agent/metrics", nil)
	if err != nil {
		return begun, 0, err
	}
	resp, err := (&http.Client{Timeout: limit}).Do(req)
	if err != nil {
		return begun, 0, err
	}
	defer resp.Body.Close()
	var seen struct {
		Timestamp string
		Gauges    []struct {
			Name  string
			Value float64
		}
	}
	data, err := io.ReadAll(resp.Body)
	if err == nil {
		err = json.Unmarshal(data, &seen)
	}
	if err != nil {
		return begun, 0, fmt.Errorf("metrics of Consul, status %d: %w: %.200s", resp.StatusCode, err, data)
	}
	if begun, err = time.Parse("2006-01-02 15:04:05 -0700 MST", seen.Timestamp); err != nil {
		return begun, 0, err
	}
	for _, g := range seen.Gauges {
		if g.Name == "consul.rpc.queries_blocking" {
			n = int(g.Value)
		}
	}
	return begun, n, nil
}
