package farm_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/consultest"
	"github.com/rcfarm/rcfarm/pkg/farm"
	"github.com/rcfarm/rcfarm/pkg/farm/push"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/scale"
)

// pushes are the requests that farms would have sent to nodes.
type pushes struct {
	mu  sync.Mutex
	all map[push.Target][]scale.Request
}

func (t *pushes) push(to push.Target, r scale.Request) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.all[to] = append(t.all[to], r)
}

// The farm pushes each write of an intent for a node that does not watch, with Consul's index of that write and the
// owner's term. It pushes to no other node. The terms of the next owner are later.
func TestNodesThatDoNotWatchGetPushes(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	const api = "https://127.0.0.1:7462"
	pushed := push.Target{Node: "pushed", API: api}
	stop := c.node("pushed", nil, nil)
	stop()
	c.nodes["pushed"].Record.Intents, c.nodes["pushed"].Record.API = node.IntentsPush, api
	c.node("pushed", nil, nil)
	c.node("watching", nil, nil)
	h := &pushes{all: map[push.Target][]scale.Request{}}
	run := func(id string) (stop func()) {
		client, st := c.connect()
		cfg := c.session("farm", id)
		return c.background(func(ctx context.Context) error {
			return client.RunSession(ctx, cfg, func(ctx context.Context, s *consul.Session) error {
				return farm.NewFarm(farm.Config{
					ID: id, Store: st.FarmSession(s, id), TTL: 500 * time.Millisecond,
					SweepEvery: time.Second, Push: h.push,
				}).Start(ctx)
			})
		})
	}
	// pushedAll waits for the push of the last write of each of the node's intents, and returns all terms.
	pushedAll := func() (terms []string) {
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
					return fmt.Errorf("%s at %d; the pushes have %v", p.Key, p.ModifyIndex, revisions)
				}
			}
			return nil
		})
		return terms
	}
	stop = run("f1")
	c.apply("web", testManifest("web", 0), replicas(6))
	c.converged("web", 6)
	first := pushedAll()
	if len(first) == 0 {
		t.Fatal("there was no push")
	}
	c.apply("web", testManifest("web", 0), replicas(2))
	c.converged("web", 2)
	pushedAll()
	stop()
	run("f2")
	c.apply("web", testManifest("web", 0), replicas(6))
	c.converged("web", 6)
	if terms := pushedAll(); !slices.IsSorted(terms) || terms[len(terms)-1] <= first[0] {
		t.Errorf("terms %v", terms)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.all) != 1 {
		t.Errorf("pushes: %v", h.all)
	}
}
