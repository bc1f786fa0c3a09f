package farm_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/integration/simnode"
	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/consultest"
	"github.com/rcfarm/rcfarm/pkg/farm"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/obs"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// behind is a farm that hears of nodes, and of what operators say about them, when it is let.
type behind struct {
	*store.FarmSession
	hears *hearing
}

// hearing is when a farm hears what has changed since.
type hearing struct {
	gate chan struct{}
	// writing, if set, is called before the first write that places something.
	writing func()
	once    sync.Once
}

func (b behind) Commit(ctx context.Context, batch *store.Batch) error {
	if f := b.hears.writing; f != nil && len(batch.Reservations) > 0 {
		b.hears.once.Do(f)
	}
	return b.FarmSession.Commit(ctx, batch)
}

func (h *hearing) wait(ctx context.Context) {
	select {
	case <-h.gate:
	case <-ctx.Done():
	}
}

// heard passes on what is delivered first at once.
func heard[T any](ctx context.Context, h *hearing, deliver func(store.Seen[T]) error) func(store.Seen[T]) error {
	first := true
	return func(s store.Seen[T]) error {
		if !first {
			h.wait(ctx)
		}
		first = false
		return deliver(s)
	}
}

func (b behind) WatchNodes(ctx context.Context, shard int, onError func(error), deliver func(store.Seen[node.Node]) error) error {
	return b.FarmSession.WatchNodes(ctx, shard, onError, heard(ctx, b.hears, deliver))
}

func (b behind) WatchNodeOps(ctx context.Context, onError func(error), deliver func(store.Seen[node.Ops]) error) error {
	return b.FarmSession.WatchNodeOps(ctx, onError, heard(ctx, b.hears, deliver))
}

// lateFarm is a farm that knows the nodes as they are now, until it is let hear more.
func (c *cluster) lateFarm(id string, hears *hearing) (hear func()) {
	c.t.Helper()
	log, err := obs.NewLogger(testWriter{c.t}, "info", "text")
	if err != nil {
		c.t.Fatal(err)
	}
	client, st := c.connect()
	hears.gate = make(chan struct{})
	started := make(chan *farm.Farm, 1)
	c.background(func(ctx context.Context) error {
		session := consul.SessionConfig{Kind: "farm", Name: id, TTL: ttl, Journal: &simnode.Journal{}}
		return client.RunSession(ctx, session, func(ctx context.Context, s *consul.Session) error {
			f := farm.NewFarm(farm.Config{ID: id, Store: behind{st.FarmSession(s, id), hears}, Log: log, TTL: 500 * time.Millisecond, SweepEvery: time.Second})
			select {
			case started <- f:
			default: // the farm starts again after its session was lost; the test does not wait for that
			}
			return f.Start(ctx)
		})
	})
	f := <-started
	consultest.Eventually(c.t, soon, f.Ready)
	return func() { close(hears.gate) }
}

// synced waits until nodes have said what they run under the epoch of now.
func (c *cluster) synced(names ...string) {
	c.t.Helper()
	schema, err := c.store.EnsureSchema(c.t.Context())
	if err != nil {
		c.t.Fatal(err)
	}
	consultest.Eventually(c.t, soon, func() error {
		for _, name := range names {
			rec, err := c.store.Nodes.Get(c.t.Context(), store.Consistent, name)
			if err == nil && (rec.Session == "" || rec.Value.Epoch != schema.Value.Epoch) {
				err = fmt.Errorf("record %+v", rec)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// onNodes counts the controller's pods by node.
func (c *cluster) onNodes(id string) map[string]int {
	c.t.Helper()
	recs, corrupt, err := c.store.Pods.List(c.t.Context(), store.Consistent, id)
	if err != nil || len(corrupt) > 0 {
		c.t.Fatal(err, corrupt)
	}
	on := map[string]int{}
	for i := range recs {
		on[recs[i].Value.Node]++
	}
	return on
}

func static(selector string, n int) func(*rc.RC) {
	return func(r *rc.RC) {
		r.Strategy, r.NodeSelector = rc.Static, selector
		r.ReplicaGroups[0].Count = &n
	}
}

// A farm that has not heard of a node's labels yet places nothing there, whether operators have changed them or the preparer has other
// ones, and were it while the farm writes: pods of static controllers would stay.
func TestPlacingDependsOnTheLabelsOfNow(t *testing.T) {
	t.Parallel()
	const operators, writing, preparers = "operators'", "operators', while it writes", "the preparer's"
	for _, whose := range []string{operators, writing, preparers} {
		t.Run(whose, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			stop := c.node("n1", map[string]string{"pool": "a"}, nil)
			c.node("n2", map[string]string{"pool": "a"}, nil)
			c.synced("n1", "n2")
			hears := &hearing{}
			var written atomic.Bool
			if whose == writing {
				hears.writing = func() { c.relabel("n1", "pool", "b"); written.Store(true) }
			}
			hear := c.lateFarm("f1", hears)
			switch whose {
			case operators:
				c.relabel("n1", "pool", "b")
			case preparers:
				stop()
				c.nodes["n1"].Record.Labels = map[string]string{"pool": "b"}
				c.node("n1", nil, nil)
				c.synced("n1")
			}
			c.apply("web", testManifest("web", 0), static("pool=a", 6))
			c.converged("web", 6)
			if on := c.onNodes("web"); !maps.Equal(on, map[string]int{"n2": 6}) || written.Load() != (whose == writing) {
				t.Fatalf("pods by node: %v; n1 has pool=b", on)
			}
			hear()
			c.apply("other", testManifest("other", 0), static("pool=b", 2))
			c.converged("other", 2)
			if on := slices.Collect(maps.Keys(c.onNodes("other"))); !slices.Equal(on, []string{"n1"}) {
				t.Errorf("pods by node: %v", on)
			}
		})
	}
}

// Where nothing but relabelled nodes is left the status says so, and the pods are placed as soon as the farm hears that the nodes
// match after all.
func TestNoRoomWhereLabelsAreNotKnown(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.node("n1", map[string]string{"pool": "a"}, nil)
	c.synced("n1")
	hear := c.lateFarm("f1", &hearing{})
	c.relabel("n1", "rack", "r1") // does not matter to the controller, which the farm cannot know
	c.apply("web", testManifest("web", 0), static("pool=a", 2))
	c.is("web", rc.InsufficientNodes, 1)
	st, err := c.store.Statuses.Get(t.Context(), store.Default, "web")
	if err != nil {
		t.Fatal(err)
	}
	says := func(cond rc.Condition) bool {
		return cond.Type == rc.InsufficientNodes && strings.Contains(cond.Reason, "relabelled: 1")
	}
	if !slices.ContainsFunc(st.Value.Conditions, says) {
		t.Errorf("status %+v", st.Value)
	}
	hear()
	c.converged("web", 2)
}

// What was written by those who do not know label versions stands in the way for no longer than until the next sweep, whichever of the two layers it
// is about.
func TestWrongLabelVersionsAreMended(t *testing.T) {
	t.Parallel()
	for name, wrong := range map[string]func(*node.Reservation){
		"operators'":     func(r *node.Reservation) { r.Labels.Operators = node.LabelVersion(map[string]string{"pool": "z"}) },
		"the preparer's": func(r *node.Reservation) { r.Labels.Own = node.LabelVersion(map[string]string{"pool": "z"}) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			c.node("n1", map[string]string{"pool": "a"}, nil)
			c.farm("f1")
			c.relabel("n1", "rack", "r1")
			c.apply("web", testManifest("web", 0), static("pool=a,rack=r1", 1))
			c.converged("web", 1)
			found, _, err := c.store.ReservationsOf(t.Context(), []string{"n1"})
			if err != nil {
				t.Fatal(err)
			}
			res := found["n1"].Value
			if res.Labels.Operators != node.LabelVersion(map[string]string{"rack": "r1"}) {
				t.Errorf("label versions %+v after placing", res.Labels)
			}
			wrong(&res)
			text, err := json.Marshal(res)
			if err != nil {
				t.Fatal(err)
			}
			c.put(c.store.Keys().Reservations.Key("n1"), text)
			c.apply("other", testManifest("other", 0), static("pool=a", 1))
			c.converged("other", 1)
			found, _, err = c.store.ReservationsOf(t.Context(), []string{"n1"})
			want := node.LabelVersions{Own: node.LabelVersion(map[string]string{"pool": "a"}), Operators: node.LabelVersion(map[string]string{"rack": "r1"})}
			if err != nil || found["n1"].Value.Labels != want || len(found["n1"].Value.Claims) != 2 {
				t.Errorf("reservation %+v, %v", found["n1"].Value, err)
			}
		})
	}
}
