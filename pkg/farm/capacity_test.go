package farm_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/integration/simnode"
	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/consultest"
	"github.com/rcfarm/rcfarm/pkg/farm"
	"github.com/rcfarm/rcfarm/pkg/farm/placement"
	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/obs"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/scheduler"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// looks counts the reservations that a farm reads only to find capacity, and can delay the reads of many nodes.
type looks struct {
	*store.FarmSession
	*lookCount
}

// lookCount counts the reservations that a farm reads only to find capacity, and can delay the reads of many nodes.
type lookCount struct {
	nodes   atomic.Int64
	passes  atomic.Int64  // over the controller that finds no capacity
	holding atomic.Bool   // reads of many nodes wait for the gate
	begun   chan struct{} // gets a value when such a read begins
	gate    chan struct{}
}

func (l looks) ReadUnit(ctx context.Context, id string, level store.Level) (store.Unit, error) {
	if id == "late" {
		l.passes.Add(1)
	}
	return l.FarmSession.ReadUnit(ctx, id, level)
}

func (l looks) ReadDetails(ctx context.Context, w store.Wanted, level store.Level) (store.Details, error) {
	if len(w.Realities)+len(w.Intents) == 0 {
		l.nodes.Add(int64(len(w.Reservations)))
		if l.holding.Load() && len(w.Reservations) > fullNodes/4 {
			select {
			case l.begun <- struct{}{}:
			default: // the channel has a value already
			}
			select {
			case <-l.gate:
			case <-ctx.Done():
			}
		}
	}
	return l.FarmSession.ReadDetails(ctx, w, level)
}

const fullNodes = 300

// sized returns a manifest of pods that take the given amount of CPU.
func sized(id string, port int, cpu manifest.Millicores) *manifest.Manifest {
	m := testManifest(id, port)
	m.Launchables[0].Resources.CPU = cpu
	return m
}

func (c *cluster) is(id string, t rc.ConditionType, generation int64) {
	c.t.Helper()
	consultest.Eventually(c.t, soon, func() error {
		st, err := c.store.Statuses.Get(c.t.Context(), store.Default, id)
		if err == nil && (!st.Value.Is(t) || st.Value.ObservedGeneration != generation) {
			err = fmt.Errorf("not %s yet: %+v", t, st.Value)
		}
		return err
	})
}

// fullCluster returns a cluster with a farm and many nodes. The given number of nodes (full) have a pod that leaves no
// capacity for another pod of its size.
func fullCluster(t *testing.T, full int) (*cluster, *lookCount) {
	t.Helper()
	c := newCluster(t)
	ready := make(chan struct{}, 1)
	fleet := simnode.Fleet{
		Name: "n", Size: fullNodes, TTL: ttl, StartTime: 10 * time.Millisecond,
		Prepare: func(_ int, record *node.Node) { record.Capacity = node.Capacity{Slots: 5, CPU: 1000} },
		OnReady: func() {
			select {
			case ready <- struct{}{}:
			default: // a later tenure
			}
		},
	}
	fleet.Client, fleet.Store = c.connect()
	c.background(fleet.Run)
	<-ready
	count := &lookCount{begun: make(chan struct{}, 1), gate: make(chan struct{})}
	client, st := c.connect()
	log, err := obs.NewLogger(testWriter{t}, "warn", "text")
	if err != nil {
		t.Fatal(err)
	}
	c.background(func(ctx context.Context) error {
		session := c.session("farm", "f1")
		return client.RunSession(ctx, session, func(ctx context.Context, s *consul.Session) error {
			own := looks{st.FarmSession(s, "f1"), count}
			return farm.NewFarm(farm.Config{
				ID: "f1", Store: own, Log: log, TTL: 500 * time.Millisecond,
				SweepEvery: time.Hour,
			}).Start(ctx)
		})
	})
	c.apply("fill", sized("fill", 0, 800), replicas(full))
	c.is("fill", rc.Converged, 1)
	return c, count
}

// If no node has capacity for a pod, the farm reads each node once. When the farm then frees capacity on one node, it
// reads only this node. In the meantime other pods are placed.
func TestFullNodesAreReadOnce(t *testing.T) {
	t.Parallel()
	c, looks := fullCluster(t, fullNodes)
	before := looks.nodes.Load()
	looks.holding.Store(true)
	c.apply("late", sized("late", 0, 800), replicas(1))
	<-looks.begun
	c.apply("small", sized("small", 0, 10), replicas(3))
	c.is("small", rc.Converged, 1)
	looks.holding.Store(false)
	looked := time.Now() // the pause begins later
	close(looks.gate)
	c.is("late", rc.InsufficientNodes, 1)
	// A look may first try some nodes without a read, and the other controller has been looked at, too.
	if n := looks.nodes.Load() - before; n > 3*fullNodes {
		t.Errorf("read %d reservations to find that none of %d nodes has capacity", n, fullNodes)
	}

	before = looks.nodes.Load()
	for range 5 {
		passes := looks.passes.Load()
		if _, err := c.client.Commit(t.Context(),
			[]consul.Op{consul.Set(c.store.Keys().Bells.Key("late"), []byte(store.NewID()))}); err != nil {
			t.Fatal(err)
		}
		consultest.Eventually(t, soon, func() error {
			if looks.passes.Load() == passes {
				return errors.New("the farm has not looked at the controller")
			}
			return nil
		})
	}
	c.apply("fill", sized("fill", 0, 800), replicas(fullNodes-1))
	c.is("late", rc.Converged, 1)
	pauses := int64(time.Since(looked) / placement.FirstPause) // each ends with reads of all nodes
	if n := looks.nodes.Load() - before; n > 30+2*fullNodes*pauses {
		t.Errorf("read %d reservations after one node got capacity", n)
	}
}

// If few nodes have capacity, the farm may have to read all nodes for one pod. After that the farm knows where capacity
// is, for pods of any size, as long as no other farm places pods.
func TestATightFitIsFoundWithoutAWalk(t *testing.T) {
	t.Parallel()
	const free = 8
	c, looks := fullCluster(t, fullNodes-free)
	var walks []string
	for i := range free {
		before := looks.nodes.Load()
		id := fmt.Sprint("tight-", i)
		c.apply(id, sized(id, 0, manifest.Millicores(750-10*i)), replicas(1))
		c.is(id, rc.Converged, 1)
		// Some nodes are tried without a read, before the farm knows what the pods need.
		if n := looks.nodes.Load() - before; n > 3*scheduler.MinCandidates {
			walks = append(walks, fmt.Sprintf("%s read %d reservations of %d nodes, of which %d had capacity", id, n,
				fullNodes, free-i))
		}
	}
	if len(walks) > 1 {
		t.Errorf("for %d of %d pods the farm has read many nodes: %q", len(walks), free, walks)
	}
}

// A node can get more pods in a pass than one transaction can place there. The farm places the rest in the next pass,
// in spite of other pods that have found no node.
func TestANodeFillsUpAlthoughSomePodsHaveNoNode(t *testing.T) {
	t.Parallel()
	const slots = 100
	c := newCluster(t)
	n := &simnode.Node{TTL: ttl, Record: node.Node{
		Name: "n1", Capacity: node.Capacity{Slots: slots}, Address: "127.0.0.1",
	}}
	n.Client, n.Store = c.connect()
	c.nodes["n1"] = n
	c.node("n1", nil, nil)
	c.farm("f1")
	c.apply("web", testManifest("web", 0), replicas(slots+30))
	began := time.Now()
	consultest.Eventually(t, soon, func() error {
		st, err := c.store.Statuses.Get(t.Context(), store.Default, "web")
		if err == nil && (st.Value.Placed != slots || !st.Value.Is(rc.InsufficientNodes)) {
			err = fmt.Errorf("%d pods have a node, not %d: %+v", st.Value.Placed, slots, st.Value)
		}
		return err
	})
	if took := time.Since(began); took >= placement.FirstPause {
		t.Errorf("it took %v to fill the node: the farm waited until nodes may be looked at again", took)
	}
}
