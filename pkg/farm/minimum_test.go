package farm_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/integration/simnode"
	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/consultest"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// minimum sets how many replicas there are, and how many of them stay available, as rcctl does.
func minimum(replicas, least int) func(*rc.RC) {
	return func(r *rc.RC) { r.ReplicaGroups[0].Count, r.MinAvailable = &replicas, &least }
}

// stops returns the replicas that a batch stops.
func stops(b *store.Batch) (ids []pod.Identity) {
	for _, w := range b.Pods {
		if w.Placement != nil && w.Placement.RunState == pod.Stopped {
			ids = append(ids, w.Identity)
		}
	}
	return ids
}

// amend changes what a node reports of a placed replica. It returns when the node has reported this, or when the
// replica has stopped.
func (c *cluster) amend(id pod.Identity, state pod.State, available bool) {
	recs, _, err := c.store.Pods.List(context.Background(), store.Consistent, id.RCID)
	if err != nil {
		c.t.Error(err)
		return
	}
	i := slices.IndexFunc(recs, func(rec store.Rec[pod.Placement]) bool { return rec.Value.Identity == id })
	if i < 0 {
		return // the replica is gone by now
	}
	at := store.At{Node: recs[i].Value.Node, Identity: id}
	c.mu.Lock()
	n := c.nodes[at.Node]
	c.mu.Unlock()
	if !n.Amend(id, recs[i].Value.Revision, state, available) {
		return // the replica has another intent by now
	}
	consultest.Eventually(c.t, soon, func() error {
		got, _, err := c.store.RealitiesAt(context.Background(), []store.At{at}, store.Consistent)
		if r, there := got[at]; err == nil && there && r.State != pod.StateStopped &&
			(r.State != state || r.Available != available) {
			err = fmt.Errorf("%s is reported as %s", id, r.State)
		}
		return err
	})
}

// sick makes the replicas from an index on never available.
func sick(from int) func(pod.Intent) pod.Reality {
	return func(in pod.Intent) pod.Reality {
		r := simnode.Obey(in)
		if in.State == pod.Running && in.Identity.Index >= from {
			r.State, r.Available = pod.StateFailed, false
		}
		return r
	}
}

func replica(index int) pod.Identity { return pod.Identity{RCID: "web", Role: "main", Index: index} }

// placed waits until n replicas are reported, in any state.
func (c *cluster) placed(n int) {
	c.t.Helper()
	consultest.Eventually(c.t, soon, func() error {
		recs, _, err := c.store.Realities.List(context.Background(), store.Default)
		if err == nil && len(recs) != n {
			err = fmt.Errorf("%d realities, want %d", len(recs), n)
		}
		return err
	})
}

// A replica crashes again and again, so that a report arrives between any two steps of its owner. These reports are no
// drops, so they do not delay the owner.
func TestReportsWithoutADropDelayNoStop(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	for _, name := range []string{"n1", "n2"} {
		c.node(name, nil, sick(11))
	}
	var mu sync.Mutex
	state := pod.StateFailed
	c.faultyFarm("f1", &faulty{commit: func(b *store.Batch) error {
		mu.Lock()
		defer mu.Unlock()
		if len(stops(b)) > 0 {
			if state = pod.StateStarting; len(b.Pods)%2 == 0 {
				state = pod.StateFailed
			}
			c.amend(replica(11), pod.StateFetching, false)
			c.amend(replica(11), state, false)
		}
		return nil
	}}, nil)
	c.apply("web", testManifest("web", 0), minimum(12, 6))
	c.placed(12)
	c.apply("web", testManifest("web", 0), minimum(6, 6))
	c.converged("web", 6)
}

// One replica of four may stop, but another one drops before the batch of the stop lands. Then no available replica may
// stop until the dropped replica is available again: neither by the same batch, sent again, nor by a later pass.
func TestADropCountsAgainstTheMinimum(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.node("n1", nil, nil)
	tried := make(chan struct{})
	var once sync.Once
	var mu sync.Mutex
	var taken []pod.Identity
	c.faultyFarm("f1", &faulty{commit: func(b *store.Batch) error {
		ids := stops(b)
		if len(ids) == 0 {
			return nil
		}
		mu.Lock()
		taken = append(taken, ids...)
		mu.Unlock()
		once.Do(func() {
			c.amend(replica(0), pod.StateUnhealthy, false)
			close(tried)
		})
		return nil
	}}, nil)
	c.apply("web", testManifest("web", 0), minimum(4, 3))
	c.converged("web", 4)
	c.apply("web", testManifest("web", 0), minimum(3, 3))
	<-tried
	// The dropped replica is the first one. It is not available, so it may stop.
	c.converged("web", 3)
	if got := c.running("web"); got[replica(0)] != nil {
		t.Errorf("%v run on, of which the first had dropped", got)
	}
	mu.Lock()
	defer mu.Unlock()
	if len(taken) != 2 || taken[0] == replica(0) || taken[1] != replica(0) {
		t.Errorf("stops were sent for %v; want one that does not land, and that of the first", taken)
	}
}

// If a batch is refused because a replica has dropped, and enough replicas remain, the batch is sent again. Before
// that, the owner reads only the drops.
func TestABatchIsSentAgainWhileTheMinimumRemains(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.node("n1", nil, nil)
	var mu sync.Mutex
	var sent []*store.Batch
	c.faultyFarm("f1", &faulty{commit: func(b *store.Batch) error {
		mu.Lock()
		defer mu.Unlock()
		if len(stops(b)) > 0 {
			if len(sent) < 2 {
				c.amend(replica(len(sent)), pod.StateUnhealthy, false)
			}
			sent = append(sent, b)
		}
		return nil
	}}, nil)
	c.apply("web", testManifest("web", 0), minimum(6, 1))
	c.converged("web", 6)
	c.apply("web", testManifest("web", 0), minimum(3, 1))
	consultest.Eventually(t, soon, func() error {
		if n := len(c.running("web")); n != 3 {
			return fmt.Errorf("%d run", n)
		}
		return nil
	})
	mu.Lock()
	defer mu.Unlock()
	if len(sent) != 3 || sent[0] != sent[1] || sent[1] != sent[2] {
		t.Errorf("these were sent: %v; want one three times", sent)
	}
}

// Each stop depends on the drops. If their key is missing, the owner makes it.
func TestTheMinimumDependsOnTheDrops(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct{ missing bool }{"drops": {}, "missing": {missing: true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			client, st := c.connect()
			fleet := &simnode.Fleet{
				Name: "n", Size: 2, Client: client, Store: st, TTL: ttl,
				StartTime: time.Millisecond, Prepare: func(_ int, n *node.Node) {
					n.Capacity.Slots = 2
				},
			}
			c.background(fleet.Run)
			var mu sync.Mutex
			var wrong error
			seen := 0
			c.faultyFarm("f1", &faulty{commit: func(b *store.Batch) error {
				if len(stops(b)) == 0 {
					return nil
				}
				mu.Lock()
				defer mu.Unlock()
				if seen++; b.DropsIndex == 0 || b.Newest == nil {
					wrong = fmt.Errorf("drops %d, newest %+v", b.DropsIndex, b.Newest)
				}
				return nil
			}}, nil)
			available := func(n int) {
				t.Helper()
				consultest.Eventually(t, soon, func() error {
					status, err := c.store.Statuses.Get(t.Context(), store.Default, "web")
					if err == nil && (status.Value.Available != n || !status.Value.Is(rc.Converged)) {
						err = fmt.Errorf("%+v", status.Value)
					}
					return err
				})
			}
			c.apply("web", testManifest("web", 0), minimum(4, 1))
			available(4)
			if tt.missing {
				if _, err := c.client.Commit(t.Context(),
					[]consul.Op{consul.Delete(c.store.Keys().Drops.Key("web"))}); err != nil {
					t.Fatal(err)
				}
			}
			c.apply("web", testManifest("web", 0), minimum(2, 1))
			available(2)
			mu.Lock()
			if wrong != nil || seen == 0 {
				t.Errorf("%d batches with stops: %v", seen, wrong)
			}
			mu.Unlock()
			if _, err := c.client.Get(t.Context(), c.store.Keys().Drops.Key("web"), consul.Consistent); err != nil {
				t.Error(err)
			}
			c.gone(t, "web")
		})
	}
}

// gone deletes a controller and waits until its drops are removed.
func (c *cluster) gone(t *testing.T, id string) {
	t.Helper()
	now := time.Now()
	c.apply(id, testManifest("web", 0), func(r *rc.RC) { r.DeletedAt, r.AllowMassStop = &now, r.Generation })
	consultest.Eventually(t, soon, func() error {
		_, err := c.store.RCs.Get(t.Context(), store.Consistent, id)
		if errors.Is(err, store.ErrNotFound) {
			return nil
		}
		return errors.Join(errors.New("the drops are still there"), err)
	})
	if left, err := c.client.Keys(t.Context(), c.store.Keys().Drops.Key()); err != nil || len(left) > 0 {
		t.Errorf("left are %v: %v", left, err)
	}
}
