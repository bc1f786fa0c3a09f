package farm_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/integration/simnode"
	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/consultest"
	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// An ordered pod whose placement was lost runs on by its intent. It gets its placement back on its node, even if the
// machine is lost by then, and never a second copy.
func TestAnOrderedPodWhosePlacementVanishedIsAdopted(t *testing.T) {
	t.Parallel()
	for _, lost := range []bool{false, true} {
		t.Run(fmt.Sprintf("lost %t", lost), func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			stopNode := c.node("n0", nil, nil)
			stopFarm := c.farm("f1")
			c.apply("db", testManifest("db", 0), func(r *rc.RC) { r.ReplicaGroups[0].Ordered = true })
			c.converged("db", 1)
			stopFarm()
			for i := range 3 {
				c.node(fmt.Sprintf("n%d", i+1), nil, nil)
			}
			if lost {
				stopNode()
			}
			before, err := c.store.Pods.Get(t.Context(), store.Consistent, "db", "main.0")
			if err != nil {
				t.Fatal(err)
			}
			if _, err := c.client.Commit(t.Context(),
				[]consul.Op{consul.Delete(c.store.Keys().Pods.Key("db", "main.0"))}); err != nil {
				t.Fatal(err)
			}
			c.farm("f2")
			consultest.Eventually(t, soon, func() error {
				recs, _, err := c.store.Pods.List(t.Context(), store.Consistent, "db")
				if err == nil && len(recs) != 1 {
					return fmt.Errorf("%d placements", len(recs))
				} else if err == nil &&
					(recs[0].Value.Node != "n0" || recs[0].Value.Revision <= before.Value.Revision) {
					t.Fatalf("%s", mustJSON(t, recs))
				}
				return err
			})
		})
	}
}

// A node that is lost during an upgrade may run the manifest that it reported last. So the farm also reads this
// manifest, even if it has not seen the upgrade. If the manifest cannot be read, the status reports this, and not a
// missing stop_after.
func TestAnOrderedPodLostInMidUpgradeHasAStopTime(t *testing.T) {
	t.Parallel()
	for _, readable := range []bool{true, false} {
		t.Run(fmt.Sprintf("readable %t", readable), func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			version := func(port int) *manifest.Manifest {
				m := testManifest("db", port)
				m.Disconnect = &manifest.Disconnect{StopAfter: new(field.Duration(time.Hour))}
				return m
			}
			canonical, err := version(0).Canonical()
			if err != nil {
				t.Fatal(err)
			}
			former := digestOf(canonical)
			n := &simnode.Node{
				Record: node.Node{
					Name: "n1", Capacity: node.Capacity{Slots: 10}, Address: "127.0.0.1",
					EnforcesStopAfter: true,
				}, TTL: ttl,
				React: func(in pod.Intent) pod.Reality {
					if in.Digest == former {
						return simnode.Obey(in)
					}
					r := simnode.Obey(pod.Intent{
						Identity: in.Identity, PodID: in.PodID, Digest: former,
						Revision: in.Revision - 1, State: pod.Running,
					})
					r.Available = false
					return r
				},
			}
			n.Client, n.Store = c.connect()
			c.nodes["n1"] = n
			faults := &faulty{}
			stopFarm := c.faultyFarm("f1", faults, nil)
			stopNode := c.node("n1", nil, nil)
			ordered := func(r *rc.RC) {
				r.ReplicaGroups[0].Ordered, r.NodeLoss.After = true, new(field.Duration)
			}
			c.apply("db", version(0), ordered)
			c.converged("db", 1)
			c.apply("db", version(81), ordered)
			consultest.Eventually(t, soon, func() error {
				rec, err := c.store.Realities.Get(t.Context(), store.Consistent, "n1", "db", "main.0")
				if err == nil && rec.Value.Available {
					err = fmt.Errorf("%+v", rec.Value)
				}
				return err
			})
			stopFarm()
			rec, err := c.store.Nodes.Get(t.Context(), store.Consistent, "n1")
			if err != nil {
				t.Fatal(err)
			}
			if !readable {
				if _, err := c.client.Commit(t.Context(),
					[]consul.Op{consul.Delete(c.store.Keys().Manifests.Key(former))}); err != nil {
					t.Fatal(err)
				}
			}
			stopNode()
			failed := map[string]bool{rec.Value.ConsulNode: true}
			second := &faulty{}
			second.agents.Store(&failed)
			c.faultyFarm("f2", second, nil)
			want := map[bool]string{
				true: "counts as stopped at", false: "manifest " + former[:8] + ", which it may run, cannot be read",
			}[readable]
			c.awaits("db", want)
			if err := c.store.FarmSession(&consul.Session{}, "f3").RenewEpoch(t.Context(), "", ""); err != nil {
				t.Fatal(err)
			}
			c.awaits("db", "a later version than the records know")
		})
	}
}

// awaits waits until the status of an ordered group has the given reason.
func (c *cluster) awaits(id, want string) {
	c.t.Helper()
	c.statusOf(id, func(st *rc.Status) bool {
		for _, condition := range st.Conditions {
			if condition.Type == rc.AwaitsStop && condition.True {
				return strings.Contains(condition.Reason, want)
			}
		}
		return false
	})
}

// If a controller's record has that it was made in this epoch, the controller cannot run on nodes that have been silent
// since. If its record lacks this, the controller waits for these nodes, no matter which id it has.
func TestAControllerOfThisEpochWaitsForNoSilentNode(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.node("n1", nil, nil)
	c.farm("f1")
	ordered := func(r *rc.RC) { r.ReplicaGroups[0].Ordered = true }
	young, old := store.NewID(), store.NewID()
	c.apply("first", testManifest("db", 0), ordered)
	c.converged("first", 1)
	silent, err := json.Marshal(node.Node{Name: "silent", Epoch: "another", ConsulNode: "gone", Address: "127.0.0.1"})
	if err != nil {
		t.Fatal(err)
	}
	c.put(c.store.Keys().Nodes.Key("silent"), silent)
	c.apply(young, testManifest("db", 0), ordered)
	c.converged(young, 1)
	c.apply(old, testManifest("db", 0), func(r *rc.RC) { ordered(r); r.Disabled = true })
	c.apply(old, testManifest("db", 0), func(r *rc.RC) { ordered(r); r.Disabled, r.MadeIn = false, "" })
	c.awaits(old, "silent may run it, and has not said what it runs")
}
