package scheduler_test

import (
	"slices"
	"testing"

	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/scheduler"
)

func identity(rcID string, i int) pod.Identity {
	return pod.Identity{RCID: rcID, Role: "main", Index: i}
}

func TestFits(t *testing.T) {
	t.Parallel()
	id := identity("rc", 0)
	view := &node.View{Node: node.Node{Name: "n", Capacity: node.Capacity{Slots: 2, CPU: 1000, Memory: 1000}}}
	orphaned := *view
	orphaned.Orphans = []pod.Orphan{{Identity: identity("rc", 7), Ports: map[string]int{"http": 80}}}
	claimed := func(h node.Claim) node.Reservation {
		return node.Reservation{Claims: map[string]node.Claim{identity("other", 1).String(): h}}
	}
	mine := node.Reservation{Claims: map[string]node.Claim{id.String(): {Ports: []int{80}, CPU: 1000, Memory: 1000}}}
	both := claimed(node.Claim{Ports: []int{90}})
	both.Claims[id.String()] = node.Claim{Ports: []int{80}}
	full := claimed(node.Claim{CPU: 900, Memory: 900}) // the node got its limit later
	full.Claims[id.String()] = node.Claim{CPU: 500, Memory: 500}
	boundless := &node.View{Node: node.Node{Name: "n", Capacity: node.Capacity{Slots: 2}}}
	busy, returned := *view, *view
	busy.PortsInUse = []int{80, 90}
	returned.PortsInUse, returned.Orphans = busy.PortsInUse, []pod.Orphan{{Identity: id}}
	for name, c := range map[string]struct {
		view *node.View
		res  node.Reservation
		want node.Claim
		says scheduler.Reason
	}{
		"empty":      {view, node.Reservation{}, node.Claim{CPU: 1000}, ""},
		"closed":     {view, node.Reservation{Ineligible: true}, node.Claim{}, scheduler.Drained},
		"port taken": {view, claimed(node.Claim{Ports: []int{80}}), node.Claim{Ports: []int{80}}, scheduler.Ports},
		"port free":  {view, claimed(node.Claim{Ports: []int{81}}), node.Claim{Ports: []int{80}}, ""},
		"cpu":        {view, claimed(node.Claim{CPU: 600}), node.Claim{CPU: 500}, scheduler.Resources},
		"memory": {
			view, claimed(node.Claim{Memory: 600}),
			node.Claim{Memory: 500},
			scheduler.Resources,
		},
		"cpu to the last":        {view, claimed(node.Claim{CPU: 600}), node.Claim{CPU: 400}, ""},
		"memory to the last":     {view, claimed(node.Claim{Memory: 600}), node.Claim{Memory: 400}, ""},
		"no limit of cpu":        {boundless, claimed(node.Claim{CPU: 600}), node.Claim{CPU: 500}, ""},
		"no limit of memory":     {boundless, claimed(node.Claim{Memory: 600}), node.Claim{Memory: 500}, ""},
		"own share is no rival":  {view, mine, node.Claim{Ports: []int{80}, CPU: 1000, Memory: 1000}, ""},
		"over-full, as much":     {view, full, node.Claim{CPU: 500, Memory: 500}, ""},
		"over-full, less":        {view, full, node.Claim{CPU: 400, Memory: 300}, ""},
		"over-full, more cpu":    {view, full, node.Claim{CPU: 501, Memory: 500}, scheduler.Resources},
		"over-full, more memory": {view, full, node.Claim{CPU: 500, Memory: 501}, scheduler.Resources},
		"over-full, a new pod":   {view, claimed(node.Claim{CPU: 1100}), node.Claim{}, scheduler.Resources},
		"orphan holds a port":    {&orphaned, node.Reservation{}, node.Claim{Ports: []int{80}}, scheduler.Ports},
		"orphan holds a slot":    {&orphaned, claimed(node.Claim{}), node.Claim{}, scheduler.Resources},

		"in use on the machine":         {&busy, claimed(node.Claim{}), node.Claim{Ports: []int{90}}, scheduler.Ports},
		"in use, and the pod is there":  {&busy, mine, node.Claim{Ports: []int{80, 90}}, ""},
		"in use, and it runs unclaimed": {&returned, node.Reservation{}, node.Claim{Ports: []int{90}}, ""},
		"in use, and another has it":    {&busy, both, node.Claim{Ports: []int{80, 90}}, scheduler.Ports},
	} {
		if got := scheduler.Fits(c.view, c.res, id, c.want); got != c.says {
			t.Errorf("%s: %q, want %q", name, got, c.says)
		}
	}
}

func TestEligible(t *testing.T) {
	t.Parallel()
	view := func(change func(*node.View)) *node.View {
		v := &node.View{Node: node.Node{Labels: map[string]string{"rack": "a"}, Epoch: "now"}, Alive: true}
		change(v)
		return v
	}
	nodes := map[string]*node.View{
		"good":      view(func(*node.View) {}),
		"overruled": view(func(v *node.View) { v.Labels["rack"] = "b"; v.Ops.Labels = map[string]string{"rack": "a"} }),
		"other":     view(func(v *node.View) { v.Labels["rack"] = "b" }),
		"dead":      view(func(v *node.View) { v.Alive = false }),
		"silent":    view(func(v *node.View) { v.Epoch = "before" }),
		"closed":    view(func(v *node.View) { v.Ops.Unschedulable = true }),
		"drained":   view(func(v *node.View) { v.Ops.Drain = &node.Drain{} }),
	}
	sel, err := rc.ParseSelector("rack=a")
	if err != nil {
		t.Fatal(err)
	}
	rule := scheduler.Rule{Selector: sel, Epoch: "now"}
	names, others := rule.Eligible(nodes)
	if !slices.Equal(names, []string{"good", "overruled"}) {
		t.Errorf("eligible: %v", names)
	}
	if got, want := others.String(), "drained: 2, not alive: 1, not settled: 1, selector: 1"; got != want {
		t.Errorf("others: %s, want %s", got, want)
	}
}

func TestCheck(t *testing.T) {
	t.Parallel()
	sel, err := rc.ParseSelector("rack=a,disk!=old")
	if err != nil {
		t.Fatal(err)
	}
	id := identity("rc", 0)
	rule := scheduler.Rule{
		Selector: sel, Epoch: "now", MaxPerNode: 2,
		Ask: node.Claim{Ports: []int{80}}, Dynamic: []string{"admin"},
	}
	full := node.Reservation{Claims: map[string]node.Claim{identity("other", 1).String(): {}}}
	for name, c := range map[string]struct {
		change func(*scheduler.Candidate)
		says   scheduler.Reason
	}{
		"takes it": {func(*scheduler.Candidate) {}, ""},
		"selector before all": {func(c *scheduler.Candidate) {
			c.View.Ops.Labels = map[string]string{"disk": "old"}
			c.View.Alive = false
		}, scheduler.Selector},
		"operators cannot be read": {func(c *scheduler.Candidate) {
			c.View.OpsUnread = "unreadable record nodeops/7/n"
			c.View.Ops.Labels = map[string]string{"disk": "old"} // not looked at
		}, scheduler.Unread},
		"not settled":            {func(c *scheduler.Candidate) { c.View.Epoch = "before" }, scheduler.NotSynced},
		"cordoned":               {func(c *scheduler.Candidate) { c.View.Ops.Unschedulable = true }, scheduler.Drained},
		"drained, not heard yet": {func(c *scheduler.Candidate) { c.Reservation.Ineligible = true }, scheduler.Drained},
		"labels of now":          {func(c *scheduler.Candidate) { c.Reservation.Labels = c.View.LabelVersions }, ""},
		"no label versions":      {func(c *scheduler.Candidate) { c.View.LabelVersions = node.LabelVersions{} }, ""},
		"relabelled, not heard yet": {func(c *scheduler.Candidate) {
			c.Reservation.Labels.Operators = node.LabelVersion(map[string]string{"rack": "b"})
		}, scheduler.Relabelled},
		"started with other labels": {func(c *scheduler.Candidate) {
			c.Reservation.Labels.Own = node.LabelVersion(nil)
		}, scheduler.Relabelled},
		"was there":       {func(c *scheduler.Candidate) { c.Avoid = true; c.Pods = 2 }, scheduler.Avoided},
		"per node":        {func(c *scheduler.Candidate) { c.Pods = 2; c.Reservation = full }, scheduler.MaxPerNode},
		"full":            {func(c *scheduler.Candidate) { c.Reservation = full }, scheduler.Resources},
		"no dynamic port": {func(c *scheduler.Candidate) { c.View.PortRange = node.PortRange{} }, scheduler.Ports},
	} {
		at := scheduler.Candidate{View: node.NewView(node.Node{
			Name: "n", Epoch: "now", Labels: map[string]string{"rack": "a"}, Capacity: node.Capacity{Slots: 1},
			PortRange: node.PortRange{Min: 20000, Max: 20009},
		}, node.Ops{}, true)}
		c.change(&at)
		if got := rule.Check(at, id); got != c.says {
			t.Errorf("%s: %q, want %q", name, got, c.says)
		}
	}
	boundless := scheduler.Rule{Selector: sel}
	roomy := &node.View{Alive: true, Node: node.Node{
		Labels:   map[string]string{"rack": "a"},
		Capacity: node.Capacity{Slots: 9},
	}}
	if got := boundless.Check(scheduler.Candidate{View: roomy, Pods: 5}, id); got != "" {
		t.Errorf("without a limit per node: %q", got)
	}
	var nothing scheduler.Rule
	if got := nothing.Excludes(&node.View{Alive: true}); got != scheduler.Selector {
		t.Errorf("a rule without a selector says %q", got)
	}
}

// Farms call Excludes for each node, so a call must not allocate memory.
func TestExcludesAllocatesNothing(t *testing.T) {
	sel, err := rc.ParseSelector("rack in (a,b),disk=ssd,!gpu")
	if err != nil {
		t.Fatal(err)
	}
	rule := scheduler.Rule{Selector: sel}
	v := &node.View{
		Alive: true, Node: node.Node{Labels: map[string]string{"rack": "a", "disk": "hdd"}},
		Ops: node.Ops{Labels: map[string]string{"disk": "ssd"}},
	}
	if got := rule.Excludes(v); got != "" {
		t.Fatalf("excluded: %s", got)
	}
	if n := testing.AllocsPerRun(100, func() { rule.Excludes(v) }); n > 0 {
		t.Errorf("%v allocations for one question", n)
	}
}

// Pods with images go only to nodes that report that they run containers. A drained node that also lacks containers is
// counted for that, because an undrain would not help.
func TestPodsWithImagesNeedNodesThatRunContainers(t *testing.T) {
	t.Parallel()
	all, err := rc.ParseSelector("")
	if err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		can    *node.Containers
		closed bool
		says   scheduler.Reason
	}{
		"runs them":    {&node.Containers{Runc: "1.1.5"}, false, ""},
		"no runc":      {&node.Containers{Lacks: []string{"no runc: install it"}}, false, scheduler.Containers},
		"no report":    {nil, false, scheduler.Containers},
		"drained, too": {nil, true, scheduler.Containers},
		"drained":      {&node.Containers{Runc: "1.1.5"}, true, scheduler.Drained},
	} {
		v := &node.View{Node: node.Node{Containers: tt.can}, Alive: true}
		v.Ops.Unschedulable = tt.closed
		for _, images := range []bool{true, false} {
			rule, want := scheduler.Rule{Selector: all, Containers: images}, tt.says
			if want == scheduler.Containers && !images {
				if want = ""; tt.closed {
					want = scheduler.Drained
				}
			}
			if got := rule.Excludes(v); got != want {
				t.Errorf("%s, with images: %t: %q, want %q", name, images, got, want)
			}
		}
		if got, err := new(scheduler.ByLabel).Select(scheduler.Query{
			Containers: true, Nodes: map[string]*node.View{"n": v},
		}); err != nil || (len(got.Groups) == 1) != (tt.says == "") || tt.says != "" && got.Others[tt.says] != 1 {
			t.Errorf("%s: selected %+v, %v", name, got, err)
		}
	}
}
