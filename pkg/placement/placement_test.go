package placement_test

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/placement"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
)

func identity(rcID string, i int) pod.Identity {
	return pod.Identity{RCID: rcID, Role: "main", Index: i}
}

// TestAssignNeverOverCommits draws clusters and requests, and checks every assignment against the nodes' limits.
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
			res := node.Reservation{Closed: rapid.IntRange(0, 9).Draw(t, "closed") == 0, Holders: map[string]node.Holder{}}
			for j := range rapid.IntRange(0, 3).Draw(t, "held") {
				res.Holders[identity("other", j).String()] = node.Holder{Ports: []int{8080 + j}, CPU: 100}
			}
			reservations[name] = res
			order = append(order, name)
		}
		want := node.Holder{CPU: rapid.Int64Range(0, 3).Draw(t, "want") * 100}
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
			t.Fatal("pods are left over and nobody says why")
		}
		perNode := map[string]int{}
		for _, a := range assigned {
			res := reservations[a.Node].Clone()
			if reason := placement.Fits(nodes[a.Node], res, a.Pod, want); reason != "" {
				t.Fatalf("%s was put on %s, which cannot take it: %s", a.Pod, a.Node, reason)
			}
			res.Holders[a.Pod.String()] = want
			reservations[a.Node] = res
			perNode[a.Node]++
			if req.MaxPerNode > 0 && perNode[a.Node] > req.MaxPerNode {
				t.Fatalf("%d pods on %s, at most %d are allowed", perNode[a.Node], a.Node, req.MaxPerNode)
			}
		}
		// What is left over fits nowhere.
		for _, id := range req.Pods[len(assigned):] {
			for _, name := range order {
				full := req.MaxPerNode > 0 && perNode[name] >= req.MaxPerNode
				if !full && placement.Fits(nodes[name], reservations[name], id, want) == "" {
					t.Fatalf("%s was left over although %s takes it", id, name)
				}
			}
		}
	})
}

func TestAssignSpreads(t *testing.T) {
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
			t.Errorf("%s has %d pods, want 3 everywhere: %v", name, n, count)
		}
	}
}

// A strict order decides among nodes with equally many pods of the controller, whatever else they have.
func TestAssignInAStrictOrder(t *testing.T) {
	t.Parallel()
	order := []string{"busy", "second", "third"}
	nodes := map[string]*node.View{}
	for _, name := range order {
		nodes[name] = &node.View{Node: node.Node{Name: name, Capacity: node.Capacity{Slots: 3}}, Alive: true}
	}
	holders := map[string]node.Holder{identity("other", 0).String(): {}, identity("other", 1).String(): {}}
	for pods, want := range map[int][]string{1: {"busy"}, 2: {"busy", "second"}, 4: {"busy", "second", "third", "second"}} {
		req := placement.Request{
			Strict: true, Order: order, Nodes: nodes, PerNode: map[string]int{}, Reservations: map[string]node.Reservation{"busy": {Holders: holders}},
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

// A reluctant candidate is taken only where the others are far fuller, or have more of the controller.
func TestAssignReluctantly(t *testing.T) {
	t.Parallel()
	for held, want := range map[int]string{0: "own", 2: "own", 3: "own", 4: "foreign"} {
		nodes := map[string]*node.View{}
		for _, name := range []string{"own", "foreign"} {
			nodes[name] = &node.View{Node: node.Node{Name: name, Capacity: node.Capacity{Slots: 100}}, Alive: true}
		}
		res := node.Reservation{Holders: map[string]node.Holder{}}
		for i := range held {
			res.Holders[identity("other", i).String()] = node.Holder{}
		}
		req := placement.Request{
			Pods: []pod.Identity{identity("rc", 0)}, Order: []string{"own", "foreign"}, Reluctant: map[string]bool{"foreign": true},
			Nodes: nodes, Reservations: map[string]node.Reservation{"own": res, "foreign": {}}, PerNode: map[string]int{},
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

// A pod that moves does not come back to where a copy is; others may go there.
func TestAssignAvoids(t *testing.T) {
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
	if want := []placement.Assignment{{Pod: mover, Node: "n2"}, {Pod: fresh, Node: "n1"}}; !slices.Equal(assigned, want) {
		t.Errorf("assigned %v, want %v; refused %v", assigned, want, refused)
	}
}

func TestFits(t *testing.T) {
	t.Parallel()
	id := identity("rc", 0)
	view := &node.View{Node: node.Node{Name: "n", Capacity: node.Capacity{Slots: 2, CPU: 1000, Memory: 1000}}}
	orphaned := *view
	orphaned.Orphans = []pod.Orphan{{Identity: identity("rc", 7), Ports: map[string]int{"http": 80}}}
	held := func(h node.Holder) node.Reservation {
		return node.Reservation{Holders: map[string]node.Holder{identity("other", 1).String(): h}}
	}
	mine := node.Reservation{Holders: map[string]node.Holder{id.String(): {Ports: []int{80}, CPU: 1000, Memory: 1000}}}
	for name, c := range map[string]struct {
		view *node.View
		res  node.Reservation
		want node.Holder
		says placement.Reason
	}{
		"empty":                 {view, node.Reservation{}, node.Holder{CPU: 1000}, ""},
		"closed":                {view, node.Reservation{Closed: true}, node.Holder{}, placement.Drained},
		"port taken":            {view, held(node.Holder{Ports: []int{80}}), node.Holder{Ports: []int{80}}, placement.Ports},
		"port free":             {view, held(node.Holder{Ports: []int{81}}), node.Holder{Ports: []int{80}}, ""},
		"cpu":                   {view, held(node.Holder{CPU: 600}), node.Holder{CPU: 500}, placement.Resources},
		"memory":                {view, held(node.Holder{Memory: 600}), node.Holder{Memory: 500}, placement.Resources},
		"own share is no rival": {view, mine, node.Holder{Ports: []int{80}, CPU: 1000, Memory: 1000}, ""},
		"orphan holds a port":   {&orphaned, node.Reservation{}, node.Holder{Ports: []int{80}}, placement.Ports},
		"orphan holds a slot":   {&orphaned, held(node.Holder{}), node.Holder{}, placement.Resources},
	} {
		if got := placement.Fits(c.view, c.res, id, c.want); got != c.says {
			t.Errorf("%s: %q, want %q", name, got, c.says)
		}
	}
}

func TestEligible(t *testing.T) {
	t.Parallel()
	view := func(change func(*node.View)) *node.View {
		v := &node.View{Node: node.Node{Labels: map[string]string{"rack": "a"}, Nonce: "now"}, Alive: true}
		change(v)
		return v
	}
	nodes := map[string]*node.View{
		"good":      view(func(*node.View) {}),
		"overruled": view(func(v *node.View) { v.Labels["rack"] = "b"; v.Ops.Labels = map[string]string{"rack": "a"} }),
		"other":     view(func(v *node.View) { v.Labels["rack"] = "b" }),
		"dead":      view(func(v *node.View) { v.Alive = false }),
		"silent":    view(func(v *node.View) { v.Nonce = "before" }),
		"closed":    view(func(v *node.View) { v.Ops.Unschedulable = true }),
		"drained":   view(func(v *node.View) { v.Ops.Drain = &node.Drain{} }),
	}
	sel, err := rc.ParseSelector("rack=a")
	if err != nil {
		t.Fatal(err)
	}
	names, others := placement.Eligible(nodes, sel, "now")
	if !slices.Equal(names, []string{"good", "overruled"}) {
		t.Errorf("eligible: %v", names)
	}
	if got, want := others.String(), "drained: 2, not alive: 1, not settled: 1, selector: 1"; got != want {
		t.Errorf("others: %s, want %s", got, want)
	}
}

func order(names []string, seed uint64) []string {
	return slices.Collect(placement.NewWalk(names, seed).All())
}

// TestOrder: every name once, the same for the same seed, and different beginnings for different seeds.
func TestOrder(t *testing.T) {
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
			t.Fatalf("the order of %d names holds %d: %v", len(names), len(got), got)
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

// TestPreferredOwner: a farm that joins takes over its share and moves nothing else.
func TestPreferredOwner(t *testing.T) {
	t.Parallel()
	before, after := []string{"f1", "f2", "f3"}, []string{"f3", "f4", "f1", "f2"}
	share, moved := map[string]int{}, 0
	const rcs = 3000
	for i := range rcs {
		id := fmt.Sprintf("01m7wnbkkxgwev108sdze%05d", i)
		was, is := placement.PreferredOwner(id, before), placement.PreferredOwner(id, after)
		share[is]++
		if was != is {
			moved++
			if is != "f4" {
				t.Fatalf("%s moved from %s to %s, which was there before", id, was, is)
			}
		}
	}
	for farm, n := range share {
		if n < rcs/4*8/10 || n > rcs/4*12/10 {
			t.Errorf("%s gets %d of %d: %v", farm, n, rcs, share)
		}
	}
	if moved != share["f4"] {
		t.Errorf("%d moved, f4 has %d", moved, share["f4"])
	}
	if got := placement.PreferredOwner("x", nil); got != "" {
		t.Errorf("without farms: %q", got)
	}
}

// TestNoPortIsGivenTwice places pods with static and dynamic ports, upgrades and removes them, in any order, as a farm does:
// each step changes the node's reservation by what it was given. At no moment do two pods have one port.
func TestNoPortIsGivenTwice(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		lowest := rapid.IntRange(1, 5).Draw(t, "lowest")
		v := &node.View{Alive: true, Node: node.Node{
			Name: "n1", Capacity: node.Capacity{Slots: 100},
			PortRange: node.PortRange{Min: lowest, Max: lowest + rapid.IntRange(0, 7).Draw(t, "size") - 1},
		}}
		if rapid.Bool().Draw(t, "orphan") {
			v.Orphans = []pod.Orphan{{Identity: identity("orphan", 0), Ports: map[string]int{"http": rapid.IntRange(1, 12).Draw(t, "its port")}}}
		}
		res := node.Reservation{Holders: map[string]node.Holder{}}
		ports := map[string]map[string]int{} // what each pod's version that was placed last has, by name
		for range rapid.IntRange(0, 30).Draw(t, "steps") {
			id := identity("rc", rapid.IntRange(0, 4).Draw(t, "pod"))
			key := id.String()
			if rapid.IntRange(0, 3).Draw(t, "remove") == 0 {
				delete(res.Holders, key)
				delete(ports, key)
				continue
			}
			static := map[string]int{} // a manifest does not name one number twice
			for _, port := range rapid.SliceOfNDistinct(rapid.IntRange(1, 12), 0, 2, rapid.ID).Draw(t, "static") {
				static[fmt.Sprintf("s%d", port)] = port
			}
			dynamic := rapid.SliceOfDistinct(rapid.SampledFrom([]string{"d1", "d2", "d3"}), rapid.ID).Draw(t, "dynamic")
			before := ports[key]
			share, given, reason := placement.Share(v, res, node.NewHolder(id, static, 0, 0), dynamic, before)
			if reason != "" {
				checkRefused(t, v, res, id, static, dynamic, reason)
				continue
			}
			checkGiven(t, v, given, dynamic, before, static, res.Holders[key])
			if rapid.Bool().Draw(t, "both versions") {
				share = share.With(res.Holders[key])
			}
			res.Holders[key] = share
			ports[key] = given
			checkDistinct(t, v, res)
		}
	})
}

func checkGiven(t *rapid.T, v *node.View, given map[string]int, dynamic []string, before, static map[string]int, held node.Holder) {
	if len(given) != len(dynamic) {
		t.Fatalf("dynamic ports %v were given %v", dynamic, given)
	}
	seen := map[int]bool{}
	for _, port := range static {
		seen[port] = true
	}
	for _, name := range dynamic {
		port, was := given[name], before[name]
		if port < v.PortRange.Min || port > v.PortRange.Max || seen[port] {
			t.Fatalf("port %s got %d of %+v, besides %v and static %v", name, port, v.PortRange, given, static)
		}
		seen[port] = true
		if clash := slices.Contains(node.NewHolder(pod.Identity{}, static, 0, 0).Ports, was); was != 0 && !clash && slices.Contains(held.Ports, was) && port != was {
			t.Fatalf("port %s had %d and got %d", name, was, port)
		}
		if port != was && slices.Contains(held.Ports, port) {
			t.Fatalf("port %s got %d, which the version before may still use", name, port)
		}
	}
}

func checkDistinct(t *rapid.T, v *node.View, res node.Reservation) {
	owner := map[int]string{}
	for i := range v.Orphans {
		for _, port := range v.Orphans[i].Ports {
			owner[port] = "an orphan"
		}
	}
	for key, h := range res.Holders {
		for _, port := range h.Ports {
			if other := owner[port]; other != "" {
				t.Fatalf("P3: port %d is given to %s and to %s", port, other, key)
			}
			owner[port] = key
		}
	}
}

// checkRefused proves that there was a reason: a static port of another pod, or too few free numbers.
func checkRefused(t *rapid.T, v *node.View, res node.Reservation, id pod.Identity, static map[string]int, dynamic []string, reason placement.Reason) {
	if reason != placement.Ports {
		t.Fatalf("refused for %s; only ports are scarce", reason)
	}
	others, all := map[int]bool{}, map[int]bool{}
	for i := range v.Orphans {
		for _, port := range v.Orphans[i].Ports {
			others[port], all[port] = true, true
		}
	}
	for key, h := range res.Holders {
		for _, port := range h.Ports {
			all[port] = true
			others[port] = others[port] || key != id.String()
		}
	}
	for _, port := range static {
		if others[port] {
			return
		}
		all[port] = true
	}
	free := 0
	for port := v.PortRange.Min; port <= v.PortRange.Max; port++ {
		if !all[port] {
			free++
		}
	}
	if free >= len(dynamic) {
		t.Fatalf("refused %d dynamic ports although %d are free", len(dynamic), free)
	}
}

// Pods with dynamic ports go only where enough numbers are free.
func TestAssignCountsDynamicPorts(t *testing.T) {
	t.Parallel()
	nodes := map[string]*node.View{
		"n1": {Node: node.Node{Name: "n1", Capacity: node.Capacity{Slots: 9}, PortRange: node.PortRange{Min: 20000, Max: 20004}}, Alive: true},
		"n2": {Node: node.Node{Name: "n2", Capacity: node.Capacity{Slots: 9}}, Alive: true},
	}
	taken := node.Reservation{Holders: map[string]node.Holder{"x": {Ports: []int{20001}}}}
	assigned, refused := placement.Assign(placement.Request{
		Pods:  []pod.Identity{identity("rc", 0), identity("rc", 1), identity("rc", 2)},
		Order: []string{"n1", "n2"}, Nodes: nodes, Dynamic: []string{"http", "grpc"}, Reservations: map[string]node.Reservation{"n1": taken},
	})
	if len(assigned) != 2 || assigned[0].Node != "n1" || assigned[1].Node != "n1" || refused[placement.Ports] != 2 {
		t.Errorf("assigned %v, refused %v; want two on n1, and ports short on both nodes", assigned, refused)
	}
}
