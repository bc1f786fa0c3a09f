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

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/consultest"
	"github.com/rcfarm/rcfarm/pkg/farm"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/obs"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// lagging is a farm whose watches of nodes and of operators' records deliver changes only when the test allows it.
type lagging struct {
	*store.FarmSession
	updates *updates
}

// updates controls when the watches of a lagging farm deliver changes.
type updates struct {
	gate chan struct{}
	// writing, if set, is called before the first write that places a pod.
	writing func()
	once    sync.Once
}

func (b lagging) Commit(ctx context.Context, batch *store.Batch) error {
	if f := b.updates.writing; f != nil && len(batch.Reservations) > 0 {
		b.updates.once.Do(f)
	}
	return b.FarmSession.Commit(ctx, batch)
}

func (h *updates) wait(ctx context.Context) {
	select {
	case <-h.gate:
	case <-ctx.Done():
	}
}

// holdBack passes on the first delivery at once, and the others after the test allows it.
func holdBack[T any](ctx context.Context, h *updates, deliver func(store.Seen[T]) error) func(store.Seen[T]) error {
	first := true
	return func(s store.Seen[T]) error {
		if !first {
			h.wait(ctx)
		}
		first = false
		return deliver(s)
	}
}

func (b lagging) WatchNodes(ctx context.Context, shard int, onError func(error),
	deliver func(store.Seen[node.Node]) error,
) error {
	return b.FarmSession.WatchNodes(ctx, shard, onError, holdBack(ctx, b.updates, deliver))
}

func (b lagging) WatchNodeOps(ctx context.Context, onError func(error),
	deliver func(store.Seen[node.Ops]) error,
) error {
	return b.FarmSession.WatchNodeOps(ctx, onError, holdBack(ctx, b.updates, deliver))
}

// lateFarm runs a farm that knows the nodes as they are now. It sees later changes only after update is called.
func (c *cluster) lateFarm(id string, updates *updates) (update func()) {
	c.t.Helper()
	log, err := obs.NewLogger(testWriter{c.t}, "info", "text")
	if err != nil {
		c.t.Fatal(err)
	}
	client, st := c.connect()
	updates.gate = make(chan struct{})
	started := make(chan *farm.Farm, 1)
	c.background(func(ctx context.Context) error {
		session := c.session("farm", id)
		return client.RunSession(ctx, session, func(ctx context.Context, s *consul.Session) error {
			f := farm.NewFarm(farm.Config{
				ID: id, Store: lagging{st.FarmSession(s, id), updates}, Log: log,
				TTL: 500 * time.Millisecond, SweepEvery: time.Second,
			})
			select {
			case started <- f:
			default: // the farm has started again after its session was lost
			}
			return f.Start(ctx)
		})
	})
	f := <-started
	consultest.Eventually(c.t, soon, f.Ready)
	return func() { close(updates.gate) }
}

// synced waits until nodes have reported what they run in the present epoch.
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

// A farm that has not seen a node's new labels places no pod there, because pods of static controllers would not be
// moved off again. It does not matter whether the operators or the preparer have changed the labels, or whether the
// farm was writing meanwhile.
func TestPlacingDependsOnThePresentLabels(t *testing.T) {
	t.Parallel()
	const operators, writing, preparers = "operators'", "operators', while it writes", "the preparer's"
	for _, whose := range []string{operators, writing, preparers} {
		t.Run(whose, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			stop := c.node("n1", map[string]string{"pool": "a"}, nil)
			c.node("n2", map[string]string{"pool": "a"}, nil)
			c.synced("n1", "n2")
			updates := &updates{}
			var written atomic.Bool
			if whose == writing {
				updates.writing = func() { c.relabel("n1", "pool", "b"); written.Store(true) }
			}
			update := c.lateFarm("f1", updates)
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
			if on := c.onNodes("web"); !maps.Equal(on, map[string]int{"n2": 6}) ||
				written.Load() != (whose == writing) {
				t.Fatalf("pods by node: %v; n1 has pool=b", on)
			}
			update()
			c.apply("other", testManifest("other", 0), static("pool=b", 2))
			c.converged("other", 2)
			if on := slices.Collect(maps.Keys(c.onNodes("other"))); !slices.Equal(on, []string{"n1"}) {
				t.Errorf("pods by node: %v", on)
			}
		})
	}
}

// If only relabelled nodes are left, the status reports that. The pods are placed as soon as the farm sees that the
// nodes match after all.
func TestNoPlacementWhereLabelsAreNotKnown(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.node("n1", map[string]string{"pool": "a"}, nil)
	c.synced("n1")
	update := c.lateFarm("f1", &updates{})
	c.relabel("n1", "rack", "r1") // the label does not matter to the controller, but the farm cannot know that
	c.apply("web", testManifest("web", 0), static("pool=a", 2))
	c.is("web", rc.InsufficientNodes, 1)
	st, err := c.store.Statuses.Get(t.Context(), store.Default, "web")
	if err != nil {
		t.Fatal(err)
	}
	relabelled := func(cond rc.Condition) bool {
		return cond.Type == rc.InsufficientNodes && strings.Contains(cond.Reason, "relabelled: 1")
	}
	if !slices.ContainsFunc(st.Value.Conditions, relabelled) {
		t.Errorf("status %+v", st.Value)
	}
	update()
	c.converged("web", 2)
}

// If programs that do not know label versions have written wrong label versions, pods can be placed again after the
// next sweep. This holds for both layers of labels.
func TestWrongLabelVersionsAreMended(t *testing.T) {
	t.Parallel()
	for name, wrong := range map[string]func(*node.Reservation){
		"operators'": func(r *node.Reservation) {
			r.Labels.Operators = node.LabelVersion(map[string]string{"pool": "z"})
		},
		"the preparer's": func(r *node.Reservation) {
			r.Labels.Own = node.LabelVersion(map[string]string{"pool": "z"})
		},
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
			want := node.LabelVersions{
				Own:       node.LabelVersion(map[string]string{"pool": "a"}),
				Operators: node.LabelVersion(map[string]string{"rack": "r1"}),
			}
			if err != nil || found["n1"].Value.Labels != want || len(found["n1"].Value.Claims) != 2 {
				t.Errorf("reservation %+v, %v", found["n1"].Value, err)
			}
		})
	}
}
