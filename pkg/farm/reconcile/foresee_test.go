package reconcile_test

import (
	"testing"

	"github.com/rcfarm/rcfarm/pkg/farm/reconcile"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
)

func confirmStop(s *reconcile.Snapshot, i int) {
	p := &s.Pods[i]
	p.RunState, p.StoppingSince = pod.Stopped, &s.Now
	p.Reality.State, p.Reality.Available, p.Reality.Revision = pod.StateStopped, false, p.Revision
}

// What follows when confirmed stops are forgotten is known without reading anything again, unless more than the status is left to write.
func TestWhatFollowsConfirmedStopsIsForeseen(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(*reconcile.Snapshot)
		want   bool
	}{
		"two of four go":             {func(s *reconcile.Snapshot) { confirmStop(s, 2); confirmStop(s, 3) }, true},
		"one has yet to confirm":     {func(s *reconcile.Snapshot) { confirmStop(s, 2); stopAt(&s.Pods[3], s) }, true},
		"nothing changes":            {func(s *reconcile.Snapshot) { groups(s, 4) }, false},
		"others stop in the plan":    {func(s *reconcile.Snapshot) { confirmStop(s, 3) }, false},
		"what went is desired again": {func(s *reconcile.Snapshot) { confirmStop(s, 3); groups(s, 4) }, false},
		"a request is answered besides": {func(s *reconcile.Snapshot) {
			confirmStop(s, 2)
			confirmStop(s, 3)
			s.Requests = []reconcile.Request{{ID: "r", Forget: true, Alive: true, Node: s.Pods[0].Node, Pod: s.Pods[0].Identity}}
		}, false},
		"a request is answered, and what went is desired again": {func(s *reconcile.Snapshot) {
			confirmStop(s, 3)
			groups(s, 4)
			s.Requests = []reconcile.Request{{ID: "r", Forget: true, Alive: true, Node: s.Pods[0].Node, Pod: s.Pods[0].Identity}}
		}, false},
		"a ghost is forgotten, and its pod stays": {func(s *reconcile.Snapshot) {
			p := &s.Pods[0]
			p.Placement.Ghosts = []pod.Ghost{{Node: "n3", Revision: 6}}
			p.Ghosts = map[string]*pod.Reality{"n3": {Identity: p.Identity, State: pod.StateStopped, Revision: 6}}
			groups(s, 4)
		}, false},
		"the controller is deleted, and its records go next": {func(s *reconcile.Snapshot) {
			s.RC.DeletedAt = &s.Now
			for i := range s.Pods {
				confirmStop(s, i)
			}
		}, false},
	} {
		s := row(4, 2)
		c.change(s)
		plan := reconcile.Compute(s)
		next, ok := reconcile.Foresee(s, &plan)
		if ok != c.want {
			t.Errorf("%s: foreseen %t, want %t; the plan: %v", name, ok, c.want, plan.Changes)
			continue
		}
		if st := &next.Status; ok && (st.Placed != 2 || st.Available != 2 || st.Stopping != len(s.Pods)-2-len(plan.Changes)) {
			t.Errorf("%s: %d placed, %d available, %d stopping are foreseen", name, st.Placed, st.Available, st.Stopping)
		}
		if whole := len(plan.Changes) == 2; ok && next.Status.Is(rc.Converged) != whole {
			t.Errorf("%s: converged %t is foreseen", name, next.Status.Is(rc.Converged))
		}
	}
}
