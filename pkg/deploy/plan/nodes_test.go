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

// runs gives pods of the service's first controller nodes, the first index the first of them.
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

// What runs, stops or is upgraded has its nodes in the plan, as the farm's rule finds them.
func TestNodesOfAPlan(t *testing.T) {
	const onePort = `pod.ports=[{"name": "http", "port": 80}]`
	for _, tt := range []struct {
		name     string
		slots    []int    // of each node
		on       []string // nodes of the pods that there are; none: the service is new
		was, is  []string // document
		strategy string
		want     []string
	}{
		{"new", []int{9, 9, 9}, nil, nil, []string{`replicas=3`}, "", []string{"run 3 pods of web-r1 (forecast: n0, n1, n2)"}},
		{"new, two on a node", []int{9, 9}, nil, nil, []string{`replicas=3`}, "", []string{"run 3 pods of web-r1 (forecast: n0 (2 pods), n1)"}},
		{"new, without room for all", []int{1, 1}, nil, nil, []string{`replicas=3`}, "", []string{"run 3 pods of web-r1 (forecast: n0, n1; no node for 1)"}},
		{"new, no node", nil, nil, nil, []string{`replicas=2`}, "", []string{"run 2 pods of web-r1 (forecast: no node for 2)"}},
		{"new, many", []int{20, 20, 20}, nil, nil, []string{`replicas=22`}, "", []string{"run 22 pods of web-r1 (forecast: 3 nodes, 7 to 8 pods each)"}},
		{"new, as many on each", []int{20, 20, 20}, nil, nil, []string{`replicas=21`}, "", []string{"run 21 pods of web-r1 (forecast: 3 nodes, 7 pods each)"}},
		{"new, on each node", []int{9, 0, 9}, nil, nil, []string{`replicas=null`, `mode="each-node"`}, "", []string{"run 2 pods of web-r1 (forecast: n0, n2)"}},
		{"more", []int{9, 9, 9}, []string{"n0", "n1"}, []string{`replicas=2`}, []string{`replicas=4`}, "", []string{"run 2 pods of web-r1 (forecast: n0, n2)"}},
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
			[]string{"run 2 pods of web-r2 (forecast: n0, n1)", "stop 2 pods of web-r1 (forecast: n0, n1)", "remove 2 pods of web-r1 (forecast: n0, n1)"},
		},
		{
			"a new version, where the old one leaves room",
			[]int{1, 1, 1},
			[]string{"n0", "n1"},
			[]string{`replicas=2`},
			[]string{`replicas=2`, newManifest},
			"",
			[]string{"run 2 pods of web-r2 (forecast: n1, n2)", "stop 2 pods of web-r1 (forecast: n0, n1)", "remove 2 pods of web-r1 (forecast: n0, n1)"},
		},
		{
			"a new version after the old one has stopped",
			[]int{1, 1},
			[]string{"n0", "n1"},
			[]string{`replicas=2`, onePort},
			[]string{`replicas=2`, onePort, newManifest},
			rollout.ResourceUtilStrategy,
			[]string{"run 2 pods of web-r2 (forecast: n0, n1)", "stop 2 pods of web-r1 (forecast: n0, n1)", "remove 2 pods of web-r1 (forecast: n0, n1)"},
		},
		{
			"all at once",
			[]int{3, 3},
			[]string{"n0", "n1"},
			[]string{`replicas=2`},
			[]string{`replicas=2`, newManifest},
			rollout.BlueGreenStrategy,
			[]string{"run 2 pods of web-r2 (forecast: n0, n1)", "stop 2 pods of web-r1 (forecast: n0, n1)", "remove 2 pods of web-r1 (forecast: n0, n1)"},
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
				"create volume data for each of 1 pod, on its node (forecast: n0)", "run 1 pod of web-r1 (forecast: n0)",
			},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c, state := &cluster{}, wide(tt.slots...)
			if tt.was != nil {
				c.deployed(t, sample(t, tt.was...))
				c.runs(state, tt.on...)
			}
			p, err := c.planOf(t, sample(t, tt.is...), func(r *plan.RollingStrategy) { r.State, r.Override = state, tt.strategy })
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

// Where farms ask an outside scheduler, a plan names no node that a pod comes to. Where pods are is known all the same.
func TestNodesOfAnOutsideScheduler(t *testing.T) {
	c, state := &cluster{}, nodes(9, 9)
	state.Elsewhere = true
	c.deployed(t, sample(t, `replicas=1`))
	c.runs(state, "n1")
	p, err := c.planOf(t, sample(t, `replicas=1`, newManifest), func(r *plan.RollingStrategy) { r.State = state })
	want := []string{
		"run 1 pod of web-r2 (nodes unknown: farms ask an outside scheduler)",
		"stop 1 pod of web-r1 (forecast: n1)", "remove 1 pod of web-r1 (forecast: n1)",
	}
	if diff := cmp.Diff(want, forecasts(&p)); err != nil || diff != "" {
		t.Error(err, diff)
	}
	p, err = c.planOf(t, sample(t, `replicas=1`, newManifest), func(r *plan.RollingStrategy) { r.State = nil })
	if got := forecasts(&p); err != nil || len(got) != 0 {
		t.Errorf("without a look at nodes: %q, %v", got, err)
	}
}

// The forecast places each group by its own manifest, and counts what the groups before it take.
func TestNodesOfGroups(t *testing.T) {
	c, state := &cluster{}, wide(9, 9)
	for _, v := range state.Nodes {
		v.Capacity.CPU = 2000
	}
	groups := `replica_groups=[{"role": "big", "count": 1, "resources": {"cpu": 1500}},{"role": "small", "count": 4, "resources": {"cpu": 500}}]`
	p, err := c.planOf(t, sample(t, `replicas=null`, groups), func(r *plan.RollingStrategy) { r.State = state })
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
	p, err := c.planOf(t, sample(t, `replicas=1000`, newManifest, `update.step=1`), func(r *plan.RollingStrategy) { r.State = state })
	if got := forecasts(&p); err != nil || len(got) != 3 || !strings.HasPrefix(got[0], "run 1000 pods of web-r2 (forecast: 40 nodes, ") || strings.Contains(got[0], "no node for") {
		t.Errorf("%q, %v", got, err)
	}
}

// Executing says of each operation when it is done. An error names the operation as the plan shows it.
func TestOperationsAreReported(t *testing.T) {
	c := &cluster{}
	d := deployment(t, c)
	var done []string
	d.Report = func(op plan.Operation) { done = append(done, fmt.Sprintf("%T", op)) }
	p, err := d.Run(t.Context())
	want := []string{"*plan.CreateManifestOperation", "*plan.CreateControllerOperation", "*plan.StartRolloutOperation", "*plan.RunPodsOperation"}
	if diff := cmp.Diff(want, done); err != nil || diff != "" || len(c.commits) != 1 {
		t.Error(err, diff, len(c.commits))
	}
	run := p.Operations[3]
	id := c.commits[0].Deployed.RC
	if got := run.String(); got != "run 3 pods of "+id {
		t.Error(got)
	}
	if lines := run.Format(plan.Names{id: "web-r1"}); len(lines) != 1 || lines[0].Text != "run 3 pods of web-r1" {
		t.Error(lines)
	}
	if err := run.Execute(context.Background(), failing{}); err == nil {
		t.Error("it waits for nothing")
	}
}

// failing is a cluster in which no goal is reached.
type failing struct{ plan.Client }

func (failing) Await(context.Context, plan.Goal) error { return context.DeadlineExceeded }

// A saved plan whose pods have moved since does the same. Shows says that only the nodes are others.
func TestASavedPlanWhosePodsMoved(t *testing.T) {
	c := &cluster{}
	c.deployed(t, sample(t, `replicas=1`))
	at := func(name string) plan.Plan {
		state := withRoom(oneEpoch)
		c.runs(state, name)
		p, err := c.planOf(t, sample(t, `replicas=1`, newManifest), func(r *plan.RollingStrategy) { r.State = state })
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

// Where one role has fewer, the nodes are those of its pods.
func TestNodesOfARoleThatHasFewer(t *testing.T) {
	groups := func(read int) []string {
		return []string{`replicas=null`, fmt.Sprintf(`replica_groups=[{"role": "main", "count": 3}, {"role": "read", "count": %d}]`, read)}
	}
	c, state := &cluster{}, wide(9, 9, 9, 9, 9)
	c.deployed(t, sample(t, groups(2)...))
	for i, role := range []string{"main", "main", "main", "read", "read"} {
		id := pod.Identity{RCID: c.svc.Controllers[0].RC.ID, Role: role, Index: i % 3}
		state.Taken[fmt.Sprint("n", i)].Claims[id.String()] = node.Claim{Pod: id}
	}
	p, err := c.planOf(t, sample(t, groups(1)...), func(r *plan.RollingStrategy) { r.State = state })
	want := []string{"stop 1 pod of web-r1 (forecast: n4)", "remove 1 pod of web-r1 (forecast: n4)"}
	if diff := cmp.Diff(want, forecasts(&p)); err != nil || diff != "" {
		t.Error(err, diff)
	}
}

// A forecast goes through a bounded number of stages also where no stage finds a node before old pods are gone. With
// one stage for each pod it took 60 times as long as where there is room.
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
		p, err := c.planOf(t, sample(t, fmt.Sprintf("replicas=%d", pods), newManifest, `update.step=1`), func(r *plan.RollingStrategy) { r.State = state })
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

// On the way back a lower count takes pods of the former revision, although those of the newer one go first.
func TestNodesOfALowerCountOnTheWayBack(t *testing.T) {
	c, state := &cluster{}, wide(9, 9, 9, 9, 9)
	turned(t, c)
	c.runs(state, "n0", "n1", "n2")
	id := pod.Identity{RCID: c.svc.Controllers[1].RC.ID, Role: rc.DefaultRole}
	state.Taken["n3"].Claims[id.String()] = node.Claim{Pod: id}
	p, err := c.planOf(t, sample(t, `replicas=2`, newManifest), func(r *plan.RollingStrategy) { r.State = state })
	if err != nil {
		t.Fatal(err)
	}
	want := "stop 1 pod of web-r1 (forecast: n2)"
	if got := forecasts(&p); !slices.Contains(got, want) {
		t.Errorf("no %q in %q", want, got)
	}
}
