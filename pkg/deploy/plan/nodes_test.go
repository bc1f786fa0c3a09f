package plan_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/rcfarm/rcfarm/pkg/deploy/plan"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/rollout"
)

// forecasts returns the lines of a plan that name nodes.
func forecasts(p *plan.Plan) []string {
	lines := []string{}
	for _, l := range p.Lines() {
		if l.Where != nil {
			lines = append(lines, fmt.Sprintf("%s (%s)", l.Text, l.Where))
		}
	}
	return lines
}

// runs puts pods of the service's first controller on nodes: index 0 on the first node, and so on.
func (c *cluster) runs(state *plan.State, on ...string) {
	for i, name := range on {
		id := pod.Identity{RCID: c.svc.Controllers[0].RC.ID, Role: rc.DefaultRole, Index: i}
		state.Taken[name].Claims[id.String()] = node.Claim{Pod: id}
	}
}

// wide is nodes with enough dynamic ports for all pods.
func wide(slots ...int) *plan.State {
	s := nodes(slots...)
	for _, v := range s.Nodes {
		v.PortRange.Max = 2999
	}
	return s
}

// A plan shows the nodes of pods that start, stop or are upgraded. It finds them with the rules of farms.
func TestNodesOfAPlan(t *testing.T) {
	const onePort = `pod.ports=[{"name": "http", "port": 80}]`
	for _, tt := range []struct {
		name     string
		slots    []int    // of each node
		on       []string // nodes of the present pods; none: the service is new
		was, is  []string // document
		strategy string
		want     []string
	}{
		{
			"new",
			[]int{9, 9, 9},
			nil, nil,
			[]string{`replicas=3`},
			"",
			[]string{"run 3 pods of web-r1 (forecast: n0, n1, n2)"},
		},
		{
			"new, two on a node",
			[]int{9, 9},
			nil, nil,
			[]string{`replicas=3`},
			"",
			[]string{"run 3 pods of web-r1 (forecast: n0 (2 pods), n1)"},
		},
		{
			"new, without room for all",
			[]int{1, 1},
			nil, nil,
			[]string{`replicas=3`},
			"",
			[]string{"run 3 pods of web-r1 (forecast: n0, n1; no node for 1)"},
		},
		{
			"new, no node", nil, nil, nil,
			[]string{`replicas=2`},
			"",
			[]string{"run 2 pods of web-r1 (forecast: no node for 2)"},
		},
		{
			"new, many",
			[]int{20, 20, 20},
			nil, nil,
			[]string{`replicas=22`},
			"",
			[]string{"run 22 pods of web-r1 (forecast: 3 nodes, 7 to 8 pods each)"},
		},
		{
			"new, as many on each",
			[]int{20, 20, 20},
			nil, nil,
			[]string{`replicas=21`},
			"",
			[]string{"run 21 pods of web-r1 (forecast: 3 nodes, 7 pods each)"},
		},
		{
			"new, on each node",
			[]int{9, 0, 9},
			nil, nil,
			[]string{`replicas=null`, `mode="each-node"`},
			"",
			[]string{"run 2 pods of web-r1 (forecast: n0, n2)"},
		},
		{
			"more",
			[]int{9, 9, 9},
			[]string{"n0", "n1"},
			[]string{`replicas=2`},
			[]string{`replicas=4`},
			"",
			[]string{"run 2 pods of web-r1 (forecast: n0, n2)"},
		},
		{
			"fewer",
			[]int{9, 9, 9},
			[]string{"n0", "n2", "n1"},
			[]string{`replicas=3`},
			[]string{`replicas=1`},
			"",
			[]string{"stop 2 pods of web-r1 (forecast: n1, n2)", "remove 2 pods of web-r1 (forecast: n1, n2)"},
		},
		{
			"a new version, beside the old one",
			[]int{9, 9},
			[]string{"n0", "n1"},
			[]string{`replicas=2`},
			[]string{`replicas=2`, newManifest},
			"",
			[]string{
				"run 2 pods of web-r2 (forecast: n0, n1)", "stop 2 pods of web-r1 (forecast: n0, n1)",
				"remove 2 pods of web-r1 (forecast: n0, n1)",
			},
		},
		{
			"a new version, where the old one leaves room",
			[]int{1, 1, 1},
			[]string{"n0", "n1"},
			[]string{`replicas=2`},
			[]string{`replicas=2`, newManifest},
			"",
			[]string{
				"run 2 pods of web-r2 (forecast: n1, n2)", "stop 2 pods of web-r1 (forecast: n0, n1)",
				"remove 2 pods of web-r1 (forecast: n0, n1)",
			},
		},
		{
			"a new version after the old one has stopped",
			[]int{1, 1},
			[]string{"n0", "n1"},
			[]string{`replicas=2`, onePort},
			[]string{`replicas=2`, onePort, newManifest},
			rollout.ResourceUtilStrategy,
			[]string{
				"run 2 pods of web-r2 (forecast: n0, n1)", "stop 2 pods of web-r1 (forecast: n0, n1)",
				"remove 2 pods of web-r1 (forecast: n0, n1)",
			},
		},
		{
			"all at once",
			[]int{3, 3},
			[]string{"n0", "n1"},
			[]string{`replicas=2`},
			[]string{`replicas=2`, newManifest},
			rollout.BlueGreenStrategy,
			[]string{
				"run 2 pods of web-r2 (forecast: n0, n1)", "stop 2 pods of web-r1 (forecast: n0, n1)",
				"remove 2 pods of web-r1 (forecast: n0, n1)",
			},
		},
		{
			"new, all at once",
			[]int{9, 9},
			nil, nil,
			[]string{`replicas=2`},
			rollout.BlueGreenStrategy,
			[]string{"run 2 pods of web-r1 (forecast: n0, n1)"},
		},
		{
			"in place, with volumes",
			[]int{3, 3},
			[]string{"n0", "n1"},
			[]string{`replicas=2`, `pod.volumes=[{"name": "data"}]`},
			[]string{`replicas=3`, `pod.volumes=[{"name": "data"}]`, newManifest},
			"",
			[]string{
				"upgrade in place 2 pods of web-r1 (forecast: n0, n1)",
				"create volume data for each of 1 pod, on its node (forecast: n0)",
				"run 1 pod of web-r1 (forecast: n0)",
			},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c, state := &cluster{}, wide(tt.slots...)
			if tt.was != nil {
				c.deployed(t, sample(t, tt.was...))
				c.runs(state, tt.on...)
			}
			p, err := c.planOf(t, sample(t, tt.is...), func(r *plan.ServicePlanner) {
				r.State, r.Override = state, tt.strategy
			})
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, forecasts(&p)); diff != "" {
				t.Error(diff)
			}
			taken := 0
			for _, r := range state.Taken {
				taken += len(r.Claims)
			}
			if taken != len(tt.on) {
				t.Errorf("a forecast takes nothing, and %d are taken", taken)
			}
		})
	}
}

// If farms ask an outside scheduler, a plan names no nodes for new pods. It still names the nodes of present pods.
func TestNodesOfAnOutsideScheduler(t *testing.T) {
	c, state := &cluster{}, nodes(9, 9)
	state.Elsewhere = true
	c.deployed(t, sample(t, `replicas=1`))
	c.runs(state, "n1")
	p, err := c.planOf(t, sample(t, `replicas=1`, newManifest), func(r *plan.ServicePlanner) { r.State = state })
	want := []string{
		"run 1 pod of web-r2 (nodes unknown: farms ask an outside scheduler)",
		"stop 1 pod of web-r1 (forecast: n1)", "remove 1 pod of web-r1 (forecast: n1)",
	}
	if diff := cmp.Diff(want, forecasts(&p)); err != nil || diff != "" {
		t.Error(err, diff)
	}
	p, err = c.planOf(t, sample(t, `replicas=1`, newManifest), func(r *plan.ServicePlanner) { r.State = nil })
	if got := forecasts(&p); err != nil || len(got) != 0 {
		t.Errorf("without a look at nodes: %q, %v", got, err)
	}
}

// The forecast places each group by its own manifest. The capacity that earlier groups take is not free for it.
func TestNodesOfGroups(t *testing.T) {
	c, state := &cluster{}, wide(9, 9)
	for _, v := range state.Nodes {
		v.Capacity.CPU = 2000
	}
	groups := `replica_groups=[{"role": "big", "count": 1, "resources": {"cpu": 1500}},` +
		`{"role": "small", "count": 4, "resources": {"cpu": 500}}]`
	p, err := c.planOf(t, sample(t, `replicas=null`, groups), func(r *plan.ServicePlanner) { r.State = state })
	want := []string{"run 5 pods of web-r1 (forecast: n0 (2 pods), n1 (3 pods))"}
	if diff := cmp.Diff(want, forecasts(&p)); err != nil || diff != "" {
		t.Error(err, diff)
	}
}

// A forecast of many stages ends, and looks at each node a bounded number of times.
func TestNodesOfManyStages(t *testing.T) {
	c, state := &cluster{}, wide(slices.Repeat([]int{50}, 40)...)
	c.deployed(t, sample(t, `replicas=1000`))
	on := make([]string, 1000)
	for i := range on {
		on[i] = fmt.Sprint("n", i%40)
	}
	c.runs(state, on...)
	p, err := c.planOf(t, sample(t, `replicas=1000`, newManifest, `update.step=1`), func(r *plan.ServicePlanner) {
		r.State = state
	})
	if got := forecasts(&p); err != nil || len(got) != 3 ||
		!strings.HasPrefix(got[0], "run 1000 pods of web-r2 (forecast: 40 nodes, ") ||
		strings.Contains(got[0], "no node for") {
		t.Errorf("%q, %v", got, err)
	}
}

// Report is called for each operation that is done. An error names the operation with the text of the plan.
func TestOperationsAreReported(t *testing.T) {
	c := &cluster{}
	d := deployment(t, c)
	var done []string
	d.Report = func(op *plan.Operation) {
		words := strings.Fields(op.String())
		done = append(done, strings.Join(words[:2], " "))
	}
	p, err := d.Run(t.Context())
	want := []string{"create manifest", "create controller", "start rollout", "run 3"}
	if diff := cmp.Diff(want, done); err != nil || diff != "" || len(c.commits) != 1 {
		t.Error(err, diff, len(c.commits))
	}
	run := p.Operations[3]
	id := c.commits[0].Deployed.RC
	if got := run.String(); got != "run 3 pods of "+id {
		t.Error(got)
	}
	if got := run.Text(plan.Names{id: "web-r1"}); got != "run 3 pods of web-r1" {
		t.Error(got)
	}
	if err := run.Execute(context.Background(), failing{}); err == nil {
		t.Error("it waits for nothing")
	}
}

// failing is a cluster in which no goal is reached.
type failing struct{ plan.Client }

func (failing) Await(context.Context, plan.Goal) error { return context.DeadlineExceeded }

// A saved plan does the same if its pods have moved since. Shows reports that only the nodes differ.
func TestASavedPlanWhosePodsMoved(t *testing.T) {
	c := &cluster{}
	c.deployed(t, sample(t, `replicas=1`))
	at := func(name string) plan.Plan {
		state := withRoom(oneEpoch)
		c.runs(state, name)
		p, err := c.planOf(t, sample(t, `replicas=1`, newManifest), func(r *plan.ServicePlanner) { r.State = state })
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	before, there, elsewhere := at("n0"), at("n0"), at("n1")
	saved := plan.SavedService{Operations: before.Lines(), Warnings: before.Warnings}
	if all, butNodes := saved.Shows(&there); !all || !butNodes {
		t.Error(all, butNodes)
	}
	if all, butNodes := saved.Shows(&elsewhere); all || !butNodes {
		t.Error(all, butNodes)
	}
}

// If one role gets a lower count, the plan shows the nodes of this role's pods.
func TestNodesOfARoleThatHasFewer(t *testing.T) {
	groups := func(read int) []string {
		return []string{
			`replicas=null`,
			fmt.Sprintf(`replica_groups=[{"role": "main", "count": 3}, {"role": "read", "count": %d}]`, read),
		}
	}
	c, state := &cluster{}, wide(9, 9, 9, 9, 9)
	c.deployed(t, sample(t, groups(2)...))
	for i, role := range []string{"main", "main", "main", "read", "read"} {
		id := pod.Identity{RCID: c.svc.Controllers[0].RC.ID, Role: role, Index: i % 3}
		state.Taken[fmt.Sprint("n", i)].Claims[id.String()] = node.Claim{Pod: id}
	}
	p, err := c.planOf(t, sample(t, groups(1)...), func(r *plan.ServicePlanner) { r.State = state })
	want := []string{"stop 1 pod of web-r1 (forecast: n4)", "remove 1 pod of web-r1 (forecast: n4)"}
	if diff := cmp.Diff(want, forecasts(&p)); err != nil || diff != "" {
		t.Error(err, diff)
	}
}

// A forecast has a bounded number of stages, even if no stage finds a node before old pods have stopped. With one stage
// for each pod, it took 60 times as long as in a cluster with free capacity.
func TestNodesOfAFullCluster(t *testing.T) {
	const pods, all = 1000, 2000
	took := func(slots int) time.Duration {
		of := make([]int, all)
		for i := range pods + 1 {
			of[i] = slots
		}
		c, state := &cluster{}, wide(of...)
		c.deployed(t, sample(t, fmt.Sprintf("replicas=%d", pods)))
		on := make([]string, pods)
		for i := range on {
			on[i] = fmt.Sprint("n", i)
		}
		c.runs(state, on...)
		begun := time.Now()
		p, err := c.planOf(t, sample(t, fmt.Sprintf("replicas=%d", pods), newManifest, `update.step=1`),
			func(r *plan.ServicePlanner) {
				r.State = state
			})
		if got := forecasts(&p); err != nil || len(got) != 3 || strings.Contains(got[0], "no node for") {
			t.Errorf("%d slots: %q, %v", slots, got, err)
		}
		return time.Since(begun)
	}
	roomy, full := took(2), took(1)
	if full > 10*roomy {
		t.Errorf("the plan of a full cluster took %s, that of a roomy one %s", full, roomy)
	}
	t.Logf("full %s, roomy %s", full, roomy)
}

// During a rollback, a lower count stops pods of the former revision, although pods of the newer revision stop first.
func TestNodesOfALowerCountOnTheWayBack(t *testing.T) {
	c, state := &cluster{}, wide(9, 9, 9, 9, 9)
	turned(t, c)
	c.runs(state, "n0", "n1", "n2")
	id := pod.Identity{RCID: c.svc.Controllers[1].RC.ID, Role: rc.DefaultRole}
	state.Taken["n3"].Claims[id.String()] = node.Claim{Pod: id}
	p, err := c.planOf(t, sample(t, `replicas=2`, newManifest), func(r *plan.ServicePlanner) { r.State = state })
	if err != nil {
		t.Fatal(err)
	}
	want := "stop 1 pod of web-r1 (forecast: n2)"
	if got := forecasts(&p); !slices.Contains(got, want) {
		t.Errorf("no %q in %q", want, got)
	}
}

// Nodes are named up to 20 pods, and counted above that.
func TestForecastsOfManyPodsAreCounted(t *testing.T) {
	on := func(nodes int) (w plan.Where) {
		for i := range nodes {
			w.Nodes = append(w.Nodes, plan.OnNode{Node: fmt.Sprint("n", i), Pods: 1})
		}
		return w
	}
	for pods, want := range map[int]string{
		0:  "forecast: no node",
		2:  "forecast: n0, n1",
		20: "forecast: n0, n1, n2, n3, n4, n5, n6, n7, n8, n9, n10, n11, n12, n13, n14, n15, n16, n17, n18, n19",
		21: "forecast: 21 nodes, 1 pod each",
	} {
		if w := on(pods); w.String() != want {
			t.Errorf("%d pods: %q, want %q", pods, w.String(), want)
		}
	}
}

// If a role gets a lower count, its pods on nodes that take no new pods stop first. Then the pods with the highest
// indices stop.
func TestNodesOfFewerPodsBeginWithThoseThatAreNotOpen(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(*plan.State)
		want   string
	}{
		"all are open":     {func(*plan.State) {}, "n2"},
		"one is cordoned":  {func(s *plan.State) { s.Nodes["n0"].Ops.Unschedulable = true }, "n0"},
		"one is down":      {func(s *plan.State) { s.Nodes["n1"].Alive = false }, "n1"},
		"one is not known": {func(s *plan.State) { delete(s.Nodes, "n1") }, "n1"},
		"none of them is open": {func(s *plan.State) {
			for _, v := range s.Nodes {
				v.Ops.Unschedulable = true
			}
		}, "n2"},
	} {
		c, state := &cluster{}, wide(9, 9, 9)
		c.deployed(t, sample(t))
		c.runs(state, "n0", "n1", "n2")
		tt.change(state)
		p, err := c.planOf(t, sample(t, `replicas=2`), func(r *plan.ServicePlanner) { r.State = state })
		want := []string{
			fmt.Sprintf("stop 1 pod of web-r1 (forecast: %s)", tt.want),
			fmt.Sprintf("remove 1 pod of web-r1 (forecast: %s)", tt.want),
		}
		if diff := cmp.Diff(want, forecasts(&p)); err != nil || diff != "" {
			t.Errorf("%s: %v %s", name, err, diff)
		}
	}
}

// byRole is a cluster of two groups with two pods each: main on n0 and n1, read on n2 and n3.
func byRole(t *testing.T, groups ...string) (*cluster, *plan.State) {
	t.Helper()
	c, state := &cluster{}, wide(9, 9, 9, 9)
	c.deployed(t, sample(t, groups...))
	for i, role := range []string{"main", "main", "read", "read"} {
		id := pod.Identity{RCID: c.svc.Controllers[0].RC.ID, Role: role, Index: i % 2}
		state.Taken[fmt.Sprint("n", i)].Claims[id.String()] = node.Claim{Pod: id}
	}
	return c, state
}

// A pod that must leave its node is placed again. So its node is not among the nodes of surplus pods.
func TestPodsThatMoveAreNotTooMany(t *testing.T) {
	groups := func(main int) []string {
		return []string{
			`replicas=null`,
			fmt.Sprintf(`replica_groups=[{"role": "main", "count": %d}, {"role": "read", "count": 2}]`, main),
		}
	}
	c, state := byRole(t, groups(2)...)
	state.Nodes["n3"].Ops.Drain = &node.Drain{}
	p, err := c.planOf(t, sample(t, groups(1)...), func(r *plan.ServicePlanner) { r.State = state })
	want := []string{"stop 1 pod of web-r1 (forecast: n1)", "remove 1 pod of web-r1 (forecast: n1)"}
	if diff := cmp.Diff(want, forecasts(&p)); err != nil || diff != "" {
		t.Error(err, diff)
	}
}

// If one role is upgraded in place, the plan shows the nodes of this role's pods.
func TestNodesOfARoleThatIsUpgraded(t *testing.T) {
	groups := func(env string) []string {
		return []string{
			`replicas=null`, upgrades,
			fmt.Sprintf(`replica_groups=[{"role": "main", "count": 2, "env": {"A": %q}}, {"role": "read", "count": 2}]`, env),
		}
	}
	c, state := byRole(t, groups("a")...)
	p, err := c.planOf(t, sample(t, groups("b")...), func(r *plan.ServicePlanner) { r.State = state })
	want := []string{"upgrade in place 2 pods of web-r1 (forecast: n0, n1)"}
	if diff := cmp.Diff(want, forecasts(&p)); err != nil || diff != "" {
		t.Error(err, diff)
	}
}

// A rollout to fewer pods keeps the surplus old pods until the new pods are available. The rollout's line in the plan
// shows how many pods there can be until then.
func TestARolloutToFewerPodsSaysHowManyThereMayBe(t *testing.T) {
	c := &cluster{}
	c.deployed(t, sample(t, `replicas=6`))
	c.svc.Controllers[0].Status = &rc.Status{ObservedGeneration: 1, Desired: 6, Placed: 6, Available: 6}
	p, err := c.planOf(t, sample(t, `replicas=2`, newManifest))
	want := "start rollout availability: 2 in 2 stages of up to 1, at least 2 available, at most 1 more than 6"
	if !slices.ContainsFunc(p.Lines(), func(l plan.Line) bool { return l.Text == want }) || err != nil {
		t.Errorf("no %q in %+v, %v", want, p.Lines(), err)
	}
}
