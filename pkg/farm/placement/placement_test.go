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

func identity(rcID string, i int) pod.Identity {
	return pod.Identity{RCID: rcID, Role: "main", Index: i}
}

// Assign never gives a node more than it has.
func TestAssignNeverOverCommits(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		nodes := map[string]*node.View{}
		reservations := map[string]node.Reservation{}
		var order []string
		for i := range rapid.IntRange(0, 8).Draw(t, "nodes") {
			name := fmt.Sprintf("n%d", i)
			nodes[name] = &node.View{Node: node.Node{Name: name, Capacity: node.Capacity{
				Slots: rapid.IntRange(1, 6).Draw(t, "slots"), CPU: rapid.Int64Range(0, 3).Draw(t, "cpu") * 500,
			}}, Alive: true}
			res := node.Reservation{
				Ineligible: rapid.IntRange(0, 9).Draw(t, "ineligible") == 0, Claims: map[string]node.Claim{},
			}
			for j := range rapid.IntRange(0, 3).Draw(t, "held") {
				res.Claims[identity("other", j).String()] = node.Claim{Ports: []int{8080 + j}, CPU: 100}
			}
			reservations[name] = res
			order = append(order, name)
		}
		want := node.Claim{CPU: rapid.Int64Range(0, 3).Draw(t, "want") * 100}
		if rapid.Bool().Draw(t, "port") {
			want.Ports = []int{8080}
		}
		req := placement.Request{
			Want: want, MaxPerNode: rapid.IntRange(0, 3).Draw(t, "max"), PerNode: map[string]int{},
			Order: order, Nodes: nodes, Reservations: reservations,
		}
		for i := range rapid.IntRange(0, 20).Draw(t, "pods") {
			req.Pods = append(req.Pods, identity("rc", i))
		}
		assigned, refused := placement.Assign(req)
		if len(assigned) < len(req.Pods) && len(order) > 0 && len(refused) == 0 {
			t.Fatal("pods are left without a node, and Assign returns no reason")
		}
		perNode := map[string]int{}
		for _, a := range assigned {
			res := reservations[a.Node].Clone()
			if reason := scheduler.Fits(nodes[a.Node], res, a.Pod, want); reason != "" {
				t.Fatalf("%s was assigned to %s, which cannot take it: %s", a.Pod, a.Node, reason)
			}
			res.Claims[a.Pod.String()] = want
			reservations[a.Node] = res
			perNode[a.Node]++
			if req.MaxPerNode > 0 && perNode[a.Node] > req.MaxPerNode {
				t.Fatalf("%d pods on %s, at most %d are allowed", perNode[a.Node], a.Node, req.MaxPerNode)
			}
		}
		// The pods without a node fit on no node.
		for _, id := range req.Pods[len(assigned):] {
			for _, name := range order {
				full := req.MaxPerNode > 0 && perNode[name] >= req.MaxPerNode
				if !full && scheduler.Fits(nodes[name], reservations[name], id, want) == "" {
					t.Fatalf("%s got no node although %s takes it", id, name)
				}
			}
		}
	})
}

func TestAssignSpreadsPodsEvenlyOverNodes(t *testing.T) {
	t.Parallel()
	nodes := map[string]*node.View{}
	var order []string
	for i := range 5 {
		name := fmt.Sprintf("n%d", i)
		nodes[name] = &node.View{Node: node.Node{Name: name, Capacity: node.Capacity{Slots: 100}}, Alive: true}
		order = append(order, name)
	}
	req := placement.Request{Order: order, Nodes: nodes, PerNode: map[string]int{"n0": 2}}
	for i := range 13 {
		req.Pods = append(req.Pods, identity("rc", i))
	}
	assigned, _ := placement.Assign(req)
	count := map[string]int{"n0": 2}
	for _, a := range assigned {
		count[a.Node]++
	}
	for name, n := range count {
		if n != 3 {
			t.Errorf("%s has %d pods, want 3 on each node: %v", name, n, count)
		}
	}
}

// A strict order decides among nodes with equally many pods of the controller. How full they are does not matter.
func TestAssignInAStrictOrder(t *testing.T) {
	t.Parallel()
	order := []string{"busy", "second", "third"}
	nodes := map[string]*node.View{}
	for _, name := range order {
		nodes[name] = &node.View{Node: node.Node{Name: name, Capacity: node.Capacity{Slots: 3}}, Alive: true}
	}
	claims := map[string]node.Claim{identity("other", 0).String(): {}, identity("other", 1).String(): {}}
	for pods, want := range map[int][]string{
		1: {"busy"}, 2: {"busy", "second"}, 4: {"busy", "second", "third", "second"},
	} {
		req := placement.Request{
			Strict: true, Order: order, Nodes: nodes, PerNode: map[string]int{},
			Reservations: map[string]node.Reservation{"busy": {Claims: claims}},
		}
		for i := range pods {
			req.Pods = append(req.Pods, identity("rc", i))
		}
		var got []string
		assigned, _ := placement.Assign(req)
		for _, a := range assigned {
			got = append(got, a.Node)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%d pods: %v, want %v", pods, got, want)
		}
	}
}

// A reluctant candidate is taken only if the others are far fuller or have more pods of the controller.
func TestAssignTakesAReluctantNodeOnlyIfOthersAreFarFuller(t *testing.T) {
	t.Parallel()
	for held, want := range map[int]string{0: "own", 2: "own", 3: "own", 4: "foreign"} {
		nodes := map[string]*node.View{}
		for _, name := range []string{"own", "foreign"} {
			nodes[name] = &node.View{Node: node.Node{Name: name, Capacity: node.Capacity{Slots: 100}}, Alive: true}
		}
		res := node.Reservation{Claims: map[string]node.Claim{}}
		for i := range held {
			res.Claims[identity("other", i).String()] = node.Claim{}
		}
		req := placement.Request{
			Pods: []pod.Identity{identity("rc", 0)}, Order: []string{"own", "foreign"}, PerNode: map[string]int{},
			Reluctant: map[string]bool{"foreign": true},
			Nodes:     nodes, Reservations: map[string]node.Reservation{"own": res, "foreign": {}},
		}
		if got, _ := placement.Assign(req); len(got) != 1 || got[0].Node != want {
			t.Errorf("with %d pods on the own node: %v, want %s", held, got, want)
		}
		req.PerNode["own"] = 1
		if got, _ := placement.Assign(req); len(got) != 1 || got[0].Node != "foreign" {
			t.Errorf("with a pod of the controller on the own node: %v", got)
		}
	}
}

// A moving pod does not come back to a node with a copy of it. Other pods may go there.
func TestAMovingPodAvoidsItsFormerNodes(t *testing.T) {
	t.Parallel()
	nodes := map[string]*node.View{}
	for _, name := range []string{"n1", "n2"} {
		nodes[name] = &node.View{Node: node.Node{Name: name, Capacity: node.Capacity{Slots: 1}}, Alive: true}
	}
	mover, fresh, stuck := identity("rc", 0), identity("rc", 1), identity("rc", 2)
	assigned, refused := placement.Assign(placement.Request{
		Pods: []pod.Identity{mover, stuck, fresh}, Order: []string{"n1", "n2"}, Nodes: nodes,
		Avoid: map[pod.Identity][]string{mover: {"n1"}, stuck: {"n1", "n2"}},
	})
	want := []placement.Assignment{{Pod: mover, Node: "n2"}, {Pod: fresh, Node: "n1"}}
	if !slices.Equal(assigned, want) {
		t.Errorf("assigned %v, want %v; refused %v", assigned, want, refused)
	}
}

func order(names []string, seed uint64) []string {
	return slices.Collect(placement.NewWalk(names, seed).All())
}

// A walk yields every name once. The same seed gives the same order, and different seeds begin at different names.
func TestWalkYieldsEveryNameOnce(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		names := make([]string, rapid.IntRange(0, 200).Draw(t, "names"))
		for i := range names {
			names[i] = fmt.Sprintf("n%03d", i)
		}
		seed := rapid.Uint64().Draw(t, "seed")
		got := order(names, seed)
		if !slices.Equal(got, order(names, seed)) {
			t.Fatalf("seed %d gives two orders", seed)
		}
		slices.Sort(got)
		if !slices.Equal(got, names) && len(names) > 0 {
			t.Fatalf("the order of %d names has %d: %v", len(names), len(got), got)
		}
	})
	first := map[string]int{}
	names := []string{"a", "b", "c", "d"}
	for seed := range uint64(400) {
		first[order(names, seed)[0]]++
	}
	for _, name := range names {
		if first[name] < 50 {
			t.Errorf("%s comes first %d times of 400: %v", name, first[name], first)
		}
	}
}

// A farm that joins gets its share of the controllers, and no other controller changes its owner.
func TestAFarmThatJoinsTakesOnlyItsShare(t *testing.T) {
	t.Parallel()
	before, after := []string{"f1", "f2", "f3"}, []string{"f3", "f4", "f1", "f2"}
	share, moved := map[string]int{}, 0
	const rcs = 3000
	for i := range rcs {
		id := fmt.Sprintf("01m7wnbkkxgwev108sdze%05d", i)
		was, is := placement.Preferred(id, before), placement.Preferred(id, after)
		share[is]++
		if was != is {
			moved++
			if is != "f4" {
				t.Fatalf("controller %s went from %s to %s, which is not the farm that joined", id, was, is)
			}
		}
	}
	for farm, n := range share {
		if n < rcs/4*8/10 || n > rcs/4*12/10 {
			t.Errorf("%s gets %d of %d: %v", farm, n, rcs, share)
		}
	}
	if moved != share["f4"] {
		t.Errorf("%d controllers changed their owner, f4 has %d", moved, share["f4"])
	}
	if got := placement.Preferred("x", nil); got != "" {
		t.Errorf("without farms: %q", got)
	}
}

// Farms of different versions must prefer the same owner, or they would hand controllers back and forth.
func TestAllVersionsPreferTheSameOwner(t *testing.T) {
	t.Parallel()
	farms := []string{"farm1", "farm2", "farm3"}
	for id, want := range map[string]string{
		"01m7wnbkkxgwev108sdze00000": "farm2", "01m7wnbkkxgwev108sdze00001": "farm3", "web": "farm1", "": "farm2",
	} {
		if got := placement.Preferred(id, farms); got != want {
			t.Errorf("controller %q: %s, want %s", id, got, want)
		}
	}
}

// If moving pods find no node, the reported number of avoided nodes is the number of the pod that avoids the most
// nodes.
func TestAssignCountsAvoidedNodes(t *testing.T) {
	t.Parallel()
	nodes := map[string]*node.View{}
	order := []string{"n1", "n2", "n3"}
	for _, name := range order {
		nodes[name] = &node.View{Node: node.Node{Name: name, Capacity: node.Capacity{Slots: 1}}, Alive: true}
	}
	full := node.Reservation{Claims: map[string]node.Claim{"x": {}}}
	a, b, c := identity("rc", 0), identity("rc", 1), identity("rc", 2)
	assigned, refused := placement.Assign(placement.Request{
		Pods: []pod.Identity{a, b, c}, Order: order,
		Nodes: nodes, Reservations: map[string]node.Reservation{"n3": full},
		Avoid: map[pod.Identity][]string{a: {"n1"}, b: {"n1", "n2"}, c: {"n1"}},
	})
	if len(assigned) != 1 || assigned[0] != (placement.Assignment{Pod: a, Node: "n2"}) {
		t.Errorf("assigned %v, want %s on n2", assigned, a)
	}
	if refused[scheduler.Avoided] != 2 || refused[scheduler.Resources] != 2 {
		t.Errorf("refused %v; want n2 and n3 as full, and n1 and n2 as avoided", refused)
	}
	_, refused = placement.Assign(placement.Request{
		Pods: []pod.Identity{b, a}, Order: order[:2],
		Nodes: nodes, Reservations: map[string]node.Reservation{"n2": full},
		Avoid: map[pod.Identity][]string{a: {"n1"}, b: {"n1", "n2"}},
	})
	if refused[scheduler.Avoided] != 2 {
		t.Errorf("refused %v; want both nodes as avoided, because %s avoids both", refused, b)
	}
}

// Pods with dynamic ports go only to nodes with enough free port numbers.
func TestAssignCountsDynamicPorts(t *testing.T) {
	t.Parallel()
	nodes := map[string]*node.View{
		"n1": {Node: node.Node{
			Name: "n1", Capacity: node.Capacity{Slots: 9}, PortRange: node.PortRange{Min: 20000, Max: 20004},
		}, Alive: true},
		"n2": {Node: node.Node{Name: "n2", Capacity: node.Capacity{Slots: 9}}, Alive: true},
	}
	taken := node.Reservation{Claims: map[string]node.Claim{"x": {Ports: []int{20001}}}}
	assigned, refused := placement.Assign(placement.Request{
		Pods:  []pod.Identity{identity("rc", 0), identity("rc", 1), identity("rc", 2)},
		Order: []string{"n1", "n2"}, Dynamic: []string{"http", "grpc"},
		Nodes: nodes, Reservations: map[string]node.Reservation{"n1": taken},
	})
	if len(assigned) != 2 || assigned[0].Node != "n1" || assigned[1].Node != "n1" || refused[scheduler.Ports] != 2 {
		t.Errorf("assigned %v, refused %v; want two on n1, and no ports left on both nodes", assigned, refused)
	}
}

// Among nodes with equally many pods of the controller, the node comes first that is least full by its scarcest
// resource: slots, CPU, memory or dynamic ports.
func TestAssignRanksByTheScarcestResource(t *testing.T) {
	t.Parallel()
	v := func(name string, c node.Capacity) *node.View {
		return &node.View{
			Node: node.Node{Name: name, Capacity: c, PortRange: node.PortRange{Min: 1, Max: 10}}, Alive: true,
		}
	}
	all := node.Capacity{Slots: 100, CPU: 4000, Memory: 4000}
	for name, tt := range map[string]struct {
		first, second node.Claim // the share of another pod on each node; the second node comes first in the order
		want          node.Claim
		dynamic       []string
		limit         node.Capacity // of the second
	}{
		"CPU": {node.Claim{CPU: 100}, node.Claim{CPU: 200}, node.Claim{CPU: 100}, nil, all},
		"memory": {
			node.Claim{CPU: 300, Memory: 100}, node.Claim{CPU: 100, Memory: 400}, node.Claim{Memory: 100}, nil, all,
		},
		"dynamic ports": {
			node.Claim{CPU: 300}, node.Claim{Ports: []int{1, 2, 3}}, node.Claim{}, []string{"http"}, all,
		},
		"a smaller node": {
			node.Claim{CPU: 300},
			node.Claim{CPU: 300},
			node.Claim{CPU: 100},
			nil,
			node.Capacity{Slots: 100, CPU: 1000, Memory: 4000},
		},
		"fewer slots": {
			node.Claim{}, node.Claim{}, node.Claim{}, nil, node.Capacity{Slots: 10, CPU: 4000, Memory: 4000},
		},
		"what would fill it": {
			node.Claim{CPU: 500},
			node.Claim{CPU: 400},
			node.Claim{Memory: 500},
			nil,
			node.Capacity{Slots: 100, CPU: 4000, Memory: 1000},
		},
	} {
		taken := func(h node.Claim) node.Reservation {
			return node.Reservation{Claims: map[string]node.Claim{identity("other", 0).String(): h}}
		}
		got, _ := placement.Assign(placement.Request{
			Pods: []pod.Identity{identity("rc", 0)}, Want: tt.want, Dynamic: tt.dynamic,
			Order:        []string{"second", "first"},
			Nodes:        map[string]*node.View{"first": v("first", all), "second": v("second", tt.limit)},
			Reservations: map[string]node.Reservation{"first": taken(tt.first), "second": taken(tt.second)},
		})
		if len(got) != 1 || got[0].Node != "first" {
			t.Errorf("%s: %+v", name, got)
		}
	}
}
