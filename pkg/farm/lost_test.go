package farm_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/consultest"
	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// statusOf waits for a status that a test accepts.
func (c *cluster) statusOf(id string, good func(*rc.Status) bool) {
	c.t.Helper()
	consultest.Eventually(c.t, soon, func() error {
		st, err := c.store.Statuses.Get(c.t.Context(), store.Default, id)
		if err == nil && !good(&st.Value) {
			err = fmt.Errorf("status %s", mustJSON(c.t, st.Value))
		}
		return err
	})
}

// Pods of a lost machine stay lost after Consul has forgotten the machine's agent, also for the next owner, until the
// preparer is back. This holds for pods that their controller keeps, and for pods that no node takes.
func TestALostMachineStaysLost(t *testing.T) {
	t.Parallel()
	for _, action := range []string{"keep", "replace"} {
		t.Run(action, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			stopNode := c.node("n1", nil, nil)
			rec := node.Node{}
			consultest.Eventually(t, soon, func() error {
				n, err := c.store.Nodes.Get(t.Context(), store.Consistent, "n1")
				rec = n.Value
				return err
			})
			faults := &faulty{}
			stopFarm := c.faultyFarm("f1", faults, nil)
			c.apply("web", testManifest("web", 0), func(r *rc.RC) {
				r.NodeLoss = rc.NodeLoss{
					Action: action, After: new(field.Duration),
					UnmanagedAfter: new(field.Duration),
				}
			})
			c.converged("web", 1)
			failed, forgotten := map[string]bool{rec.ConsulNode: true}, map[string]bool{}
			lost := func(st *rc.Status) bool {
				return st.Lost == 1 && st.Available == 0 && st.Is(rc.NodeLost) && !st.Is(rc.Converged)
			}
			faults.agents.Store(&failed)
			stopNode()
			c.statusOf("web", lost)
			marked := func() error {
				recs, _, err := c.store.Pods.List(t.Context(), store.Consistent, "web")
				if err == nil && (len(recs) != 1 || recs[0].Value.LostSince == nil ||
					recs[0].Value.UnmanagedSince != nil || recs[0].Value.Node != "n1") {
					err = fmt.Errorf("placements %s", mustJSON(t, recs))
				}
				return err
			}
			consultest.Eventually(t, soon, marked)
			stopFarm()

			second := &faulty{}
			second.agents.Store(&forgotten)
			c.faultyFarm("f2", second, nil)
			c.statusOf("web", func(st *rc.Status) bool { return st.Owner == "f2" && lost(st) })
			seen := time.Now()
			c.ring("web")
			// the farm has asked for failed agents, and looked at the controller
			consultest.Eventually(t, soon, func() error {
				if err := marked(); err != nil {
					t.Fatal(err)
				}
				if time.Since(seen) < 2*time.Second {
					return errors.New("the farm may not have asked yet")
				}
				return nil
			})
			c.statusOf("web", lost)
			c.node("n1", nil, nil)
			c.statusOf("web", func(st *rc.Status) bool { return st.Is(rc.Converged) }) // n1's last report is used again
			consultest.Eventually(t, soon, func() error {
				if n := len(c.running("web")); n != 1 {
					return fmt.Errorf("%d pods run", n)
				}
				return nil
			})
		})
	}
}

// A pod also stays lost if it cannot be placed elsewhere because an outside scheduler fails. The farm still writes the
// time of the loss, so no later owner begins to count again (P7).
func TestALossIsRememberedWhileTheSchedulerFails(t *testing.T) {
	t.Parallel()
	for _, call := range []string{"allocate", "eligible"} {
		t.Run(call, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			stopNode := c.node("n1", nil, nil)
			var rec node.Node
			consultest.Eventually(t, soon, func() error {
				n, err := c.store.Nodes.Get(t.Context(), store.Consistent, "n1")
				rec = n.Value
				return err
			})
			k, faults := newKeeper(), &faulty{}
			_, stopFarm := c.bookedFarm("f1", k, &recorder{}, faults)
			c.apply("web", testManifest("web", 0), func(r *rc.RC) {
				r.NodeLoss = rc.NodeLoss{After: new(field.Duration), UnmanagedAfter: new(field.Duration)}
			})
			c.converged("web", 1)
			k.set(func() { k.failing[call] = errors.New("out of order") })
			failed, forgotten := map[string]bool{rec.ConsulNode: true}, map[string]bool{}
			faults.agents.Store(&failed)
			stopNode()
			var since time.Time
			consultest.Eventually(t, soon, func() error {
				recs, _, err := c.store.Pods.List(t.Context(), store.Consistent, "web")
				if err == nil && (len(recs) != 1 || recs[0].Value.LostSince == nil) {
					return fmt.Errorf("placements %s", mustJSON(t, recs))
				} else if err == nil {
					since = *recs[0].Value.LostSince
				}
				return err
			})
			c.condition("web", rc.SchedulerFailing, true, "out of order")
			stopFarm()

			second := &faulty{}
			second.agents.Store(&forgotten)
			c.bookedFarm("f2", k, &recorder{}, second)
			c.statusOf("web", func(st *rc.Status) bool { return st.Owner == "f2" && st.Lost == 1 })
			recs, _, err := c.store.Pods.List(t.Context(), store.Consistent, "web")
			if err != nil || len(recs) != 1 || recs[0].Value.LostSince == nil || !recs[0].Value.LostSince.Equal(since) {
				t.Errorf("placements %s, %v; it is lost since %s", mustJSON(t, recs), err, since)
			}
			c.node("n2", nil, nil)
			k.set(func() { k.failing[call] = nil })
			c.ring("web")
			c.statusOf("web", func(st *rc.Status) bool { return st.Available == 1 && st.Lost == 0 })
		})
	}
}

// If the agent of a lost machine lives again, an ordered pod on the machine is not lost any more, although no preparer
// holds the node. The pod may run there for any time, and the status reports this.
func TestAnOrderedPodOnAMachineThatLivesAgainIsNotLost(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	stopNode := c.node("n1", nil, nil)
	rec, err := store.Rec[node.Node]{}, error(nil)
	consultest.Eventually(t, soon, func() error {
		rec, err = c.store.Nodes.Get(t.Context(), store.Consistent, "n1")
		return err
	})
	faults := &faulty{}
	failed := map[string]bool{rec.Value.ConsulNode: true}
	faults.agents.Store(&failed)
	c.faultyFarm("f1", faults, nil)
	c.apply("db", testManifest("db", 0), func(r *rc.RC) {
		r.ReplicaGroups[0].Ordered = true
		r.NodeLoss = rc.NodeLoss{After: new(field.Duration), UnmanagedAfter: new(field.Duration)}
	})
	c.converged("db", 1)
	placed := func(good func(*pod.Placement) bool) {
		t.Helper()
		consultest.Eventually(t, soon, func() error {
			rec, err := c.store.Pods.Get(t.Context(), store.Consistent, "db", "main.0")
			if err == nil && !good(&rec.Value) {
				err = fmt.Errorf("placement %s", mustJSON(t, rec))
			}
			return err
		})
	}
	stopNode()
	placed(func(p *pod.Placement) bool { return p.LostSince != nil && p.RunState == pod.Stopped })
	faults.agents.Store(nil) // from now on Consul answers; for Consul, the agent lives
	placed(func(p *pod.Placement) bool {
		return p.LostSince == nil && p.UnmanagedSince != nil && p.RunState == pod.Stopped && p.Node == "n1"
	})
	c.statusOf("db", func(st *rc.Status) bool {
		return slices.ContainsFunc(st.Conditions, func(c rc.Condition) bool {
			return c.Type == rc.AwaitsStop && strings.Contains(c.Reason, "the machine lives")
		})
	})
	faults.agents.Store(&failed)
	placed(func(p *pod.Placement) bool { return p.LostSince != nil })
}
