package placement_test

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/rcfarm/rcfarm/pkg/farm/placement"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/scheduler"
)

// racked returns a node in a rack. If the rack is empty, the node has no such label.
func racked(name, rack string, slots int) *node.View {
	v := &node.View{Node: node.Node{Name: name, Capacity: node.Capacity{Slots: slots}}, Alive: true}
	if rack != "" {
		v.Labels = map[string]string{"rack": rack}
	}
	return v
}

// perRack counts pods by rack: the pods before and the assigned pods.
func perRack(assigned []placement.Assignment, nodes map[string]*node.View, before map[string]int) map[string]int {
	count := maps.Clone(before)
	if count == nil {
		count = map[string]int{}
	}
	for _, a := range assigned {
		count[nodes[a.Node].Labels["rack"]]++
	}
	return count
}

// If all racks have the same capacity, the numbers of their pods differ by at most one.
func TestAssignSpreadsEvenlyOverGroups(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		racks, each := rapid.IntRange(1, 6).Draw(t, "racks"), rapid.IntRange(1, 4).Draw(t, "nodes of a rack")
		slots := rapid.IntRange(1, 4).Draw(t, "slots")
		limit := rapid.IntRange(0, 4).Draw(t, "max per node")
		nodes, reservations, claims := map[string]*node.View{}, map[string]node.Reservation{}, map[string]node.Claim{}
		for i := range rapid.IntRange(0, slots-1).Draw(t, "slots that others have on each node") {
			claims[identity("other", i).String()] = node.Claim{}
		}
		for i := range racks * each {
			name := fmt.Sprintf("n%d", i)
			nodes[name] = racked(name, fmt.Sprintf("r%d", i%racks), slots)
			reservations[name] = node.Reservation{Claims: claims}
		}
		req := placement.Request{
			Order:  rapid.Permutation(slices.Sorted(maps.Keys(nodes))).Draw(t, "order"),
			Spread: "rack", MaxPerNode: limit, Nodes: nodes, Reservations: reservations,
		}
		free := slots - len(claims)
		if limit > 0 {
			free = min(free, limit)
		}
		for i := range rapid.IntRange(0, racks*each*slots+2).Draw(t, "pods") {
			req.Pods = append(req.Pods, identity("rc", i))
		}
		assigned, _ := placement.Assign(req)
		if want := min(len(req.Pods), racks*each*free); len(assigned) != want {
			t.Fatalf("assigned %d pods, the nodes can take %d of %d", len(assigned), want, len(req.Pods))
		}
		count := perRack(assigned, nodes, nil)
		for i := range racks {
			rack := fmt.Sprintf("r%d", i)
			if n, least := count[rack], len(assigned)/racks; n != least && n != least+1 {
				t.Fatalf("%s has %d of %d pods on %d racks: %v", rack, n, len(assigned), racks, count)
			}
		}
	})
}

// Racks differ in capacity and have pods before. Each pod goes to the rack with the fewest pods among the racks that
// take it. If no rack takes the pod, it goes to a node without a rack. If no such node takes it either, it gets no
// node.
func TestAssignPrefersTheEmptiestGroupWithCapacity(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		racks := []string{"", "a", "b", "c"}
		nodes, reservations := map[string]*node.View{}, map[string]node.Reservation{}
		req := placement.Request{
			Spread: "rack", Nodes: nodes, Reservations: reservations, MaxPerNode: rapid.IntRange(0, 3).Draw(t, "max"),
			PerGroup: map[string]int{}, PerNode: map[string]int{}, Reluctant: map[string]bool{},
			Avoid: map[pod.Identity][]string{},
		}
		for _, rack := range racks {
			req.PerGroup[rack] = rapid.IntRange(0, 3).Draw(t, "pods before")
		}
		for i := range rapid.IntRange(0, 8).Draw(t, "nodes") {
			name := fmt.Sprintf("n%d", i)
			nodes[name] = racked(name, rapid.SampledFrom(racks).Draw(t, "rack"), rapid.IntRange(1, 4).Draw(t, "slots"))
			res := node.Reservation{
				Ineligible: rapid.IntRange(0, 9).Draw(t, "ineligible") == 0, Claims: map[string]node.Claim{},
			}
			for j := range rapid.IntRange(0, 2).Draw(t, "held") {
				res.Claims[identity("other", j).String()] = node.Claim{}
			}
			reservations[name] = res
			req.PerNode[name] = rapid.IntRange(0, 2).Draw(t, "mine")
			req.Reluctant[name] = rapid.Bool().Draw(t, "reluctant")
			req.Order = append(req.Order, name)
		}
		for i := range rapid.IntRange(0, 20).Draw(t, "pods") {
			id := identity("rc", i)
			req.Pods = append(req.Pods, id)
			if len(req.Order) > 0 && rapid.IntRange(0, 4).Draw(t, "moves") == 0 {
				req.Avoid[id] = []string{rapid.SampledFrom(req.Order).Draw(t, "from")}
			}
		}
		before := maps.Clone(req.PerGroup)
		assigned, _ := placement.Assign(req)
		if !maps.Equal(before, req.PerGroup) {
			t.Fatalf("Assign changed PerGroup from %v to %v", before, req.PerGroup)
		}
		on := map[pod.Identity]string{}
		for _, a := range assigned {
			on[a.Pod] = a.Node
		}
		perNode, perGroup, taken := maps.Clone(req.PerNode), maps.Clone(req.PerGroup), map[string]node.Reservation{}
		for name, res := range reservations {
			taken[name] = res.Clone()
		}
		for _, id := range req.Pods {
			takes := func(name string) bool {
				return !slices.Contains(req.Avoid[id], name) &&
					(req.MaxPerNode == 0 || perNode[name] < req.MaxPerNode) &&
					scheduler.Fits(nodes[name], taken[name], id, node.Claim{}) == ""
			}
			best, found := 0, false
			for _, name := range req.Order {
				if worth := worthOf(nodes[name], perGroup); takes(name) && (!found || worth < best) {
					best, found = worth, true
				}
			}
			name, placed := on[id]
			switch {
			case placed != found:
				t.Fatalf("%s: assigned: %v; some node takes it: %v", id, placed, found)
			case !placed:
				continue
			case !takes(name):
				t.Fatalf("%s was assigned to %s, which does not take it", id, name)
			case worthOf(nodes[name], perGroup) != best:
				t.Fatalf("%s was assigned to %s in rack %q; the pods of the racks are %v",
					id, name, nodes[name].Labels["rack"], perGroup)
			}
			perNode[name]++
			perGroup[nodes[name].Labels["rack"]]++
			taken[name].Claims[id.String()] = node.Claim{}
		}
	})
}

// worthOf returns how many pods the node's rack has. Without a rack it returns more than any rack has.
func worthOf(v *node.View, pods map[string]int) int {
	if v.Labels["rack"] == "" {
		return 1000
	}
	return pods[v.Labels["rack"]]
}

// In a rack the emptiest node comes first. An operator's label overrides the node's, and an empty value is no label.
func TestAssignRanksWithinAGroup(t *testing.T) {
	t.Parallel()
	nodes := map[string]*node.View{
		"a1": racked("a1", "a", 9), "a2": racked("a2", "a", 9), "b1": racked("b1", "b", 9),
		"none": racked("none", "", 9), "empty": racked("empty", "a", 9),
	}
	nodes["b1"].Labels["rack"], nodes["b1"].Ops.Labels = "a", map[string]string{"rack": "b"}
	nodes["empty"].Ops.Labels = map[string]string{"rack": ""}
	busy := node.Reservation{Claims: map[string]node.Claim{"x": {}}}
	assigned, _ := placement.Assign(placement.Request{
		Pods:  []pod.Identity{identity("rc", 0), identity("rc", 1), identity("rc", 2)},
		Order: []string{"none", "empty", "a1", "a2", "b1"}, Spread: "rack", PerGroup: map[string]int{"b": 1, "c": 0},
		Nodes: nodes, Reservations: map[string]node.Reservation{"a1": busy, "b1": busy},
	})
	var on []string
	for _, a := range assigned {
		on = append(on, a.Node)
	}
	if want := []string{"a2", "a1", "b1"}; !slices.Equal(on, want) {
		t.Errorf("pods are on %v, want %v", on, want)
	}
}

// Spread yields every usable node once. Levels never go down and follow from the nodes before. Better nodes come before
// others of their group and of their level, then nodes with fewer pods, then nodes of First. The same seed gives the
// same order.
func TestSpreadOrder(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		nodes, pods, perNode := map[string]*node.View{}, map[string]int{}, map[string]int{}
		var first, rest, usable []string
		isRest := map[string]bool{}
		for i := range rapid.IntRange(0, 40).Draw(t, "nodes") {
			name := fmt.Sprintf("n%d", i)
			nodes[name] = racked(name, rapid.SampledFrom([]string{"", "a", "b", "c", "d"}).Draw(t, "rack"), 1)
			if isRest[name] = rapid.Bool().Draw(t, "rest"); isRest[name] {
				rest = append(rest, name)
			} else {
				first = append(first, name)
			}
			if rapid.IntRange(0, 3).Draw(t, "usable") > 0 {
				usable = append(usable, name)
			}
		}
		if rapid.Bool().Draw(t, "has pods") {
			for name, v := range nodes {
				perNode[name] = rapid.IntRange(0, 2).Draw(t, "on it")
				pods[v.Labels["rack"]] += perNode[name]
			}
		}
		better := map[string]bool{}
		for name := range nodes {
			better[name] = rapid.IntRange(0, 2).Draw(t, "better") > 0
		}
		isUsable := func(name string) bool { return slices.Contains(usable, name) }
		isBetter := func(name string) bool { return better[name] }
		seed := rapid.Uint64().Draw(t, "seed")
		s := placement.NewSpread(groupBy(nodes, "rack", first, rest), pods, perNode, seed)
		if s.Len() != len(nodes) {
			t.Fatalf("%d nodes, of %d", s.Len(), len(nodes))
		}
		var got []string
		last, poor, turn := -1, false, maps.Clone(pods)
		latest := map[string]string{} // by rack
		for name, level := range s.Usable(isUsable, isBetter) {
			rack := nodes[name].Labels["rack"]
			if level < last || rack != "" && level != turn[rack] || (rack == "") != (level > len(nodes)*3) {
				t.Fatalf("%s in rack %q has level %d after level %d; pods by rack: %v", name, rack, level, last, turn)
			}
			before := latest[rack]
			switch {
			case before == "":
			case better[before] != better[name]:
				if better[name] {
					t.Fatalf("%s comes before %s of the same rack, which is better", before, name)
				}
			case perNode[before] > perNode[name],
				perNode[before] == perNode[name] && isRest[before] && !isRest[name]:
				t.Fatalf("%s comes before %s of the same rack", before, name)
			}
			if level == last && better[name] && poor {
				t.Fatalf("%s is better and comes after another node of level %d that is not", name, level)
			}
			poor, last, latest[rack] = !better[name], level, name
			turn[rack]++
			got = append(got, name)
		}
		var again []string
		other := placement.NewSpread(groupBy(nodes, "rack", first, rest), pods, perNode, seed)
		for name := range other.Usable(isUsable, isBetter) {
			again = append(again, name)
		}
		if !slices.Equal(got, again) {
			t.Fatalf("seed %d gives two orders", seed)
		}
		if slices.Sort(got); !slices.Equal(got, slices.Sorted(slices.Values(usable))) {
			t.Fatalf("the order has the nodes %v, want the usable ones %v", got, usable)
		}
	})
}

func all(string) bool { return true }

// Farms with different seeds do not all begin with the same rack.
func TestSpreadBeginsWithAnyRack(t *testing.T) {
	t.Parallel()
	nodes := map[string]*node.View{}
	for i := range 16 {
		name := fmt.Sprintf("n%d", i)
		nodes[name] = racked(name, string("abcd"[i%4]), 1)
	}
	groups := groupBy(nodes, "rack", slices.Sorted(maps.Keys(nodes)), nil)
	begins := map[string]int{}
	for seed := range uint64(400) {
		for name := range placement.NewSpread(groups, nil, nil, seed).Usable(all, all) {
			begins[nodes[name].Labels["rack"]]++
			break
		}
	}
	for _, rack := range []string{"a", "b", "c", "d"} {
		if begins[rack] < 50 {
			t.Errorf("%s comes first %d times of 400: %v", rack, begins[rack], begins)
		}
	}
}

// groupBy groups nodes by their value of a label, in the order of the values.
func groupBy(nodes map[string]*node.View, label string, first, rest []string) []scheduler.Group {
	byValue := map[string]*scheduler.Group{}
	group := func(name string) *scheduler.Group {
		value := scheduler.GroupOf(nodes[name], label)
		if byValue[value] == nil {
			byValue[value] = &scheduler.Group{Value: value}
		}
		return byValue[value]
	}
	for _, name := range first {
		g := group(name)
		g.First = append(g.First, name)
	}
	for _, name := range rest {
		g := group(name)
		g.Rest = append(g.Rest, name)
	}
	groups := make([]scheduler.Group, 0, len(byValue))
	for _, g := range byValue {
		groups = append(groups, *g)
	}
	slices.SortFunc(groups, func(a, b scheduler.Group) int { return cmp.Compare(a.Value, b.Value) })
	return groups
}

// In a group the nodes of First come before those of Rest, both in the order of a walk with the same seed.
func TestUsableWalksAGroup(t *testing.T) {
	t.Parallel()
	first, rest := []string{"a", "b", "c"}, []string{"d", "e", "f", "g", "h"}
	always := func(string) bool { return true }
	for seed := range uint64(50) {
		spread := placement.NewSpread([]scheduler.Group{{Value: "r1", First: first, Rest: rest}}, nil, nil, seed)
		var got []string
		for name := range spread.Usable(always, always) {
			got = append(got, name)
		}
		if want := slices.Concat(order(first, seed), order(rest, seed)); !slices.Equal(got, want) {
			t.Fatalf("seed %d: %v, want %v", seed, got, want)
		}
	}
}
