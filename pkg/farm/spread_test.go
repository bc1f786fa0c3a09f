package farm_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/rcfarm/rcfarm/pkg/consultest"
	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// racks starts nodes by rack, "" for none, and waits for them.
func (c *cluster) racks(sizes map[string]int) (stop map[string]func()) {
	c.t.Helper()
	stop = map[string]func(){}
	for rack, size := range sizes {
		for i := range size {
			name, labels := fmt.Sprintf("%s%d", rack, i), map[string]string{"rack": rack}
			if rack == "" {
				name, labels = fmt.Sprintf("none%d", i), nil
			}
			stop[name] = c.node(name, labels, nil)
		}
	}
	for name := range stop {
		consultest.Eventually(c.t, soon, func() error {
			_, err := c.store.Nodes.Get(c.t.Context(), store.Consistent, name)
			return err
		})
	}
	return stop
}

// placedIn returns, by rack, the nodes on which a controller's pods are placed.
func (c *cluster) placedIn(id string) map[string][]string {
	c.t.Helper()
	recs, corrupt, err := c.store.Pods.List(c.t.Context(), store.Consistent, id)
	if err = errors.Join(append(corrupt, err)...); err != nil {
		c.t.Fatal(err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	on := map[string][]string{}
	for _, r := range recs {
		rack := c.nodes[r.Value.Node].Record.Labels["rack"]
		on[rack] = append(on[rack], r.Value.Node)
	}
	return on
}

// evenly checks how many pods the racks a, b and c have, in ascending order.
func (c *cluster) evenly(id string, want ...int) {
	c.t.Helper()
	on := c.placedIn(id)
	got := []int{len(on["a"]), len(on["b"]), len(on["c"])}
	if slices.Sort(got); !slices.Equal(got, want) || len(on[""]) > 0 {
		c.t.Errorf("pods of %s are on %v; want %v in the racks, in some order, and none elsewhere", id, on, want)
	}
}

func overRacks(n int) func(*rc.RC) {
	return func(r *rc.RC) {
		replicas(n)(r)
		r.Spread, r.NodeLoss = rc.Spread{Label: "rack"}, rc.NodeLoss{UnmanagedAfter: new(field.Duration)}
	}
}

// Two farms place several controllers concurrently, on racks of different sizes. Each pass tries the only node of rack
// a.
func TestPodsAreSpreadOverRacks(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.racks(map[string]int{"a": 1, "b": 3, "c": 5, "": 3})
	c.farm("f1")
	c.farm("f2")
	const rcs = 3 // rack a has 10 slots
	for _, step := range []struct {
		pods int
		each []int
	}{{4, []int{1, 1, 2}}, {7, []int{2, 2, 3}}, {9, []int{3, 3, 3}}} {
		for i := range rcs {
			c.apply(fmt.Sprintf("web%d", i), testManifest("web", 0), overRacks(step.pods))
		}
		for i := range rcs {
			c.converged(fmt.Sprintf("web%d", i), step.pods)
			c.evenly(fmt.Sprintf("web%d", i), step.each...)
		}
	}
}

// Pods of lost or drained nodes go to the rack with the fewest remaining pods, which is the rack that they were in.
func TestReplacementsGoToTheEmptiestRack(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	stop := c.racks(map[string]int{"a": 3, "b": 3, "c": 3, "": 1})
	c.farm("f1")
	c.apply("web", testManifest("web", 0), overRacks(6))
	c.converged("web", 6)
	c.evenly("web", 2, 2, 2)
	left := func(name string) func() error {
		return func() error {
			for _, names := range c.placedIn("web") {
				if slices.Contains(names, name) {
					return fmt.Errorf("a pod is on %s still", name)
				}
			}
			return nil
		}
	}
	for _, rack := range []string{"a", "b", "c"} {
		lost := c.placedIn("web")[rack][0]
		stop[lost]()
		consultest.Eventually(t, soon, left(lost))
		c.evenly("web", 2, 2, 2)
	}
	for _, rack := range []string{"a", "b", "c"} { // two nodes are left of each, with a pod each
		drained := c.placedIn("web")[rack][0]
		c.drain(drained, true)
		consultest.Eventually(t, soon, left(drained))
		c.evenly("web", 2, 2, 2)
	}
}

// A rack without capacity is skipped, and nodes without a rack are the last choice. When racks have capacity again,
// they are preferred.
func TestNodesWithoutARackAreTheLastResort(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.racks(map[string]int{"a": 1, "b": 3, "": 2})
	c.farm("f1")
	one := func(n int) func(*rc.RC) {
		return func(r *rc.RC) {
			overRacks(n)(r)
			r.MaxPerNode = 1
		}
	}
	c.apply("web", testManifest("web", 0), one(4))
	c.converged("web", 4)
	c.evenly("web", 0, 1, 3)
	c.apply("web", testManifest("web", 0), one(5))
	c.converged("web", 5)
	if on := c.placedIn("web"); len(on[""]) != 1 || len(on["a"]) != 1 || len(on["b"]) != 3 {
		t.Errorf("pods are on %v, want one on each node of a rack and one elsewhere", on)
	}
	c.racks(map[string]int{"c": 2})
	c.apply("seen", testManifest("seen", 0), func(r *rc.RC) { r.NodeSelector = "rack=c" })
	c.converged("seen", 1) // the farm has seen the nodes
	c.apply("web", testManifest("web", 0), one(6))
	c.converged("web", 6)
	if on := c.placedIn("web"); len(on["c"]) != 1 {
		t.Errorf("pods are on %v, want one in rack c", on)
	}
}
