package reconcile_test

import (
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/farm/reconcile"
	"github.com/rcfarm/rcfarm/pkg/pod"
)

// recordless is the snapshot of a controller without a record. Its first replica has intents on the given nodes, and a
// request asks for the stop of these leftovers.
func recordless(on ...string) *reconcile.Snapshot {
	s := snapshotOf(0)
	now := s.Now
	s.RC.DeletedAt = &now
	for i, name := range on {
		p := running(0, name, 5, 0)
		in := p.Intent()
		in.Revision = int64(5 + i)
		s.Leftovers = append(s.Leftovers, reconcile.Leftover{Node: name, Intent: in, Reality: p.Reality})
	}
	return s
}

// Copies that a removed controller has left get a placement, and are stopped, one after the other.
func TestLeftoversStop(t *testing.T) {
	t.Parallel()
	s := recordless("n0", "n1")
	plan := reconcile.Compute(s)
	if len(plan.Changes) != 1 || plan.Finish {
		t.Fatalf("%+v", plan)
	}
	ch := plan.Changes[0]
	if ch.Action != reconcile.Stop || ch.Index != 0 || !ch.NeedsBreaker || ch.Placement.RunState != pod.Stopped ||
		ch.Placement.Node != "n1" ||
		ch.Placement.StoppingSince == nil || len(ch.Intents) != 1 || ch.Intents[0].Intent.State != pod.Stopped ||
		ch.Intents[0].Intent.Revision <= 6 {
		t.Fatalf("%+v", ch)
	}
	s.Pods = []reconcile.Pod{{Placement: *ch.Placement, Index: 9, Reality: s.Leftovers[1].Reality}}
	s.Leftovers[1].Intent = *ch.Intents[0].Intent
	plan = reconcile.Compute(s)
	if len(plan.Changes) != 1 || plan.Finish {
		t.Fatalf("%+v", plan)
	}
	ch = plan.Changes[0]
	if g := ch.Placement.Ghosts; ch.Index != 9 || len(g) != 1 || g[0].Node != "n0" ||
		g[0].Revision <= s.Pods[0].Revision ||
		ch.Intents[0].Node != "n0" || ch.Intents[0].Intent.State != pod.Stopped ||
		ch.Intents[0].Intent.Revision != g[0].Revision {
		t.Errorf("%+v", ch)
	}
	s.Pods[0].Placement = *ch.Placement
	if plan = reconcile.Compute(s); len(plan.Changes) != 0 || plan.Finish {
		t.Errorf("%+v", plan)
	}
}

// A leftover whose stop has a revision from a clock that was ahead is asked to stop again at a higher revision.
func TestALeftoverStopsAboveARevisionInTheFuture(t *testing.T) {
	t.Parallel()
	s := recordless("n0")
	ahead := s.Now.Add(time.Hour).UnixMilli()
	s.Leftovers[0].Reality.Revision = ahead
	if plan := reconcile.Compute(s); len(plan.Changes) != 1 || plan.Changes[0].Placement.Revision != ahead+1 {
		t.Errorf("%+v", plan.Changes)
	}
}

// While nothing may be stopped, a leftover and the request for its stop wait.
func TestALeftoverWaits(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*reconcile.Snapshot){
		"hold":    func(s *reconcile.Snapshot) { s.Hold = "the records are new" },
		"breaker": func(s *reconcile.Snapshot) { s.Breaker = "tripped" },
	} {
		s := recordless("n0")
		change(s)
		if plan := reconcile.Compute(s); len(plan.Changes) != 0 || plan.Finish {
			t.Errorf("%s: %+v", name, plan)
		}
	}
	s := recordless()
	if plan := reconcile.Compute(s); !plan.Finish {
		t.Errorf("nothing is left: %+v", plan)
	}
}
