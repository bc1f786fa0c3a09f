package farm_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/integration/simnode"
	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/consultest"
	"github.com/rcfarm/rcfarm/pkg/farm"
	"github.com/rcfarm/rcfarm/pkg/farm/push"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/scale"
)

// told is what farms would have sent to nodes.
type told struct {
	mu  sync.Mutex
	all map[push.Target][]scale.Request
}

func (h *told) tell(to push.Target, r scale.Request) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.all[to] = append(h.all[to], r)
}

// Each write of an intent for a node that does not watch is told, with Consul's index of that write and the owner's term; of other nodes
// nobody is told anything. The terms of the next owner are later.
func TestNodesThatDoNotWatchAreTold(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	const api = "https://127.0.0.1:7462"
	pushed := push.Target{Node: "pushed", API: api}
	stop := c.node("pushed", nil, nil)
	stop()
	c.nodes["pushed"].Record.Intents, c.nodes["pushed"].Record.API = node.IntentsPush, api
	c.node("pushed", nil, nil)
	c.node("watching", nil, nil)
	h := &told{all: map[push.Target][]scale.Request{}}
	run := func(id string) (stop func()) {
		client, st := c.connect()
		cfg := consul.SessionConfig{Kind: "farm", Name: id, TTL: ttl, Journal: &simnode.Journal{}}
		return c.background(func(ctx context.Context) error {
			return client.RunSession(ctx, cfg, func(ctx context.Context, s *consul.Session) error {
				return farm.NewFarm(farm.Config{ID: id, Store: st.FarmSession(s, id), TTL: 500 * time.Millisecond, SweepEvery: time.Second, Tell: h.tell}).Start(ctx)
			})
		})
	}
	// toldOfAll waits until the node was told of the last write of each of its intents, and returns all terms.
	toldOfAll := func() (terms []string) {
		consultest.Eventually(t, soon, func() error {
			h.mu.Lock()
			defer h.mu.Unlock()
			terms = nil
			revisions := map[uint64]bool{}
			for _, r := range h.all[pushed] {
				if err := r.Validate(); err != nil || r.Service != "web" || r.Epoch.RCID != "web" {
					t.Fatalf("%+v: %v", r, err)
				}
				revisions[uint64(r.Revision)] = true
				terms = append(terms, r.Epoch.Term)
			}
			pairs, err := c.client.List(t.Context(), c.store.Keys().Intents.Below("pushed"), consul.Consistent)
			if err != nil {
				return err
			}
			for _, p := range pairs {
				if p.Key != c.store.Keys().Intents.Below("pushed") && !revisions[p.ModifyIndex] {
					return fmt.Errorf("%s at %d; told were %v", p.Key, p.ModifyIndex, revisions)
				}
			}
			return nil
		})
		return terms
	}
	stop = run("f1")
	c.apply("web", testManifest("web", 0), replicas(6))
	c.converged("web", 6)
	first := toldOfAll()
	if len(first) == 0 {
		t.Fatal("nothing was told")
	}
	c.apply("web", testManifest("web", 0), replicas(2))
	c.converged("web", 2)
	toldOfAll()
	stop()
	run("f2")
	c.apply("web", testManifest("web", 0), replicas(6))
	c.converged("web", 6)
	if terms := toldOfAll(); !slices.IsSorted(terms) || terms[len(terms)-1] <= first[0] {
		t.Errorf("terms %v", terms)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.all) != 1 {
		t.Errorf("told: %v", h.all)
	}
}
