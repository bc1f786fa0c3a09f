package farm_test

import (
	"testing"

	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/scheduler"
)

// A required skew is held by placing and by moving: pods wait that would exceed it, and the status says why.
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

// Pods gather where they prefer to be, and go elsewhere when there is no more room.
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
