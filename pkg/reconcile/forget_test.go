package reconcile_test

import (
	"slices"
	"testing"

	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/reconcile"
)

func forget(id, on string, p *reconcile.Pod) reconcile.Request {
	return reconcile.Request{ID: id, Forget: true, Node: on, Pod: p.Identity, NodeIndex: 5}
}

// What is forgotten is so on condition that its node stays dead. A second request about the pod waits for the next pass.
func TestForgettingDependsOnTheNode(t *testing.T) {
	t.Parallel()
	s := snapshotOf(1)
	p := running(0, "n0", 5, 0)
	p.Placement.Ghosts = []pod.Ghost{{Node: "n1", Revision: 4}}
	s.Pods = []reconcile.Pod{p}
	s.Requests = []reconcile.Request{forget("first", "n1", &p), forget("second", "n0", &p), {ID: "node lives", Forget: true, Alive: true, Node: "n0", Pod: p.Identity}}
	plan := reconcile.Compute(s)
	if len(plan.Changes) != 1 || plan.Changes[0].NeedsDead == nil || *plan.Changes[0].NeedsDead != (reconcile.DeadNode{Name: "n1", Index: 5}) {
		t.Errorf("changes %+v", plan.Changes)
	}
	if got := answers(&plan); !slices.Equal(got, []string{"first", "node lives"}) {
		t.Errorf("answered %v", got)
	}
}

// A request that would stop a former copy waits while nothing may be stopped.
func TestForgettingWaitsForTheBreaker(t *testing.T) {
	t.Parallel()
	for _, breaker := range []string{"tripped", ""} {
		s := snapshotOf(1)
		s.Breaker = breaker
		p := running(0, "n0", 5, 0)
		p.Placement.Ghosts = []pod.Ghost{{Node: "n1"}}
		s.Nodes["n0"].Alive = false
		s.Pods = []reconcile.Pod{p}
		s.Requests = []reconcile.Request{forget("r", "n0", &p)}
		plan := reconcile.Compute(s)
		i := slices.IndexFunc(plan.Changes, func(ch reconcile.Change) bool { return ch.NeedsDead != nil })
		if waits := breaker != ""; waits != (i < 0) || waits != (len(answers(&plan)) == 0) {
			t.Errorf("breaker %q: answered %v, changes %+v", breaker, answers(&plan), plan.Changes)
		}
	}
}
