package reconcile_test

import (
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/reconcile"
)

// next is the placement after a plan.
func next(t *testing.T, plan *reconcile.Plan, p *reconcile.Pod) pod.Placement {
	t.Helper()
	for _, ch := range plan.Changes {
		if ch.Identity == p.Identity {
			return *ch.Placement
		}
	}
	return p.Placement
}

// Consul forgets a failed agent some day. What died with the machine has not come back by that.
func TestAMachineStaysLostUntilItsPreparerIsBack(t *testing.T) {
	t.Parallel()
	s := snapshotOf(2)
	s.RC.NodeLoss.Action = "keep"
	s.Pods = []reconcile.Pod{running(0, "n0", 5, 0), running(1, "n1", 5, 0)}
	p := &s.Pods[0]
	look := func(alive, failed bool) reconcile.Plan {
		t.Helper()
		s.Now = s.Now.Add(time.Hour)
		s.Nodes["n0"].Alive, s.Nodes["n0"].Gone = alive, failed
		plan := reconcile.Compute(s)
		p.Placement = next(t, &plan, p)
		return plan
	}
	plan := look(false, false)
	if p.LostSince != nil || p.UnmanagedSince == nil || plan.Status.Available != 2 || plan.Status.Unmanaged != 1 {
		t.Errorf("R10: its agent left in order: %+v, status %+v", p.Placement, plan.Status)
	}
	look(false, true)
	since := p.LostSince
	if since == nil || p.UnmanagedSince != nil {
		t.Fatalf("failed: %+v", p.Placement)
	}
	plan = look(false, false)
	if p.LostSince != since || p.UnmanagedSince != nil || plan.Status.Lost != 1 || plan.Status.Available != 1 || !plan.Status.Is(rc.NodeLost) || plan.Status.Is(rc.Converged) {
		t.Errorf("forgotten: %+v, status %+v", p.Placement, plan.Status)
	}
	if plan = look(true, false); p.LostSince != nil || plan.Status.Lost != 0 {
		t.Errorf("back: %+v, status %+v", p.Placement, plan.Status)
	}
	if plan = look(false, false); p.LostSince != nil || plan.Status.Unmanaged != 1 {
		t.Errorf("without its preparer again: %+v, status %+v", p.Placement, plan.Status)
	}
}

// The same holds for a copy that was left behind, whether it was the machine's loss that made the pod move or not.
func TestAFormerCopyOnALostMachineStaysLost(t *testing.T) {
	t.Parallel()
	s := snapshotOf(1)
	s.Pods = []reconcile.Pod{running(0, "n0", 5, 0)}
	p := &s.Pods[0]
	s.Nodes["n0"].Alive, s.Nodes["n0"].Gone = false, true
	plan := reconcile.Compute(s)
	if ghosts := reconcile.PlaceOn(s, p.Identity, "n1").Placement.Ghosts; len(ghosts) != 1 || !ghosts[0].Gone || !ghosts[0].Lost {
		t.Errorf("moved off a lost machine: %+v, plan %+v", ghosts, plan)
	}

	s.Nodes["n0"].Alive, s.Nodes["n0"].Gone = true, false
	p.Node, p.Placement.Ghosts = "n1", []pod.Ghost{{Node: "n0"}}
	p.Ghosts["n0"], p.Reality = p.Reality, nil
	if plan = reconcile.Compute(s); plan.Status.Available != 1 {
		t.Fatalf("it moves, and its former copy is available: %+v", plan.Status)
	}
	for _, failed := range []bool{true, false} { // then Consul forgets it
		s.Nodes["n0"].Alive, s.Nodes["n0"].Gone = false, failed
		plan = reconcile.Compute(s)
		p.Placement = next(t, &plan, p)
		if plan.Status.Available != 0 || !p.Placement.Ghosts[0].Gone {
			t.Errorf("failed %t: %+v, status %+v", failed, p.Placement, plan.Status)
		}
	}
	s.Nodes["n0"].Alive = true
	plan = reconcile.Compute(s)
	if p.Placement = next(t, &plan, p); p.Placement.Ghosts[0].Gone {
		t.Errorf("back: %+v", p.Placement)
	}
}

// What a move would have brought along is written alone where a scheduler fails (P7).
func TestALossIsMarkedThoughNothingCanBeScheduled(t *testing.T) {
	t.Parallel()
	s := snapshotOf(1)
	s.RC.NodeLoss.After = new(field.Duration)
	s.Pods = []reconcile.Pod{running(0, "n0", 5, 0)}
	s.Nodes["n0"].Alive, s.Nodes["n0"].Gone = false, true
	plan := reconcile.Compute(s)
	if len(plan.Adds) != 1 || len(plan.Changes) != 0 {
		t.Fatalf("adds %v, changes %v", plan.Adds, plan.Changes)
	}
	plan.Unscheduled(s.Now, "out of order")
	if len(plan.Changes) != 1 || plan.Changes[0].Action != reconcile.Mark || plan.Changes[0].Placement.LostSince == nil {
		t.Errorf("changes %v", plan.Changes)
	}
}

// A lost pod is replaced once there is room for one more: while another one moves, both of its copies take some (P6).
func TestALostPodWaitsForRoom(t *testing.T) {
	t.Parallel()
	for surge, want := range []int{0, 1} { // how many are replaced at each surge
		s := snapshotOf(2)
		s.RC.MaxSurge, s.RC.NodeLoss.After = &surge, new(field.Duration)
		s.Pods = []reconcile.Pod{running(0, "n0", 5, 0), running(1, "n1", 5, 0)}
		since := s.Now.Add(-time.Minute)
		s.Nodes["n1"].Alive, s.Nodes["n1"].Gone, s.Pods[1].LostSince = false, true, &since
		s.Pods[0].Placement.Ghosts = []pod.Ghost{{Node: "n2", Revision: 4, Since: since}} // has yet to stop
		if plan := reconcile.Compute(s); len(plan.Adds) != want {
			t.Errorf("surge %d: adds %v", surge, plan.Adds)
		}
	}
}
