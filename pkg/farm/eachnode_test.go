package farm_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/rcfarm/rcfarm/integration/simnode"
	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/consultest"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/scheduler"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// onEach puts a controller into each-node mode, on the nodes of a pool.
func onEach(pool string) func(*rc.RC) {
	return func(r *rc.RC) { r.Mode, r.ReplicaGroups, r.NodeSelector = rc.EachNode, nil, "pool="+pool }
}

// where returns the index of the pod on each node.
func (c *cluster) where(id string) map[string]int {
	c.t.Helper()
	recs, corrupt, err := c.store.Pods.List(c.t.Context(), store.Consistent, id)
	if err != nil || len(corrupt) > 0 {
		c.t.Fatal(err, corrupt)
	}
	on := map[string]int{}
	for _, r := range recs {
		on[r.Value.Node] = r.Value.Identity.Index
	}
	return on
}

// Each node of the pool has its pod after nodes join, leave, die and come back. No other node has a pod.
func TestAPodOnEachNode(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	stop := map[string]func(){}
	for i, pool := range []string{"a", "a", "a", "b"} {
		name := fmt.Sprintf("n%d", i)
		stop[name] = c.node(name, map[string]string{"pool": pool}, nil)
	}
	c.farm("f1")
	c.apply("agent", testManifest("agent", 8080), onEach("a"))
	c.converged("agent", 3)
	first := c.where("agent")

	c.node("n4", map[string]string{"pool": "a"}, nil)
	c.converged("agent", 4)
	c.relabel("n3", "pool", "a")
	c.converged("agent", 5)
	after := c.where("agent")
	for name, index := range first {
		if after[name] != index {
			t.Errorf("the pod of %s was %d and is %d", name, index, after[name])
		}
	}
	if after["n4"] != 3 || after["n3"] != 4 {
		t.Errorf("new nodes have %v", after)
	}

	c.relabel("n0", "pool", "b")
	c.converged("agent", 4)
	c.drain("n1", true)
	c.converged("agent", 3)
	c.drain("n1", false)
	c.converged("agent", 4)

	stop["n2"]()
	c.lockedIs("n2", false)
	c.apply("agent", testManifest("agent", 8081), onEach("a"))
	c.statusOf("agent", func(st *rc.Status) bool {
		return st.Lost+st.Unmanaged == 1 && st.UpdatedAvailable == 3 && st.Desired == 4
	})
	if on := c.where("agent"); len(on) != 4 || on["n2"] != first["n2"] {
		t.Errorf("without n2 the pods are on %v", on)
	}
	c.node("n2", nil, nil)
	c.converged("agent", 4)
	if on := c.where("agent"); on["n2"] != first["n2"] {
		t.Errorf("n2 is back, and its pod is %d, not %d", on["n2"], first["n2"])
	}

	c.apply("agent", testManifest("agent", 8081), onEach("none"))
	c.condition("agent", rc.Misplaced, true, "no node matches")
	if got := c.running("agent"); len(got) != 4 {
		t.Errorf("after a slip of the selector %v run", got)
	}
	c.apply("agent", testManifest("agent", 8081), func(r *rc.RC) { r.AllowMassStop = r.Generation })
	c.converged("agent", 0)
}

// If an operators' record with a label becomes unreadable, the pod on that node is kept (P4).
func TestAPodStaysWhereLabelsCannotBeRead(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.node("n0", nil, nil)
	c.node("n1", map[string]string{"pool": "a"}, nil)
	c.relabel("n0", "pool", "a")
	c.farm("f1")
	c.apply("agent", testManifest("agent", 8080), onEach("a"))
	c.converged("agent", 2)
	if _, err := c.client.Commit(t.Context(),
		[]consul.Op{consul.Set(c.store.Keys().NodeOps.Key("n0"), []byte("{"))}); err != nil {
		t.Fatal(err)
	}
	c.node("n2", map[string]string{"pool": "a"}, nil)
	c.converged("agent", 3)
	if on := c.where("agent"); len(on) != 3 {
		t.Errorf("the pods are on %v", on)
	}
}

// A farm that starts while operators' records are unreadable does not know the labels in them. It keeps the pods on
// these nodes, even if the nodes' own labels do not match, and places no pod there. The status reports this until the
// record can be read again or is gone (P4).
func TestAFarmThatStartsWithUnreadableNodeOps(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.node("n0", nil, nil)
	c.node("n1", map[string]string{"pool": "a", "home": "web"}, nil)
	c.node("n2", map[string]string{"pool": "a"}, nil)
	c.relabel("n0", "pool", "a")
	c.operate("n2", func(ops *node.Ops) { ops.Unschedulable = true })
	stop := c.farm("f1")
	c.apply("agent", testManifest("agent", 8080), onEach("a"))
	c.apply("web", testManifest("web", 0), func(r *rc.RC) { r.NodeSelector = "home=web" })
	c.converged("agent", 2)
	c.converged("web", 1)
	c.apply("moved", testManifest("moved", 0), func(r *rc.RC) {
		r.NodeSelector = "pool=a"
		two := 2
		r.MaxPerNode, r.ReplicaGroups[0].Count = 1, &two
	})
	c.converged("moved", 2)
	stop()
	k := c.store.Keys()
	labelled := c.spoil(k.NodeOps.Key("n0"))
	c.spoil(k.NodeOps.Key("n2"))
	c.farm("f2")
	c.node("n3", map[string]string{"pool": "a"}, nil)
	c.apply("web", testManifest("web", 0), replicas(4)) // on any node whose operators' record can be read
	c.condition("moved", rc.Unreadable, true, k.NodeOps.Key("n0"))
	c.condition("agent", rc.Unreadable, true, k.NodeOps.Key("n0"))
	c.condition("agent", rc.Unreadable, true, k.NodeOps.Key("n2"))
	c.converged("web", 4)
	consultest.Eventually(t, soon, func() error { // n3 is new
		if on := c.where("agent"); len(on) != 3 {
			return fmt.Errorf("the pods of agent are on %v", on)
		}
		return nil
	})
	stays := func() {
		t.Helper()
		if on := c.where("agent"); len(on) != 3 || slices.Contains(slices.Collect(maps.Keys(on)), "n2") {
			t.Errorf("the pods of agent are on %v", on)
		}
		if on := c.onNodes("moved"); on["n0"] != 1 || on["n1"] != 1 {
			t.Errorf("the pods of moved are on %v", on)
		}
		if on := c.onNodes("web"); on["n0"]+on["n2"] > 0 {
			t.Errorf("the pods of web are on %v", on)
		}
	}
	stays()
	c.put(k.NodeOps.Key("n0"), labelled)
	c.condition("moved", rc.Unreadable, false, "")
	stays()
	if _, err := c.client.Commit(t.Context(), []consul.Op{consul.Delete(k.NodeOps.Key("n2"))}); err != nil {
		t.Fatal(err)
	}
	c.condition("agent", rc.Unreadable, false, "")
	c.converged("agent", 4)
}

// The status names a node that has no capacity for its pod, and the reason. When the node has capacity, it gets the
// pod.
func TestANodeWithoutCapacityForItsPod(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	for i := range 3 {
		c.node(fmt.Sprintf("n%d", i), map[string]string{"pool": "a", "name": fmt.Sprintf("n%d", i)}, nil)
	}
	c.farm("f1")
	c.apply("web", testManifest("web", 8080), func(r *rc.RC) { r.NodeSelector = "name=n1" })
	c.converged("web", 1)
	c.apply("agent", testManifest("agent", 8080), onEach("a"))
	c.condition("agent", rc.InsufficientNodes, true,
		"1 of 3 replicas have no node; of 3 nodes, "+rc.TakeNone+string(scheduler.Ports)+": 1")
	if on := c.where("agent"); len(on) != 2 {
		t.Errorf("the pods are on %v", on)
	}
	c.apply("web", testManifest("web", 8080), replicas(0))
	c.converged("agent", 3)
}

// A thousand nodes get their pods, and one more when it joins.
func TestAPodOnEachOfAThousandNodes(t *testing.T) {
	t.Parallel()
	const nodes = 1000
	c := newCluster(t)
	label := func(_ int, n *node.Node) { n.Labels = map[string]string{"pool": "a"} }
	for _, f := range []simnode.Fleet{{Name: "many", Size: nodes}, {Name: "others", Size: 20}} {
		if f.TTL = ttl; f.Size == nodes {
			f.Prepare = label
		}
		f.Client, f.Store = c.connect()
		ready := make(chan struct{})
		f.OnReady = func() { close(ready) }
		c.background(func(ctx context.Context) error { return f.Run(ctx) })
		<-ready
	}
	c.farm("f1")
	c.apply("agent", testManifest("agent", 8080), onEach("a"))
	all := func(want int) {
		t.Helper()
		consultest.Eventually(t, 2*time.Minute, func() error {
			st, err := c.store.Statuses.Get(t.Context(), store.Default, "agent")
			if err == nil && (!st.Value.Is(rc.Converged) || st.Value.Desired != want || st.Value.Available != want) {
				err = fmt.Errorf("%s", mustJSON(t, st.Value))
			}
			return err
		})
	}
	all(nodes)
	c.node("more", map[string]string{"pool": "a"}, nil)
	all(nodes + 1)
	recs, _, err := c.store.Pods.List(t.Context(), store.Consistent, "agent")
	on, indices := map[string]bool{}, map[pod.Identity]bool{}
	for _, r := range recs {
		on[r.Value.Node], indices[r.Value.Identity] = true, true
	}
	if diff := cmp.Diff([]int{nodes + 1, nodes + 1, nodes + 1}, []int{len(recs), len(on), len(indices)}); diff != "" ||
		err != nil {
		t.Errorf("%v: placements, nodes, identities:\n%s", err, diff)
	}
}

// An outside scheduler leaves out some of the nodes that should have a pod. These nodes get no pod, and each of the
// others gets one. It does not matter in which order the scheduler names the nodes.
func TestAPodOnEachNodeThatASchedulerNames(t *testing.T) {
	t.Parallel()
	booked := newKeeper()
	booked.eligible = []string{"n3", "n1", "n0"}
	for name, k := range map[string]scheduler.Scheduler{
		"without books": ordered{names: booked.eligible},
		"with books":    booked,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			for _, name := range []string{"n0", "n1", "n2"} {
				c.node(name, map[string]string{"pool": "a"}, nil)
			}
			c.bookedFarm("f1", k, &recorder{}, &faulty{})
			c.apply("agent", testManifest("agent", 8080), onEach("a"))
			c.condition("agent", rc.InsufficientNodes, true, "1 of 3 replicas have no node")
			c.statusOf("agent", func(st *rc.Status) bool { return st.Available == 2 })
			c.node("n3", map[string]string{"pool": "a"}, nil)
			c.statusOf("agent", func(st *rc.Status) bool { return st.Desired == 4 && st.Available == 3 })
			want := []string{"n0", "n1", "n3"}
			if got := slices.Sorted(maps.Keys(c.where("agent"))); !slices.Equal(got, want) {
				t.Errorf("it is on %v, want %v", got, want)
			}
		})
	}
}
