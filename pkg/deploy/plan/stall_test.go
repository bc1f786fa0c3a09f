package plan_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rcfarm/rcfarm/pkg/deploy/plan"
)

// A rollout can have capacity for its first stage and for its end, but not for a stage between them, because old and
// new pods together need more. The plan warns of this, and names what helps. A refusal never recommends such a rollout.
func TestARolloutThatGetsStuckHalfWay(t *testing.T) {
	const cpu = 4000 // of a node
	large := `pod.launchables=` + launchableWith(`{"cpu": 3000}`)
	for _, tt := range []struct {
		name  string
		nodes int
		on    []int // the node of each old pod; an old pod takes half of a node
		spec  []string
		warns []string
		error string
	}{
		{
			"half of each node is free", 4,
			[]int{0, 1, 0, 1},
			[]string{large, `update.step=2`},
			[]string{"the rollout would get stuck half-way: with 2 pods of the new revision and 2 others left, the " +
				"strategy availability has room for 0 of the next 2 " +
				"(nodes that take no more: resources: 4); use --strategy resourceutil (old pods stop first)"},
			"",
		},
		{"a node at a time is free", 5, []int{0, 0, 1, 1}, []string{large, `update.step=2`}, nil, ""},
		{
			"nothing helps", 3,
			[]int{0, 1, 0, 1},
			[]string{large, `update.step=1`, `replicas=3`},
			[]string{"the rollout would get stuck half-way: with 1 pod of the new revision and 3 others left, the " +
				"strategy availability has room for 0 of the next 1 " +
				"(nodes that take no more: resources: 3); no strategy helps: add nodes, or free some of what is " +
				"taken: rcctl place --explain -f FILE shows it"},
			"",
		},
		{
			"a smaller surge would get stuck", 3,
			[]int{0, 1, 0},
			[]string{large, `update.step=2`},
			nil,
			"starts 2 pods before it stops others, and the nodes have room for 1 (nodes that take no more: " +
				"resources: 3); use --strategy resourceutil (old pods stop first)",
		},
		{"all new pods fit beside the old ones", 8, []int{0, 1, 0, 1}, []string{large, `update.step=2`}, nil, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := &cluster{}
			count := fmt.Sprintf("replicas=%d", len(tt.on))
			c.deployed(t, sample(t, count, `pod.launchables=`+launchableWith(`{"cpu": 2000}`)))
			state := nodes(make([]int, tt.nodes)...)
			for _, v := range state.Nodes {
				v.Capacity.Slots, v.Capacity.CPU = 9, cpu
			}
			for i, at := range tt.on {
				c.has(state, i, at, 2000)
			}
			p, err := c.planOf(t, sample(t, append([]string{count}, tt.spec...)...), func(r *plan.ServicePlanner) {
				r.State = state
			})
			if (err == nil) != (tt.error == "") || err != nil && !strings.HasSuffix(err.Error(), tt.error) {
				t.Errorf("got  %v\nwant %s", err, tt.error)
			}
			if diff := cmp.Diff(tt.warns, p.Warnings); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// A service with a pod on each node gets the same warnings and refusals as a service with counts.
func TestRoomOnEachNode(t *testing.T) {
	const each, none = `mode="each-node"`, `replicas=null`
	for _, tt := range []struct {
		name    string
		new     bool
		held    []int
		drained bool // n0
		spec    []string
		warns   []string
		error   string
	}{
		{"all have room", false, nil, false, []string{httpPort}, nil, ""},
		{
			"one node has none", false,
			[]int{1},
			false,
			[]string{httpPort},
			[]string{"there is room for 2 of 3 pods (nodes that take no more: ports: 1; " +
				"port 8080 is held by other-r1 on n1)"},
			"",
		},
		{
			"no node has any", false,
			[]int{0, 1, 2},
			false,
			[]string{httpPort},
			nil,
			"no-room: no pod can be upgraded where it is, and no node takes a new one (nodes that take no more: " +
				"ports: 3; port 8080 is held by other-r1 on n0, n1, n2); no strategy helps: free the port, or use " +
				"another one",
		},
		{"one is drained", false, nil, true, []string{httpPort}, nil, ""},
		{
			"none matches", false, nil, false,
			[]string{`node_selector="zone=x"`},
			nil,
			`the node_selector "zone=x" matches none of 3 nodes; no strategy helps: ` +
				`change it, or label nodes: rcctl label node NODE KEY=VALUE`,
		},
		{"new, all have room", true, nil, false, []string{httpPort}, nil, ""},
		{
			"new, one node has none", true,
			[]int{1},
			false,
			[]string{httpPort},
			[]string{"there is room for 2 of 3 pods (nodes that take no more: ports: 1; " +
				"port 8080 is held by other-r1 on n1)"},
			"",
		},
		{"new, no node has any", true, []int{0, 1, 2}, false, []string{httpPort}, []string{
			"there is room for 0 of 3 pods (nodes that take no more: ports: 3; port 8080 is held by other-r1 on n0, " +
				"n1, n2)",
		}, ""},
		{
			"new, none matches", true, nil, false,
			[]string{`node_selector="zone=x"`},
			[]string{"no node asks for a pod (nodes that take no more: selector: 3)"},
			"",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c, state := &cluster{}, nodes(1, 1, 1)
			if !tt.new {
				c.deployed(t, sample(t, none, each))
				state = c.full(3, 3)
			}
			state.Names = map[string]string{other: "other-r1"}
			held(state, 8080, tt.held...)
			if tt.drained {
				state.Nodes["n0"].Ops.Unschedulable = true
			}
			p, err := c.planOf(t, sample(t, append(tt.spec, none, each)...), func(r *plan.ServicePlanner) {
				r.State = state
			})
			if (err == nil) != (tt.error == "") || err != nil && !strings.Contains(err.Error(), tt.error) {
				t.Errorf("got  %v\nwant %s", err, tt.error)
			}
			if diff := cmp.Diff(tt.warns, p.Warnings); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// A service without pods cannot lose a pod if its document finds no node. So the plan warns, and is not refused.
func TestNoRoomForAServiceWithoutPodsIsAWarning(t *testing.T) {
	const each, none = `mode="each-node"`, `replicas=null`
	for _, tt := range []struct {
		name    string
		was, is []string
		state   *plan.State
		want    string
	}{
		{
			"no node for a pod on each",
			[]string{none, each},
			[]string{none, each, newManifest},
			nodes(),
			"no node asks for a pod (nodes that take no more: there are none)",
		},
		{
			"another selector, in place",
			[]string{upgrades},
			[]string{upgrades, `node_selector="zone=x"`},
			nodes(9),
			"there is room for 0 of 3 pods (nodes that take no more: selector: 1)",
		},
	} {
		c := &cluster{}
		c.deployed(t, sample(t, tt.was...))
		c.svc.Controllers[0].RC.InPlace = nil // its first rollout is over
		p, err := c.planOf(t, sample(t, tt.is...), func(r *plan.ServicePlanner) { r.State = tt.state })
		if diff := cmp.Diff([]string{tt.want}, p.Warnings); err != nil || diff != "" {
			t.Errorf("%s: %v %s", tt.name, err, diff)
		}
	}
}

// With a pod on each node, more nodes do not help the present nodes. So a refusal for lack of CPU does not recommend
// more nodes.
func TestNoCPUOnEachNodeAsksForNoMoreNodes(t *testing.T) {
	const each, none = `mode="each-node"`, `replicas=null`
	c := &cluster{}
	c.deployed(t, sample(t, none, each, `pod.launchables=`+launchableWith(`{"cpu": 500}`)))
	state := wide(9, 9)
	for i := range 2 {
		state.Nodes[fmt.Sprint("n", i)].Capacity.CPU = 1000
		c.has(state, i, i, 500)
	}
	_, err := c.planOf(t, sample(t, none, each, newManifest, `pod.launchables=`+launchableWith(`{"cpu": 1500}`)),
		func(r *plan.ServicePlanner) { r.State = state })
	want := "resources: 2); no strategy helps: free some of what is taken: rcctl place --explain -f FILE shows it"
	if err == nil || !strings.HasSuffix(err.Error(), want) {
		t.Errorf("got  %v\nwant %s", err, want)
	}
}
