package reconcile_test

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/rcfarm/rcfarm/pkg/farm/reconcile"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
)

func confirmStop(s *reconcile.Snapshot, i int) {
	p := &s.Pods[i]
	p.RunState, p.StoppingSince = pod.Stopped, &s.Now
	p.Reality.State, p.Reality.Available, p.Reality.Revision = pod.StateStopped, false, p.Revision
}

// A status leaves out pods whose stop is confirmed, and that the plan forgets. If the plan does nothing else, the
// controller may be reported as converged.
func TestAStatusLeavesOutForgottenPods(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change                      func(*reconcile.Snapshot)
		placed, available, stopping int
		converged                   bool
	}{
		"two of four go": {
			func(s *reconcile.Snapshot) { confirmStop(s, 2); confirmStop(s, 3) }, 2, 2, 0, true,
		},
		"one has yet to confirm": {
			func(s *reconcile.Snapshot) { confirmStop(s, 2); stopAt(&s.Pods[3], s) }, 2, 2, 1, false,
		},
		"another stops in the plan":  {func(s *reconcile.Snapshot) { confirmStop(s, 3) }, 3, 3, 0, false},
		"what went is desired again": {func(s *reconcile.Snapshot) { confirmStop(s, 3); groups(s, 4) }, 3, 3, 0, false},
		"another is not available": {func(s *reconcile.Snapshot) {
			confirmStop(s, 2)
			confirmStop(s, 3)
			sick(s, 0)
		}, 2, 1, 0, false},
		"a role lacks pods, for which there is room then": {func(s *reconcile.Snapshot) {
			confirmStop(s, 2)
			confirmStop(s, 3)
			groups(s, 1, "side", 1)
			s.RC.MaxSurge, s.RC.MinAvailable = new(int), count(2)
		}, 2, 2, 0, false},
		"a ghost is forgotten, and its pod stays": {func(s *reconcile.Snapshot) {
			p := &s.Pods[0]
			p.Placement.Ghosts = []pod.Ghost{{Node: "n3", Revision: 6}}
			p.Ghosts = map[string]*pod.Reality{"n3": {Identity: p.Identity, State: pod.StateStopped, Revision: 6}}
			groups(s, 4)
		}, 4, 4, 0, false},
		"a share is given back besides": {func(s *reconcile.Snapshot) {
			confirmStop(s, 2)
			confirmStop(s, 3)
			unused := pod.Identity{RCID: s.RC.ID, Role: "main", Index: 9}
			s.UnusedShares = []reconcile.UnusedShare{{Node: "n0", Pod: unused}}
		}, 2, 2, 0, false},
	} {
		s := row(4, 2)
		c.change(s)
		plan := reconcile.Compute(s)
		st := &plan.Status
		if st.Placed != c.placed || st.Available != c.available || st.Stopping != c.stopping ||
			st.Is(rc.Converged) != c.converged {
			t.Errorf("%s: %d placed, %d available, %d stopping, converged %t; want %+v; the plan: %v",
				name, st.Placed, st.Available, st.Stopping, st.Is(rc.Converged), c, plan.Changes)
		}
		if len(s.Pods) != 4 {
			t.Errorf("%s: the snapshot has %d pods left", name, len(s.Pods))
		}
	}
}

// A controller has not converged while a pass has made only some of the changes of its plan.
func TestAPartOfAPlanHasNotConverged(t *testing.T) {
	t.Parallel()
	s := row(4, 2)
	confirmStop(s, 2)
	confirmStop(s, 3)
	plan := reconcile.Compute(s)
	plan.SetPartial(s.Now, 1)
	if c := condition(&plan.Status, rc.Converged); c.True || c.Reason != "1 of 2 changes are made" {
		t.Errorf("%+v", c)
	}
}

// checkForgotten compares the status of a plan that only forgets pods which were asked to stop with the status of the
// next plan. If the next plan has nothing to do, both have the same counts. If the next status has not converged, this
// one has not converged either.
func checkForgotten(t rapid.TB, before *reconcile.Snapshot, plan *reconcile.Plan, after *reconcile.Snapshot) {
	asked := map[pod.Identity]bool{}
	for i := range before.Pods {
		asked[before.Pods[i].Identity] = before.Pods[i].RunState == pod.Stopped
	}
	more := func(ch reconcile.Change) bool { return ch.Placement != nil || !asked[ch.Identity] }
	if len(plan.Changes) == 0 || len(plan.Adds)+len(plan.Answered) > 0 || slices.ContainsFunc(plan.Changes, more) {
		return
	}
	next := reconcile.Compute(after)
	if len(next.Answered) > 0 || next.Finish {
		return
	}
	if plan.Status.Is(rc.Converged) && !next.Status.Is(rc.Converged) {
		t.Fatalf("converged after %v, and %v, %v follow; next %+v", plan.Changes, next.Changes, next.Adds, next.Status)
	}
	type counts struct{ placed, available, stopping int }
	of := func(st *rc.Status) counts { return counts{st.Placed, st.Available, st.Stopping} }
	if got, want := of(&plan.Status), of(&next.Status); len(next.Changes)+len(next.Adds) == 0 && got != want {
		t.Fatalf("a plan that forgets pods has the counts %+v, the next one %+v", got, want)
	}
}
