package plan_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rcfarm/rcfarm/pkg/deploy/plan"
	"github.com/rcfarm/rcfarm/pkg/deploy/record"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/rollout"
)

// A service with a pod on each node is deployed only in place, also if its document names no strategy.
func TestAServiceOnEachNode(t *testing.T) {
	c := &cluster{}
	c.deployed(t, sample(t, "replicas=null", `mode="each-node"`))
	r := &c.svc.Controllers[0]
	if err := errors.Join(r.RC.Check(), c.svc.Deployed.Check(), c.svc.History[0].Check()); err != nil ||
		!r.RC.EachNode() || r.RC.ReplicaGroups != nil {
		t.Fatalf("%v: %+v", err, r.RC)
	}
	r.Status = &rc.Status{ObservedGeneration: r.RC.Generation, Desired: 4, Placed: 4, Available: 4}
	next := sample(t, "replicas=null", `mode="each-node"`, `pod.labels={"a":"b"}`)
	p, err := c.planOf(t, next)
	if err != nil {
		t.Fatal(err)
	}
	var text []string
	for _, line := range p.Lines() {
		text = append(text, line.Text)
	}
	all := strings.Join(text, "\n")
	if !strings.Contains(all, "start rollout in-place: 4 in ") ||
		!strings.Contains(all, "upgrade in place 4 pods of web-r1") || strings.Contains(all, "scale ") {
		t.Errorf("the plan is\n%s", all)
	}
	_, err = c.planOf(t, next, func(s *plan.ServicePlanner) { s.Override = rollout.AvailabilityStrategy })
	if err == nil || !strings.Contains(err.Error(), "mode is each-node") {
		t.Errorf("with another strategy: %v", err)
	}
	_, err = c.planOf(t, next, func(s *plan.ServicePlanner) { s.ForceRecreate = true })
	if err == nil || !strings.Contains(err.Error(), "in-place") {
		t.Errorf("anew: %v", err)
	}
}

func TestMistakesOfAServiceOnEachNode(t *testing.T) {
	const (
		inPlace = "in-place where mode is each-node"
		none    = "none, because update.strategy is " + inPlace
	)
	for more, want := range map[string]string{
		`update={"strategy":"canary"}`:    `update.strategy: "canary" is not valid; allowed: ` + inPlace,
		`update={"order":"stop-first"}`:   `update.order: "stop-first" is not valid; allowed: ` + none,
		`update={"canary":{"pods":1}}`:    "update.canary: a map is not valid; allowed: " + none,
		`pre_deploy={"args":["migrate"]}`: "pre_deploy: a map is not valid; allowed: nothing where mode is each-node",
		`replicas=3`:                      "replicas: 3 is not valid; allowed: nothing where mode is each-node",
	} {
		fields := []string{"replicas=null", `mode="each-node"`, more}
		if _, err := record.Decode(sampleJSON(t, fields...)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", more, err)
		}
	}
	if _, err := record.Decode(
		sampleJSON(t, "replicas=null", `mode="each-node"`, `update={"strategy":"in-place"}`),
	); err != nil {
		t.Error(err)
	}
}

// A plan of an upgrade in place of one group shows how many pods change, and in how many stages.
func TestAPlanOfOneGroup(t *testing.T) {
	c := &cluster{}
	groups := func(env string) []string {
		return []string{
			`replicas=null`, `update.strategy="in-place"`,
			`replica_groups=[{"role": "main", "count": 3}, {"role": "read", "count": 4, "env": {"A": "` + env + `"}}]`,
		}
	}
	c.deployed(t, sample(t, groups("a")...))
	p, err := c.planOf(t, sample(t, groups("b")...))
	if err != nil {
		t.Fatal(err)
	}
	var text []string
	for _, line := range p.Lines() {
		text = append(text, line.Text)
	}
	all := strings.Join(text, "\n")
	if !strings.Contains(all, "start rollout in-place: 4 of read in 4 stages of up to 1, at least 6 available, ") ||
		!strings.Contains(all, "upgrade in place 4 pods of web-r1") {
		t.Errorf("the plan is\n%s", all)
	}
}

// A plan between counts and a pod on each node shows how many pods run and stop, and where: a node keeps one of its
// pods.
func TestAPlanBetweenModes(t *testing.T) {
	counts := func(n int, more ...string) *record.ServiceSpec {
		return sample(t, append([]string{fmt.Sprintf("replicas=%d", n)}, more...)...)
	}
	each := func(more ...string) *record.ServiceSpec {
		return sample(t, append([]string{"replicas=null", `mode="each-node"`}, more...)...)
	}
	for _, tt := range []struct {
		name    string
		was, is *record.ServiceSpec
		on      []string
		rollout string
		want    []string
	}{
		{
			"to each node", counts(6), each(),
			[]string{"n0", "n0", "n0", "n1", "n1", "n2"},
			"4 in 2 stages of up to 1, at least 3 available, at most 0 more than 4",
			[]string{
				"run 1 pod of web-r1 (forecast: n3)",
				"stop 3 pods of web-r1 (forecast: n0 (2 pods), n1)",
				"remove 3 pods of web-r1 (forecast: n0 (2 pods), n1)",
			},
		},
		{
			"to each node, with a new version", counts(3), each(newManifest),
			[]string{"n0", "n0", "n1"},
			"4 in 4 stages of up to 1, at least 3 available, at most 0 more than 4",
			[]string{
				"upgrade in place 2 pods of web-r1 (forecast: n0, n1)", "run 2 pods of web-r1 (forecast: n2, n3)",
				"stop 1 pod of web-r1 (forecast: n0)", "remove 1 pod of web-r1 (forecast: n0)",
			},
		},
		{
			"to fewer", each(), counts(1),
			[]string{"n0", "n1", "n2", "n3"},
			"1 in 3 stages of up to 1, at least 0 available, at most 0 more than 1",
			[]string{
				"stop 3 pods of web-r1 (forecast: n1, n2, n3)", "remove 3 pods of web-r1 (forecast: n1, n2, n3)",
			},
		},
		{
			"to more", each(), counts(5),
			[]string{"n0", "n1", "n2", "n3"},
			"5 in 1 stage of up to 1, at least 4 available, at most 0 more than 5",
			[]string{"run 1 pod of web-r1 (forecast: n0)"},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c, state := &cluster{}, wide(9, 9, 9, 9)
			c.deployed(t, tt.was)
			c.runs(state, tt.on...)
			r := &c.svc.Controllers[0]
			r.RC.InPlace = nil // the rollout has ended
			r.Status = &rc.Status{
				ObservedGeneration: r.RC.Generation, Desired: len(tt.on), Placed: len(tt.on), Available: len(tt.on),
			}
			p, err := c.planOf(t, tt.is, func(s *plan.ServicePlanner) { s.State = state })
			if diff := cmp.Diff(tt.want, forecasts(&p)); err != nil || diff != "" {
				t.Error(err, diff)
			}
			started := ""
			for _, l := range p.Lines() {
				if strings.HasPrefix(l.Text, "scale ") {
					t.Errorf("%q, where the nodes say how many pods there are", l.Text)
				}
				if text, is := strings.CutPrefix(l.Text, "start rollout in-place: "); is {
					started = text
				}
			}
			if started != tt.rollout {
				t.Errorf("the rollout is %q, want %q", started, tt.rollout)
			}
		})
	}
}

// The execution of a plan from counts to a pod on each node waits for the pods of all nodes: kept pods and new pods.
func TestAPlanToEachNodeWaitsForThePodsOfAllNodes(t *testing.T) {
	c, state := &cluster{}, wide(9, 9, 9, 9)
	c.deployed(t, sample(t, `replicas=6`))
	c.runs(state, "n0", "n0", "n0", "n1", "n1", "n2")
	r := &c.svc.Controllers[0]
	r.Status = &rc.Status{ObservedGeneration: r.RC.Generation, Desired: 6, Placed: 6, Available: 6}
	d := deployment(t, c, `replicas=null`, `mode="each-node"`)
	d.Planner.(*plan.ServicePlanner).State = state
	p, err := d.Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	id := c.svc.Controllers[0].RC.ID
	want := []plan.Goal{
		{Service: "web", Rollout: p.Rollout(), RC: id, Reached: plan.Available, Pods: 4},
		{Service: "web", Rollout: p.Rollout(), RC: id, Reached: plan.Left, Pods: 4},
		{Service: "web", Rollout: p.Rollout(), RC: id, Reached: plan.Left, Pods: 4},
	}
	if diff := cmp.Diff(want, c.goals); diff != "" {
		t.Error(diff)
	}
}
