package farm_test

import (
	"testing"

	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/scheduler"
)

// A required skew is kept by placing and by moving. Pods that would exceed it wait, and the status has the reason.
func TestARequiredSkewIsHeld(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.racks(map[string]int{"a": 3, "b": 3, "c": 1, "": 2})
	c.farm("f1")
	c.apply("web", testManifest("web", 8080), func(r *rc.RC) {
		nine := 9
		r.Spread, r.ReplicaGroups[0].Count = rc.Spread{Label: "rack", When: rc.Require}, &nine
	})
	c.condition("web", rc.InsufficientNodes, true, "4 of 9 replicas have no node")
	c.condition("web", rc.InsufficientNodes, true, string(scheduler.Skew)+": ")
	c.evenly("web", 1, 2, 2)
	c.node("c1", map[string]string{"rack": "c"}, nil)
	c.condition("web", rc.InsufficientNodes, true, "1 of 9 replicas have no node")
	c.evenly("web", 2, 3, 3)
	c.apply("web", testManifest("web", 8080), replicas(6))
	c.converged("web", 6)
}

// Pods are placed on the nodes that they prefer, and elsewhere when these are full.
func TestPodsPreferNodes(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.racks(map[string]int{"a": 3, "b": 3})
	c.farm("f1")
	c.apply("web", testManifest("web", 8080), func(r *rc.RC) {
		four := 4
		r.Affinity, r.ReplicaGroups[0].Count = []rc.Preference{{Selector: "rack=b", Weight: 5}}, &four
	})
	c.converged("web", 4)
	c.evenly("web", 0, 1, 3)
	c.apply("packed", testManifest("packed", 0), func(r *rc.RC) {
		four := 4
		r.Placing, r.ReplicaGroups[0].Count = rc.PlacePack, &four
	})
	c.converged("packed", 4)
	if on := c.onNodes("packed"); len(on) != 1 {
		t.Errorf("packed pods are on %v", on)
	}
}

// near makes a group of replicas that prefer rack a.
func near(role string, n int) rc.ReplicaGroup {
	return rc.ReplicaGroup{Role: role, Count: &n, Affinity: []rc.Preference{{Selector: "rack=a", Weight: 5}}}
}

// A group's own spread counts only the pods of the group. Pods of another group, all in one rack, do not keep this
// group off that rack. The controller's spread counts all pods.
func TestASpreadOfAGroupCountsItsPods(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.racks(map[string]int{"a": 2, "b": 2, "c": 2})
	c.farm("f1")
	required, three, five := rc.Spread{Label: "rack", When: rc.Require}, 3, 5
	c.apply("own", testManifest("own", 0), func(r *rc.RC) {
		r.ReplicaGroups = []rc.ReplicaGroup{near("near", 6), {Role: "even", Count: &three, Spread: required}}
	})
	c.converged("own", 9)
	c.evenly("own", 1, 1, 7)
	bulk := near("near", 3)
	bulk.Spread = rc.Spread{Label: "disk"}
	c.apply("all", testManifest("all", 0), func(r *rc.RC) {
		r.Spread, r.ReplicaGroups = required, []rc.ReplicaGroup{bulk, {Role: "rest", Count: &five}}
	})
	c.converged("all", 8)
	c.evenly("all", 2, 3, 3)
	if on := c.placedIn("all"); len(on["a"]) != 3 {
		t.Errorf("pods are on %v", on)
	}
}

// The required skew of a group is kept although the controller has none. A group may pack while the others are spread.
// A group that waits does not delay the others.
func TestPlacementPreferencesOfGroupsHold(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.racks(map[string]int{"a": 3, "b": 1})
	c.farm("f1")
	one, three, four := 1, 3, 4
	m := testManifest("web", 0)
	c.apply("web", m, func(r *rc.RC) {
		r.ReplicaGroups = []rc.ReplicaGroup{
			{Role: "held", Count: &three, Spread: rc.Spread{Label: "zone", When: rc.Require}}, // no node has that label
			{Role: "packed", Count: &four, Placing: rc.PlacePack}, {Role: "one", Count: &one},
		}
	})
	c.condition("web", rc.InsufficientNodes, true, "3 of 8 replicas have no node")
	c.condition("web", rc.InsufficientNodes, true, string(scheduler.Skew)+": 4")
	if on := c.onNodes("web"); len(on) != 2 {
		t.Errorf("four packed pods and one more are on %v", on)
	}
}
