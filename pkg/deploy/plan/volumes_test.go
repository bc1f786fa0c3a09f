package plan_test

import (
	"strings"
	"testing"

	"github.com/rcfarm/rcfarm/pkg/deploy/plan"
	"github.com/rcfarm/rcfarm/pkg/deploy/record"
	"github.com/rcfarm/rcfarm/pkg/rc"
)

// ran plans a document and carries the plan out.
func (c *cluster) ran(t *testing.T, spec *record.ServiceSpec) (plan.Plan, error) {
	t.Helper()
	resolved, err := (&plan.ServiceSpecResolver{}).Resolve(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	d := plan.NewDeployment(c, *resolved, rolling())
	d.Detach = true
	return d.Run(t.Context())
}

// The service is older than the rule that pods with volumes are static by default, so its controller is dynamic. If the
// same document is deployed again, or with another count, the controller becomes static. The plan shows this.
func TestAnOlderControllerBecomesStatic(t *testing.T) {
	for _, more := range [][]string{nil, {`replicas=5`}} {
		c := &cluster{}
		c.deployed(t, sample(t, volumes))
		c.svc.Controllers[0].RC.Strategy = rc.Dynamic
		p, err := c.ran(t, sample(t, append(more, volumes)...))
		if err != nil || p.Empty() {
			t.Fatalf("%v: the plan is empty: %v", more, err)
		}
		if says := strings.Join(p.Warnings, "\n"); !strings.Contains(says,
			"the strategy of controller web-r1 is dynamic, and becomes static") {
			t.Errorf("%v: the plan warns of %q", more, says)
		}
		if changed := c.commits[len(c.commits)-1].Change; len(changed) != 1 || changed[0].Strategy != rc.Static {
			t.Errorf("%v: written was %+v", more, changed)
		}
	}
	c := &cluster{}
	c.deployed(t, sample(t, volumes))
	if p, err := c.planOf(t, sample(t, volumes)); err != nil || !p.Empty() {
		t.Errorf("it is static already: %v, %v", p.Operations, err)
	}
}

// A document with another rollout strategy than in-place for pods with volumes is refused. If it was deployed before
// this rule existed, it can still be scaled.
func TestAnOlderDocumentCanBeScaled(t *testing.T) {
	for _, update := range []string{elsewhere, `update.order="stop-first"`, `update.canary={"pods": 1}`} {
		c := &cluster{}
		c.deployed(t, sample(t, volumes))
		older := c.svc.Deployed.Spec
		older.Update = sample(t, update).Update
		c.svc.Deployed.Spec, c.svc.History[0].Spec, c.svc.Controllers[0].RC.Strategy = older, older, rc.Dynamic
		five := 5
		older.Replicas, older.ReplicaGroups = &five, nil
		if p, err := c.planOf(t, &older); err != nil || p.Empty() {
			t.Errorf("%s: %v", update, err)
		}
	}
}

// A plan warns of data that does not move with pods only if there can be such data.
func TestDataThatStaysBehind(t *testing.T) {
	const dynamic = `strategy="dynamic"`
	for name, tt := range map[string]struct {
		before, after []string
		moves, anew   bool
	}{
		"it stays": {[]string{volumes}, []string{volumes, newManifest}, false, false},
		"it moves": {
			[]string{volumes, dynamic},
			[]string{volumes, dynamic, newManifest},
			true, false,
		},
		"other pods take over": {
			[]string{volumes, dynamic},
			[]string{volumes, dynamic, newManifest, elsewhere},
			true, true,
		},
		"others, and there was none yet": {nil, []string{volumes, dynamic, elsewhere}, true, false},
	} {
		c := &cluster{}
		c.deployed(t, sample(t, tt.before...))
		c.svc.Controllers[0].Status = &rc.Status{ObservedGeneration: 1, Desired: 3, Placed: 3, Available: 3}
		p, err := c.planOf(t, sample(t, tt.after...))
		says := strings.Join(p.Warnings, "\n")
		if err != nil || strings.Contains(says, "leaves the data of their volumes behind: data") != tt.moves ||
			strings.Contains(says, "begin with empty volumes: data") != tt.anew {
			t.Errorf("%s: %v, %q", name, err, says)
		}
	}
}

// Changed returns only controllers whose pods start or stop.
func TestChanged(t *testing.T) {
	for name, tt := range map[string]struct {
		spec []string
		want int
	}{
		"a count":            {[]string{`replicas=5`}, 1},
		"labels":             {[]string{`pod_labels={"a": "b"}`}, 1},
		"a knob":             {[]string{`update.step=2`}, 0},
		"a knob and a count": {[]string{`update.step=2`, `replicas=5`}, 1},
		"nothing":            {nil, 0},
	} {
		c := &cluster{}
		c.deployed(t, sample(t))
		p, err := c.ran(t, sample(t, tt.spec...))
		if got := len(p.Changed()); err != nil || got != tt.want || p.Allows() {
			t.Errorf("%s: %d controllers, want %d: %v", name, got, tt.want, err)
		}
	}
	if p := (&plan.Plan{}); p.Changed() != nil || p.Allows() {
		t.Error("a plan that was not made changes something")
	}
}
