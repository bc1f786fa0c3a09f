package placement_test

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/rcfarm/rcfarm/pkg/farm/placement"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/scheduler"
)

// Assign never exceeds the maximum skew that is required, and places every pod that it can.
func TestAssignNeverExceedsTheMaximumSkew(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		nodes, reservations, before := map[string]*node.View{}, map[string]node.Reservation{}, map[string]int{}
		var order []string
		for i := range rapid.IntRange(1, 12).Draw(t, "nodes") {
			name := fmt.Sprintf("n%d", i)
			rack := rapid.SampledFrom([]string{"", "a", "b", "c"}).Draw(t, "rack")
			nodes[name] = racked(name, rack, rapid.IntRange(0, 3).Draw(t, "slots"))
			reservations[name] = node.Reservation{}
			order = append(order, name)
		}
		skew := rapid.IntRange(1, 3).Draw(t, "skew")
		tally := scheduler.NewTally("rack", skew, scheduler.GroupsOf(nodes, order, "rack"))
		for _, rack := range []string{"a", "b", "c"} {
			before[rack] = rapid.IntRange(0, 3).Draw(t, "before")
			tally.Add(rack, before[rack])
		}
		r := placement.Request{
			Order: order, Spread: "rack", PerGroup: before, Tally: tally,
			Nodes: nodes, Reservations: reservations, PerNode: map[string]int{},
		}
		for i := range rapid.IntRange(1, 12).Draw(t, "pods") {
			r.Pods = append(r.Pods, pod.Identity{RCID: "rc", Role: "main", Index: i})
		}
		assigned, refused := placement.Assign(r)
		there, on := tally.Clone(), map[string]int{}
		for _, a := range assigned {
			if there.Refuses(nodes[a.Node]) {
				t.Fatalf("%s goes to %s in rack %q, which exceeds a skew of %d; pods before %v, assigned %v",
					a.Pod, a.Node, nodes[a.Node].Labels["rack"], skew, before, assigned)
			}
			there.Add(nodes[a.Node].Labels["rack"], 1)
			on[a.Node]++
		}
		if len(assigned) == len(r.Pods) {
			return
		}
		for name, v := range nodes {
			if on[name] < v.Capacity.Slots && !there.Refuses(v) {
				t.Fatalf("%s has a free slot, and %d pods got no node: %v; assigned %v, pods before %v",
					name, len(r.Pods)-len(assigned), refused, assigned, before)
			}
		}
	})
}

// The preferences of a controller come before how full nodes are. With pack the fullest node comes first.
func TestPreferredNodesComeFirst(t *testing.T) {
	t.Parallel()
	nodes, reservations := map[string]*node.View{}, map[string]node.Reservation{}
	for name, taken := range map[string]int{"full": 2, "half": 1, "empty": 0, "best": 2} {
		nodes[name] = racked(name, name, 3)
		reservations[name] = node.Reservation{Claims: map[string]node.Claim{}}
		for i := range taken {
			id := pod.Identity{RCID: "other", Role: "main", Index: i}
			reservations[name].Claims[id.String()] = node.NewClaim(id, nil, 0, 0)
		}
	}
	var prefers scheduler.Preferences
	for selector, weight := range map[string]int{"rack in (best,half)": 10, "rack=best": 1} {
		if err := prefers.Prefer(selector, weight); err != nil {
			t.Fatal(err)
		}
	}
	for name, c := range map[string]struct {
		change func(*placement.Request)
		want   []string
	}{
		"neither": {func(*placement.Request) {}, []string{"empty", "half", "best", "full"}},
		"preferences": {
			func(r *placement.Request) { r.Preferences = prefers }, []string{"best", "half", "half", "empty"},
		},
		"packed": {func(r *placement.Request) { r.Pack = true }, []string{"best", "full", "half", "half"}},
		"both": {
			func(r *placement.Request) { r.Preferences, r.Pack = prefers, true },
			[]string{"best", "half", "half", "full"},
		},
		"own pods": {
			func(r *placement.Request) { r.Pack, r.PerNode = true, map[string]int{"empty": 1} },
			[]string{"empty", "empty", "empty", "best"},
		},
	} {
		r := placement.Request{
			Order: []string{"best", "empty", "full", "half"},
			Nodes: nodes, Reservations: reservations, PerNode: map[string]int{},
		}
		for i := range 4 {
			r.Pods = append(r.Pods, pod.Identity{RCID: "rc", Role: "main", Index: i})
		}
		c.change(&r)
		assigned, _ := placement.Assign(r)
		var got []string
		for _, a := range assigned {
			got = append(got, a.Node)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}
