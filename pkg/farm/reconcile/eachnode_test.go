package reconcile_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/rcfarm/rcfarm/pkg/farm/reconcile"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
)

// eachOf is a controller with an available pod on each of the given number of nodes, n0 and so on. Its selector pool=a
// matches them.
func eachOf(nodes int) *reconcile.Snapshot {
	s := snapshotOf(0)
	clear(s.Nodes)
	s.RC.Mode, s.RC.ReplicaGroups, s.RC.NodeSelector = rc.EachNode, nil, "pool=a"
	for i := range nodes {
		join(s, fmt.Sprintf("n%d", i))
		s.Pods = append(s.Pods, running(i, fmt.Sprintf("n%d", i), 5, 0))
		s.Pods[i].ChangedAt = s.Now.Add(-time.Hour)
	}
	return s
}

// join adds a node that matches.
func join(s *reconcile.Snapshot, name string) *node.View {
	v := &node.View{
		Node:  node.Node{Name: name, Labels: map[string]string{"pool": "a"}, Capacity: node.Capacity{Slots: 9}},
		Alive: true,
	}
	s.Nodes[name] = v
	return v
}

func relabel(s *reconcile.Snapshot, names ...string) {
	for _, name := range names {
		s.Nodes[name].Ops.Labels = map[string]string{"pool": "b"}
	}
}

func namesTo(n int) (names []string) {
	for i := range n {
		names = append(names, fmt.Sprintf("n%d", i))
	}
	return names
}

// EachNodeSelector returns the selector only of a controller with a pod on each matching node.
func TestEachNodeSelectorIsForEachNodeOnly(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		mode     rc.Mode
		selector string
		want     bool
	}{
		"on each node":              {rc.EachNode, "pool=a", true},
		"another controller":        {"", "pool=a", false},
		"a selector that is broken": {rc.EachNode, "pool in", false},
	} {
		s := eachOf(1)
		s.RC.Mode, s.RC.NodeSelector = c.mode, c.selector
		got := reconcile.FactsOf(s).EachNodeSelector()
		if (got != nil) != c.want || got != nil && got.String() != c.selector {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// A controller with a pod on each matching node adds and stops pods as nodes change.
func TestEachMatchingNodeHasAPod(t *testing.T) {
	t.Parallel()
	drain := func(s *reconcile.Snapshot, name string) { s.Nodes[name].Ops.Drain = &node.Drain{Since: s.Now} }
	for name, c := range map[string]struct {
		nodes    int
		change   func(*reconcile.Snapshot)
		adds, to []string // identities, and their possible nodes
		stops    []string
		desired  int
		reason   string // of Blocked or Misplaced
	}{
		"all is as it should be": {nodes: 3, desired: 3},
		"nothing matches yet":    {nodes: 0, desired: 0},
		"a node joins": {
			3, func(s *reconcile.Snapshot) { join(s, "new") }, []string{"main.3"}, []string{"new"}, nil, 4, "",
		},
		"the lowest free index": {
			3, func(s *reconcile.Snapshot) { join(s, "new"); s.Pods = slices.Delete(s.Pods, 1, 2); relabel(s, "n1") },
			[]string{"main.1"},
			[]string{"new"},
			nil, 3, "",
		},
		"one that does not match joins": {
			3, func(s *reconcile.Snapshot) { join(s, "new"); relabel(s, "new") }, nil, nil, nil, 3, "",
		},
		"one that is not alive": {
			3, func(s *reconcile.Snapshot) { join(s, "new").Alive = false }, nil, nil, nil, 3, "",
		},
		"one that has not spoken": {
			3, func(s *reconcile.Snapshot) { s.Epoch = "e1"; join(s, "new") }, nil, nil, nil, 3, "",
		},
		"one that is cordoned": {
			3, func(s *reconcile.Snapshot) { join(s, "new").Ops.Unschedulable = true }, nil, nil, nil, 3, "",
		},
		"one that is drained": {
			3, func(s *reconcile.Snapshot) { join(s, "new"); drain(s, "new") }, nil, nil, nil, 3, "",
		},
		"a pod's node is cordoned": {
			3, func(s *reconcile.Snapshot) { s.Nodes["n1"].Ops.Unschedulable = true }, nil, nil, nil, 3, "",
		},
		"a pod's node is drained": {
			3, func(s *reconcile.Snapshot) { drain(s, "n1") }, nil, nil, []string{"main.1"}, 2, "",
		},
		"two are": {
			3, func(s *reconcile.Snapshot) { drain(s, "n1"); drain(s, "n2") }, nil, nil,
			[]string{"main.1", "main.2"},
			1, "",
		},
		"all are": {
			2, func(s *reconcile.Snapshot) { drain(s, "n0"); drain(s, "n1") }, nil, nil,
			[]string{"main.0", "main.1"},
			0, "",
		},
		"a pod's node is relabelled": {
			3, func(s *reconcile.Snapshot) { relabel(s, "n1") }, nil, nil, []string{"main.1"}, 2, "",
		},
		"and another joins": {
			3, func(s *reconcile.Snapshot) { relabel(s, "n1"); join(s, "new") },
			[]string{"main.3"},
			[]string{"new"},
			[]string{"main.1"},
			3, "",
		},
		"its record vanishes": {
			3, func(s *reconcile.Snapshot) { delete(s.Nodes, "n1") }, nil, nil, nil, 3, "",
		},
		"all records vanish": {3, func(s *reconcile.Snapshot) { clear(s.Nodes) }, nil, nil, nil, 3, ""},
		"its machine is lost": {
			3, func(s *reconcile.Snapshot) { lose(s, time.Hour, 1) }, nil, nil, nil, 3, "",
		},
		"it has no preparer": {
			3, func(s *reconcile.Snapshot) { unmanage(s, time.Hour, 1) }, nil, nil, nil, 3, "",
		},
		"a lost one is drained": {
			3, func(s *reconcile.Snapshot) { lose(s, time.Hour, 1); drain(s, "n1") }, nil, nil,
			[]string{"main.1"},
			2,
			"",
		},
		"others are not available": {
			3, func(s *reconcile.Snapshot) { sick(s, 0, 2); drain(s, "n1") }, nil, nil, nil, 2, "main.1 must leave n1",
		},
		"the minimum forbids it": {
			4, func(s *reconcile.Snapshot) { s.RC.MinAvailable = count(2); sick(s, 3); drain(s, "n0"); drain(s, "n1") },
			nil, nil,
			[]string{"main.0"},
			2, "main.1 must leave n1",
		},
		"no node matches": {
			2, func(s *reconcile.Snapshot) { s.RC.NodeSelector = "pool=c" }, nil, nil, nil, 0, "no node matches",
		},
		"and that is meant": {
			2, func(s *reconcile.Snapshot) { s.RC.NodeSelector, s.RC.AllowMassStop = "pool=c", 7 }, nil, nil,
			[]string{"main.0", "main.1"},
			0, "",
		},
		"most of a few slip": {
			5, func(s *reconcile.Snapshot) { relabel(s, namesTo(4)...) }, nil, nil,
			[]string{"main.0", "main.1", "main.2", "main.3"},
			1, "",
		},
		"most of many slip": {
			19, func(s *reconcile.Snapshot) { relabel(s, namesTo(10)...) }, nil, nil, nil, 9, "10 nodes of 19",
		},
		"most are drained": {15, func(s *reconcile.Snapshot) {
			for _, n := range namesTo(10) {
				drain(s, n)
			}
		}, nil, nil, []string{
			"main.0", "main.1", "main.2", "main.3", "main.4", "main.5", "main.6", "main.7", "main.8", "main.9",
		}, 5, ""},
		"half of many slip": {
			20, func(s *reconcile.Snapshot) { relabel(s, namesTo(10)...) }, nil, nil,
			[]string{
				"main.0", "main.1", "main.2", "main.3", "main.4", "main.5", "main.6", "main.7", "main.8", "main.9",
			},
			10, "",
		},
		"most of many slip in portions": {20, func(s *reconcile.Snapshot) {
			relabel(s, namesTo(15)...)
			for i := range 9 {
				s.Pods[i].RunState, s.Pods[i].StoppingSince = pod.Stopped, &s.Now
			}
		}, nil, nil, nil, 5, "15 nodes of 20"},
		"it is disabled": {
			2, func(s *reconcile.Snapshot) { s.RC.Disabled = true; drain(s, "n0"); join(s, "new") }, nil, nil, nil, 2,
			"disabled",
		},
		"the breaker tripped": {
			2, func(s *reconcile.Snapshot) { s.Breaker = "tripped"; drain(s, "n0"); join(s, "new") },
			[]string{"main.2"},
			[]string{"new"},
			nil, 2, "",
		},
		"the records are new": {
			2, func(s *reconcile.Snapshot) { s.Hold = "new"; drain(s, "n0"); join(s, "new") }, nil, nil, nil, 2, "",
		},
		"a pod was found": {
			2, func(s *reconcile.Snapshot) { s.Pods[0].AdoptedAtGeneration = 7; relabel(s, "n0") }, nil, nil, nil, 1,
			"found running",
		},
		"two pods on a node": {
			2, func(s *reconcile.Snapshot) { s.Pods = append(s.Pods, running(5, "n0", 5, 0)) }, nil, nil,
			[]string{"main.5"},
			2, "",
		},
		"another role": {
			2, func(s *reconcile.Snapshot) { s.Pods[0].Role, s.Pods[0].Identity.Role = "side", "side" }, nil, nil,
			[]string{"side.0"},
			2, "",
		},
		"a stop is not confirmed": {
			2, func(s *reconcile.Snapshot) { s.Pods[0].RunState, s.Pods[0].StoppingSince = pod.Stopped, &s.Now }, nil,
			nil, nil, 2, "",
		},
		"a copy is left on it": {2, func(s *reconcile.Snapshot) {
			join(s, "new")
			s.Pods[0].Placement.Ghosts = []pod.Ghost{{Node: "new", Revision: 4}}
		}, nil, nil, nil, 3, ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := eachOf(c.nodes)
			if c.change != nil {
				c.change(s)
			}
			plan := compute(t, s)
			to, is := plan.WantedNodes()
			if got := added(&plan); !slices.Equal(got, c.adds) || !is || len(c.adds) > 0 && !slices.Equal(to, c.to) {
				t.Errorf("adds %v on %v; want %v on %v", got, to, c.adds, c.to)
			}
			if got := stopped(&plan); !slices.Equal(got, c.stops) {
				t.Errorf("stops %v, want %v", got, c.stops)
			}
			if plan.Status.Desired != c.desired {
				t.Errorf("desired %d, want %d", plan.Status.Desired, c.desired)
			}
			if got := reasonOf(&plan, rc.Blocked) + reasonOf(&plan, rc.Misplaced); !strings.Contains(got, c.reason) ||
				c.reason == "" && got != "" {
				t.Errorf("the reason is %q, want %q", got, c.reason)
			}
			if again := reconcile.Compute(s); !slices.Equal(added(&again), c.adds) ||
				again.Status.Desired != c.desired {
				t.Errorf("looked at again it adds %v of %d", added(&again), again.Status.Desired)
			}
		})
	}
}

// If the selector does not match any node with a pod any more, nodes that have no pod yet do not hide this mistake.
func TestNodesWithoutAPodHideNoSelectorMistake(t *testing.T) {
	t.Parallel()
	s := eachOf(20)
	for i := range 40 {
		join(s, fmt.Sprintf("b%d", i)).Ops.Labels = map[string]string{"pool": "b"}
	}
	s.RC.NodeSelector, s.RC.MinAvailable = "pool=b", count(0)
	plan := compute(t, s)
	if got := stopped(&plan); len(got) != 0 || !strings.Contains(reasonOf(&plan, rc.Misplaced), "20 nodes of 20") ||
		len(plan.Adds) != 40 {
		t.Errorf("stops %v, adds %d: %+v", got, len(plan.Adds), plan.Status.Conditions)
	}
}

// The permission of --allow-mass-stop ends when the controller has once reached the state that the change asks for,
// even if it leaves this state later.
func TestMassStopOnEachNodeIsAllowedOnce(t *testing.T) {
	t.Parallel()
	s := eachOf(20)
	s.RC.AllowMassStop = s.RC.Generation
	for _, before := range []func(){
		func() {},
		func() { s.Previous.MassStopUsed = 0 }, // an older farm only wrote that the controller has converged
	} {
		s.Previous = nil
		plan := compute(t, s)
		if !plan.Status.Is(rc.Converged) {
			t.Fatalf("not converged: %+v", plan.Status)
		}
		s.Previous = &plan.Status
		before()
		relabel(s, namesTo(12)...)
		for range 3 {
			plan := compute(t, s)
			if got := stopped(&plan); len(got) != 0 || !plan.Status.Is(rc.Misplaced) {
				t.Fatalf("stops %v: %+v", got, plan.Status)
			}
			s.Previous = &plan.Status
		}
		for _, name := range namesTo(12) {
			s.Nodes[name].Ops.Labels = nil
		}
	}
	relabel(s, namesTo(12)...)
	s.RC.Generation++
	s.RC.AllowMassStop = s.RC.Generation
	for range 2 {
		plan := compute(t, s)
		if got := stopped(&plan); len(got) != 12 {
			t.Errorf("of another change with it %v stop", got)
		}
		s.Previous = &plan.Status
	}
}

// A lost machine lowers the minimum, so the other pods are upgraded one after the other.
func TestALostMachineDelaysNoUpgradeOnEachNode(t *testing.T) {
	t.Parallel()
	s := eachOf(4)
	lose(s, time.Hour, 2)
	for i := range s.Pods {
		s.Pods[i].Digest, s.Pods[i].Reality.Digest = "m0", "m0"
	}
	plan := compute(t, s)
	if got := upgrades(&plan); len(got) != 1 {
		t.Errorf("upgrades %v, want one; status %+v", got, plan.Status.Conditions)
	}
	s.RC.MinAvailable = count(3)
	plan = reconcile.Compute(s)
	if got := upgrades(&plan); len(got) != 0 || !plan.Status.Is(rc.Blocked) {
		t.Errorf("the minimum of the document is not kept: %v", got)
	}
}

// For a controller with a pod on each node, the breaker compares stops with all pods that the plan does not stop.
func TestPodsOnEachNodeStayForTheBreaker(t *testing.T) {
	t.Parallel()
	s := eachOf(5)
	s.RC.AllowMassStop = 7
	pods := func(yield func(*pod.Placement) bool) {
		for i := range s.Pods {
			if !yield(&s.Pods[i].Placement) {
				return
			}
		}
	}
	raw := s.RC
	if n := reconcile.RemainingPods(&raw, true, pods, map[pod.Identity]bool{s.Pods[0].Identity: true}); n != 4 {
		t.Errorf("%d stay, want 4", n)
	}
	raw.DeletedAt = &s.Now
	if n := reconcile.RemainingPods(&raw, true, pods, nil); n != 0 {
		t.Errorf("%d stay of a deleted one", n)
	}
}

// eachPass makes one pass over a controller with a pod on each node, checks the plan and carries some of it out. It
// reports whether there was anything to do.
func (w *world) eachPass(t rapid.TB) bool {
	s := w.snapshot(true)
	before := w.available()
	plan := compute(t, s)
	w.status = &plan.Status
	to, _ := plan.WantedNodes()
	if len(plan.Adds) > len(to) {
		t.Fatalf("%d pods are added to %d nodes", len(plan.Adds), len(to))
	}
	asked, lost := 0, 0 // by the rule, node by node
	for name, v := range w.nodes {
		has := slices.ContainsFunc(s.Pods, func(p reconcile.Pod) bool {
			return p.Node == name && p.RunState == pod.Running
		})
		switch {
		case !w.selects(v) || v.Ops.Drain != nil || !has && (!v.Alive || v.Ops.Unschedulable):
		default:
			asked++
			if w.machineLost(name) {
				lost++
			}
		}
	}
	if plan.Status.Desired != asked && w.rc.DeletedAt == nil {
		t.Fatalf("the plan asks for %d pods, the nodes need %d", plan.Status.Desired, asked)
	}
	least := max(0, asked-lost-1)
	if w.rc.MinAvailable != nil {
		least = min(asked, *w.rc.MinAvailable)
	}
	for i := range plan.Changes {
		ch := &plan.Changes[i]
		w.checkEach(t, ch)
		if w.takes(ch) {
			before--
			if w.rc.DeletedAt == nil && before < least {
				t.Fatalf("%s leaves %d available pods of a minimum of %d (P6)", ch, before, least)
			}
		}
	}
	placer := plan.Placer()
	for i, id := range plan.Adds {
		plan.Changes = append(plan.Changes, placer.On(id, to[i]))
	}
	for i := range plan.Changes {
		if w.lands == nil || w.lands() {
			w.apply(t, &plan.Changes[i])
		}
	}
	w.answered(plan.Answered)
	on := map[string]pod.Identity{}
	for id, p := range w.pods {
		if other, taken := on[p.Node]; taken && p.RunState == pod.Running && p.AdoptedAtGeneration == 0 &&
			w.pods[other].AdoptedAtGeneration == 0 {
			t.Fatalf("%s and %s are both on %s", id, other, p.Node)
		}
		on[p.Node] = id
	}
	return len(plan.Changes) > 0
}

// checkEach fails for a change that moves a pod, or stops a pod that its node needs.
func (w *world) checkEach(t rapid.TB, ch *reconcile.Change) {
	was, placed := w.pods[ch.Identity]
	switch v := w.nodes[was.Node]; {
	case ch.Action == reconcile.Move:
		t.Fatalf("%s: a pod must not be placed elsewhere", ch)
	case ch.Action != reconcile.Stop || !placed || w.rc.DeletedAt != nil:
	case v.Ops.Drain == nil && w.selects(v):
		for id, p := range w.pods {
			if id != ch.Identity && p.Node == was.Node {
				return // the node has another pod
			}
		}
		t.Fatalf("%s: its node needs it", ch)
	case v.Ops.Drain == nil && !reconcile.AllowsMassStop(&w.rc) &&
		!slices.ContainsFunc(slices.Collect(maps.Values(w.nodes)), w.selects):
		t.Fatalf("%s: no node matches any more (P4)", ch)
	}
}

func (w *world) selects(v *node.View) bool {
	sel, _ := w.rc.Selector()
	return v.Matches(sel)
}

// settleEach makes passes until nothing changes.
func (w *world) settleEach(t rapid.TB) {
	for range 200 {
		w.now = w.now.Add(time.Second)
		w.obeyAll()
		if !w.eachPass(t) {
			return
		}
	}
	t.Fatalf("the plans do not come to an end: %+v", w.status)
}

// Nodes join, die, are drained and relabelled; manifests change; records get lost. Each random history ends with one
// pod on each node that needs one, and a pod that could be kept is still there.
func TestAnyHistoryEndsWithAPodOnEachNode(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld()
		w.rc.Mode, w.rc.ReplicaGroups, w.rc.NodeSelector = rc.EachNode, nil, "pool!=b"
		for range rapid.IntRange(1, 50).Draw(t, "steps") {
			w.eachStep(t)
		}
		w.heal()
		w.rereport()
		w.rereportSick()
		w.rc.MinAvailable = nil
		w.rc.Generation++
		w.rc.AllowMassStop = w.rc.Generation
		w.settleEach(t)
		w.rc.Generation++ // after a change, pods are not kept as adopted
		w.rc.AllowMassStop = w.rc.Generation
		w.settleEach(t)
		want := 0
		for _, v := range w.nodes {
			if w.selects(v) && !v.Ops.Unschedulable {
				want++
			}
		}
		cordoned := 0 // and has kept its pod
		for _, p := range w.pods {
			if w.nodes[p.Node].Ops.Unschedulable {
				cordoned++
			}
			if !w.selects(w.nodes[p.Node]) || p.Digest != w.rc.ManifestDigest {
				t.Fatalf("%s is on %s at %s", p.Identity, p.Node, p.Digest)
			}
		}
		if n := want + cordoned; len(w.pods) != n || w.running() != n || w.available() != n ||
			!w.status.Is(rc.Converged) {
			t.Fatalf("%d nodes, %d placements, %d run, %d available: %+v", n, len(w.pods), w.running(), w.available(),
				w.status)
		}
		before := maps.Clone(w.pods)
		for name := range w.nodes {
			w.deaths++
			v := *w.nodes[name]
			v.Alive, v.MachineLost, v.FreeIndex = false, true, w.deaths
			w.nodes[name] = &v
		}
		w.settleEach(t)
		w.heal()
		w.settleEach(t)
		for id, p := range before {
			if w.pods[id].Node != p.Node {
				t.Fatalf("%s was on %s, and is on %q after all machines were lost", id, p.Node, w.pods[id].Node)
			}
		}
		now := w.now
		w.rc.DeletedAt = &now
		w.rc.Generation++
		w.settleEach(t)
		if len(w.pods) != 0 || w.running() != 0 {
			t.Fatalf("deleted, but %d placements and %d copies are left", len(w.pods), w.running())
		}
	})
}

func (w *world) eachStep(t *rapid.T) {
	w.now = w.now.Add(time.Duration(rapid.IntRange(1, 2000).Draw(t, "ms")) * time.Millisecond)
	kinds := []string{
		"manifest", "pass", "pass", "pass", "obey", "obey", "sick", "lose intent", "wipe", "min", "lose reality",
		"old placement", "save", "restore",
		"node dies", "node returns", "drain", "undrain", "forget", "label", "label", "cordon", "mass stop",
	}
	switch kind := rapid.SampledFrom(kinds).Draw(t, "step"); kind {
	case "pass":
		w.hold, w.breaker = rapid.IntRange(0, 9).Draw(t, "hold") == 0, rapid.IntRange(0, 9).Draw(t, "breaker") == 0
		if rapid.Bool().Draw(t, "partly") {
			w.lands = func() bool { return rapid.Bool().Draw(t, "lands") }
		}
		w.eachPass(t)
		w.hold, w.breaker, w.lands = false, false, nil
	case "label":
		v := w.anyNode(t)
		v.Ops.Labels = map[string]string{"pool": rapid.SampledFrom([]string{"a", "b"}).Draw(t, "pool")}
	case "cordon":
		v := w.anyNode(t)
		v.Ops.Unschedulable = !v.Ops.Unschedulable
	case "mass stop":
		w.rc.Generation++
		w.rc.AllowMassStop = 0
	default:
		w.stepOf(t, kind)
	}
}

// The operators' settings of n1 cannot be read. So a pod there is not stopped because of labels, no pod is added there,
// and the status reports both.
func TestUnreadableOperatorsSettingsMoveNoPod(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(*reconcile.Snapshot)
		adds   int
		reason string // in the status
	}{
		"its pod is where its own labels match": {func(*reconcile.Snapshot) {}, 0, ""},
		"its own labels do not match": {
			func(s *reconcile.Snapshot) { s.Nodes["n1"].Labels = nil }, 0, "nodeops/7/n1; main.1 stays on n1",
		},
		"no pod is there": {
			func(s *reconcile.Snapshot) { s.Pods = s.Pods[:1] }, 0, "nodeops/7/n1; n1 gets no pod",
		},
		"no pod is there, and its labels do not match": {
			func(s *reconcile.Snapshot) { s.Pods, s.Nodes["n1"].Labels = s.Pods[:1], nil }, 0, "",
		},
		"no pod is there, and its preparer is away": {
			func(s *reconcile.Snapshot) { s.Pods, s.Nodes["n1"].Alive = s.Pods[:1], false }, 0, "",
		},
		"they can be read": {
			func(s *reconcile.Snapshot) { s.Pods, s.Nodes["n1"].OpsUnread = s.Pods[:1], "" }, 1, "",
		},
		"of a controller with replicas": {func(s *reconcile.Snapshot) {
			s.RC.Mode, s.RC.ReplicaGroups, s.Nodes["n1"].Labels = "", []rc.ReplicaGroup{{
				Role:  "main",
				Count: count(2),
			}}, nil
		}, 0, "nodeops/7/n1; main.1 stays on n1"},
	} {
		s := eachOf(2)
		s.Nodes["n1"].OpsUnread = "unreadable record nodeops/7/n1"
		c.change(s)
		plan := compute(t, s)
		if len(plan.Adds) != c.adds || len(plan.Changes) > 0 {
			t.Errorf("%s: adds %v, changes %v", name, plan.Adds, plan.Changes)
		}
		if got := plan.Status.LastError; c.reason == "" && got != "" || !strings.Contains(got, c.reason) {
			t.Errorf("%s: %q, want %q", name, got, c.reason)
		}
	}
}
