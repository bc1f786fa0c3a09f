package plan_test

import (
	"strings"
	"testing"

	"github.com/rcfarm/rcfarm/pkg/deploy/plan"
	"github.com/rcfarm/rcfarm/pkg/deploy/record"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/rollout"
)

const orderedGroup = `replica_groups=[{"role":"main","count":3,"ordered":true}]`

// A service with an ordered group is deployed only in place, also if its document names no strategy.
func TestAnOrderedService(t *testing.T) {
	ordered := func(more ...string) *record.ServiceSpec {
		return sample(t, append([]string{"replicas=null", orderedGroup}, more...)...)
	}
	c := &cluster{}
	c.deployed(t, ordered())
	r := &c.svc.Controllers[0]
	r.Status = &rc.Status{ObservedGeneration: r.RC.Generation, Desired: 3, Placed: 3, Available: 3}
	next := ordered(`pod.labels={"a":"b"}`)
	p, err := c.planOf(t, next)
	if err != nil {
		t.Fatal(err)
	}
	var text []string
	for _, line := range p.Lines() {
		text = append(text, line.Text)
	}
	all := strings.Join(text, "\n")
	if !strings.Contains(all, "start rollout in-place: 3 in 3 stages of up to 1") ||
		!strings.Contains(all, "upgrade in place 3 pods of web-r1") {
		t.Errorf("the plan is\n%s", all)
	}
	for name, tt := range map[string]struct {
		spec   *record.ServiceSpec
		change func(*plan.ServicePlanner)
		want   string
	}{
		"another strategy": {
			next, func(s *plan.ServicePlanner) { s.Override = rollout.AvailabilityStrategy },
			"the strategy availability replaces pods by others, and a replica group is ordered",
		},
		"anew": {
			next, func(s *plan.ServicePlanner) { s.ForceRecreate = true },
			"the strategy in-place makes no new revision of pods",
		},
		"ordered no more, and elsewhere": {
			sample(t, `update.strategy="availability"`,
				`pod.labels={"a":"b"}`), func(*plan.ServicePlanner) {},
			"a replica group is ordered, and no index may have two living copies",
		},
	} {
		if _, err := c.planOf(t, tt.spec, tt.change); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := c.planOf(t, sample(t, `update.strategy="in-place"`)); err != nil {
		t.Errorf("ordered no more, in place: %v", err)
	}
	c = &cluster{}
	c.deployed(t, sample(t))
	c.svc.Controllers[0].Status = &rc.Status{ObservedGeneration: 1, Desired: 3, Placed: 3, Available: 3}
	if _, err := c.planOf(t, ordered(),
		func(s *plan.ServicePlanner) { s.Override = rollout.BlueGreenStrategy }); err == nil ||
		!strings.Contains(err.Error(), "a replica group is ordered") {
		t.Errorf("ordered from now on, and elsewhere: %v", err)
	}
}

func TestMistakesOfAnOrderedService(t *testing.T) {
	const (
		inPlace = "in-place where a replica group is ordered"
		none    = "none, because update.strategy is " + inPlace
	)
	for more, want := range map[string]string{
		`update={"strategy":"canary"}`:       `update.strategy: "canary" is not valid; allowed: ` + inPlace,
		`update={"strategy":"availability"}`: `update.strategy: "availability" is not valid; allowed: ` + inPlace,
		`update={"order":"stop-first"}`:      `update.order: "stop-first" is not valid; allowed: ` + none,
		`update={"canary":{"pods":1}}`:       "update.canary: a map is not valid; allowed: " + none,
	} {
		if _, err := record.Decode(sampleJSON(t, "replicas=null", orderedGroup, more)); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", more, err)
		}
	}
	for _, fine := range []string{`update={"strategy":"in-place"}`, `update={"step":2}`} {
		spec, err := record.Decode(sampleJSON(t, "replicas=null", orderedGroup, fine))
		if err != nil {
			t.Error(err)
			continue
		}
		if knobs := spec.Knobs(); knobs.StrategyName() != rollout.InPlaceStrategy {
			t.Errorf("%s is rolled out by %s", fine, knobs.StrategyName())
		}
	}
}
