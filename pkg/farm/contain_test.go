package farm_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/consultest"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/scheduler"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// dying panics when it is asked for nodes of one controller.
type dying struct {
	scheduler.NoBooks
	rcID string
	ill  *atomic.Bool
}

func (d dying) EligibleNodes(_ context.Context, v *scheduler.View) ([]string, scheduler.Reasons, error) {
	if v.Ask().RCID == d.rcID && d.ill.Load() {
		panic("the scheduler has no answer")
	}
	return []string{"n0", "n1", "n2"}, nil, nil
}

// lockIndex returns the index of a controller's lock, which changes when the fence moves.
func (c *cluster) lockIndex(id string) uint64 {
	c.t.Helper()
	pair, err := c.client.Get(c.t.Context(), c.store.Keys().Locks.Key(id), consul.Consistent)
	if err != nil {
		c.t.Fatal(err)
	}
	return pair.ModifyIndex
}

// ailing waits until the status of a controller reports that the controller cannot be worked on, with the given reason.
func (c *cluster) ailing(id, why string) {
	c.t.Helper()
	c.condition(id, rc.Unreadable, true, "it cannot be worked on: panic: "+why)
}

// A scheduler that panics for one controller delays only this controller. The controller's fence moves before each
// further look. When the panics end, the farm works on it again.
func TestAPanicInALookIsContained(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	for i := range 3 {
		c.node(fmt.Sprintf("n%d", i), nil, nil)
	}
	ill := &atomic.Bool{}
	ill.Store(true)
	c.apply("bad", testManifest("bad", 0), replicas(2))
	c.faultyFarm("f1", &faulty{}, dying{rcID: "bad", ill: ill})
	c.ailing("bad", "the scheduler has no answer")
	before := c.lockIndex("bad")
	consultest.Eventually(t, soon, func() error {
		if now := c.lockIndex("bad"); now <= before {
			return fmt.Errorf("the lock's index is still %d", now)
		}
		return nil
	})
	c.apply("good", testManifest("good", 0), replicas(2))
	c.converged("good", 2)
	if got := c.running("bad"); len(got) != 0 {
		t.Errorf("pods of the other: %v", got)
	}
	ill.Store(false)
	c.converged("bad", 2)
	c.condition("bad", rc.Unreadable, false, "")
}

// A panic in a goroutine that a look has started is handled like a panic in the look. Here the goroutine writes a later
// batch of a pass. From then on, each batch that changes pods panics, because the rest of the changes fits into one
// batch.
func TestAPanicBesideALookIsContained(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	for i := range 8 {
		c.node(fmt.Sprintf("n%d", i), nil, nil)
	}
	var ill atomic.Bool
	var beside atomic.Int64
	ill.Store(true)
	c.faultyFarm("f1", &faulty{commit: func(b *store.Batch) error {
		second := b.Audit == nil && b.Status == nil
		if ill.Load() && b.RCID == "bad" && len(b.Pods) > 0 && (second || beside.Load() > 0) {
			beside.Add(1)
			panic("a batch that cannot be sent")
		}
		return nil
	}}, nil)
	c.apply("bad", testManifest("bad", 0), replicas(70))
	c.ailing("bad", "a batch that cannot be sent")
	if beside.Load() == 0 {
		t.Fatal("no batch was sent beside the look")
	}
	c.apply("good", testManifest("good", 0), replicas(2))
	c.converged("good", 2)
	ill.Store(false)
	c.converged("bad", 70)
	for id, on := range c.running("bad") {
		if len(on) != 1 {
			t.Errorf("%s runs on %s", id, strings.Join(on, ", "))
		}
	}
}
