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

// looks counts what a farm reads of nodes only to find room, and can hold up the reads that look at many of them.
type looks struct {
	*store.FarmSession
	*lookCount
}

type lookCount struct {
	nodes   atomic.Int64
	passes  atomic.Int64  // over the controller that finds no room
	holding atomic.Bool   // what looks at many nodes waits for the gate
	begun   chan struct{} // gets one when such a read begins
	gate    chan struct{}
}

func (l looks) ReadUnit(ctx context.Context, id string, consistent bool) (store.Unit, error) {
	if id == "late" {
		l.passes.Add(1)
	}
	return l.FarmSession.ReadUnit(ctx, id, consistent)
}

func (l looks) ReadDetails(ctx context.Context, w store.Wanted, consistent bool) (store.Details, error) {
	if len(w.Realities)+len(w.Intents) == 0 {
		l.nodes.Add(int64(len(w.Reservations)))
		if l.holding.Load() && len(w.Reservations) > fullNodes/4 {
			select {
			case l.begun <- struct{}{}:
			default: // nobody needs to know twice
			}
			select {
			case <-l.gate:
			case <-ctx.Done():
			}
		}
	}
	return l.FarmSession.ReadDetails(ctx, w, consistent)
}

const fullNodes = 300

// sized is a manifest of pods that take that much CPU.
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

// fullCluster is a farm and many nodes, so many of which have a pod that leaves no room for another of its size.
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
		session := consul.SessionConfig{Kind: "farm", Name: "f1", TTL: ttl, Journal: &simnode.Journal{}}
		return client.RunSession(ctx, session, func(ctx context.Context, s *consul.Session) error {
			own := looks{st.FarmSession(s, "f1"), count}
			return farm.NewFarm(farm.Config{ID: "f1", Store: own, Log: log, TTL: 500 * time.Millisecond, SweepEvery: time.Hour}).Start(ctx)
		})
	})
	c.apply("fill", sized("fill", 0, 800), replicas(full))
	c.is("fill", rc.Converged, 1)
	return c, count
}

// Where no node has room for a pod, each is looked at once, and then, when the farm gives something back, that one only. While it
// looks, others are placed.
func TestNoRoom(t *testing.T) {
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
	// A look may take some nodes unseen first, and the other controller has looked too.
	if n := looks.nodes.Load() - before; n > 3*fullNodes {
		t.Errorf("read what is taken on %d nodes to find that none of %d has room", n, fullNodes)
	}

	before = looks.nodes.Load()
	for range 5 {
		passes := looks.passes.Load()
		if _, err := c.client.Commit(t.Context(), []consul.Op{consul.Set(c.store.Keys().Bells.Key("late"), []byte(store.NewID()))}); err != nil {
			t.Fatal(err)
		}
		consultest.Eventually(t, soon, func() error {
			if looks.passes.Load() == passes {
				return errors.New("nobody has looked at the controller")
			}
			return nil
		})
	}
	c.apply("fill", sized("fill", 0, 800), replicas(fullNodes-1))
	c.is("late", rc.Converged, 1)
	pauses := int64(time.Since(looked) / placement.FirstPause) // on a busy machine; each ends with a look at all nodes
	if n := looks.nodes.Load() - before; n > 30+2*fullNodes*pauses {
		t.Errorf("read what is taken on %d nodes after room became free on one", n)
	}
}

// Where few nodes have room, one pod that needs it may have its farm look at all. After that the farm knows where room is, for pods of
// any size, and as long as it is the only one that places.
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
		// Some nodes are taken unseen, before it is known what the pods need.
		if n := looks.nodes.Load() - before; n > 3*scheduler.MinCandidates {
			walks = append(walks, fmt.Sprintf("%s read what is taken on %d nodes of %d, of which %d had room", id, n, fullNodes, free-i))
		}
	}
	if len(walks) > 1 {
		t.Errorf("%d of %d pods had their farm walk: %q", len(walks), free, walks)
	}
}
