package reconcile_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/farm/reconcile"
	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
)

// next returns the placement after a plan.
func next(t *testing.T, plan *reconcile.Plan, p *reconcile.Pod) pod.Placement {
	t.Helper()
	for _, ch := range plan.Changes {
		if ch.Identity == p.Identity {
			return *ch.Placement
		}
	}
	return p.Placement
}

// Consul forgets a failed agent after some time. This does not mean that the machine has come back.
func TestAMachineStaysLostUntilItsPreparerIsBack(t *testing.T) {
	t.Parallel()
	s := snapshotOf(2)
	s.RC.NodeLoss.Action = "keep"
	s.Pods = []reconcile.Pod{running(0, "n0", 5, 0), running(1, "n1", 5, 0)}
	p := &s.Pods[0]
	look := func(alive, failed bool) reconcile.Plan {
		t.Helper()
		s.Now = s.Now.Add(time.Hour)
		s.Nodes["n0"].Alive, s.Nodes["n0"].MachineLost = alive, failed
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
	if p.LostSince != since || p.UnmanagedSince != nil || plan.Status.Lost != 1 || plan.Status.Available != 1 ||
		!plan.Status.Is(rc.NodeLost) || plan.Status.Is(rc.Converged) {
		t.Errorf("forgotten: %+v, status %+v", p.Placement, plan.Status)
	}
	if plan = look(true, false); p.LostSince != nil || plan.Status.Lost != 0 {
		t.Errorf("back: %+v, status %+v", p.Placement, plan.Status)
	}
	if plan = look(false, false); p.LostSince != nil || plan.Status.Unmanaged != 1 {
		t.Errorf("without its preparer again: %+v, status %+v", p.Placement, plan.Status)
	}
}

// The same holds for a former copy, whether the pod moved because of the loss or not.
func TestAFormerCopyOnALostMachineStaysLost(t *testing.T) {
	t.Parallel()
	s := snapshotOf(1)
	s.Pods = []reconcile.Pod{running(0, "n0", 5, 0)}
	p := &s.Pods[0]
	s.Nodes["n0"].Alive, s.Nodes["n0"].MachineLost = false, true
	plan := reconcile.Compute(s)
	if ghosts := plan.Placer().On(p.Identity, "n1").Placement.Ghosts; len(ghosts) != 1 || !ghosts[0].MachineLost ||
		!ghosts[0].LeftBecauseLost {
		t.Errorf("moved off a lost machine: %+v, plan %+v", ghosts, plan)
	}

	s.Nodes["n0"].Alive, s.Nodes["n0"].MachineLost = true, false
	p.Node, p.Placement.Ghosts = "n1", []pod.Ghost{{Node: "n0"}}
	p.Ghosts["n0"], p.Reality, p.ChangedAt = p.Reality, nil, s.Now
	if plan = reconcile.Compute(s); plan.Status.Available != 1 {
		t.Fatalf("it moves, and its former copy is available: %+v", plan.Status)
	}
	for _, failed := range []bool{true, false} { // then Consul forgets it
		s.Nodes["n0"].Alive, s.Nodes["n0"].MachineLost = false, failed
		plan = reconcile.Compute(s)
		p.Placement = next(t, &plan, p)
		if plan.Status.Available != 0 || !p.Placement.Ghosts[0].MachineLost {
			t.Errorf("failed %t: %+v, status %+v", failed, p.Placement, plan.Status)
		}
	}
	s.Nodes["n0"].Alive = true
	plan = reconcile.Compute(s)
	if p.Placement = next(t, &plan, p); p.Placement.Ghosts[0].MachineLost {
		t.Errorf("back: %+v", p.Placement)
	}
}

// If a scheduler fails, what the move would have written about the loss is written alone (P7).
func TestALossIsRecordedIfTheSchedulerFails(t *testing.T) {
	t.Parallel()
	s := snapshotOf(1)
	s.RC.NodeLoss.After = new(field.Duration)
	s.Pods = []reconcile.Pod{running(0, "n0", 5, 0)}
	s.Nodes["n0"].Alive, s.Nodes["n0"].MachineLost = false, true
	plan := reconcile.Compute(s)
	if len(plan.Adds) != 1 || len(plan.Changes) != 0 {
		t.Fatalf("adds %v, changes %v", plan.Adds, plan.Changes)
	}
	plan.Unscheduled("out of order")
	if len(plan.Changes) != 1 || plan.Changes[0].Action != reconcile.Mark ||
		plan.Changes[0].Placement.LostSince == nil {
		t.Errorf("changes %v", plan.Changes)
	}
}

// If pods are placed lot by lot, the loss of each pod is written once.
func TestAFailedSchedulerMarksOnlyThePodsItWasAskedFor(t *testing.T) {
	t.Parallel()
	s := snapshotOf(2)
	s.RC.NodeLoss.After = new(field.Duration)
	s.Pods = []reconcile.Pod{running(0, "n0", 5, 0), running(1, "n1", 5, 0)}
	for _, name := range []string{"n0", "n1"} {
		s.Nodes[name].Alive, s.Nodes[name].MachineLost = false, true
	}
	plan := reconcile.Compute(s)
	adds := plan.Adds
	if len(adds) != 2 {
		t.Fatalf("adds %v", adds)
	}
	for i := range adds {
		plan.Adds = adds[i : i+1]
		plan.Unscheduled("out of order")
		if len(plan.Changes) != i+1 || plan.Changes[i].Identity != adds[i] {
			t.Errorf("after %d lots: changes %v", i+1, plan.Changes)
		}
	}
}

// A lost pod is replaced when one more copy is allowed. While another pod moves, both of its copies use a slot (P6).
// The replaced pod uses a slot, too, so a missing pod cannot get it.
func TestALostPodWaitsForASlot(t *testing.T) {
	t.Parallel()
	for desired, wanted := range map[int][]int{2: {0, 1}, 3: {1, 2}} { // how many are placed at each surge
		for surge, want := range wanted {
			s := snapshotOf(desired)
			s.RC.MaxSurge, s.RC.NodeLoss.After = &surge, new(field.Duration)
			s.Pods = []reconcile.Pod{running(0, "n0", 5, 0), running(1, "n1", 5, 0)}
			since := s.Now.Add(-time.Minute)
			s.Nodes["n1"].Alive, s.Nodes["n1"].MachineLost, s.Pods[1].LostSince = false, true, &since
			// The stop of the former copy is not confirmed yet.
			s.Pods[0].Placement.Ghosts = []pod.Ghost{{Node: "n2", Revision: 4, Since: since}}
			if plan := reconcile.Compute(s); len(plan.Adds) != want {
				t.Errorf("%d desired, surge %d: adds %v", desired, surge, plan.Adds)
			}
		}
	}
}

// A node that came back and lost its preparer again before its owner looked has another death. The times in the
// placements belong to the earlier death, so the wait begins now.
func TestALossCountsForOneDeath(t *testing.T) {
	t.Parallel()
	s := snapshotOf(2)
	s.RC.NodeLoss.After = new(field.Duration)
	before := s.Now.Add(-time.Hour)
	s.Nodes["n0"].Alive, s.Nodes["n0"].FreeIndex = false, 40
	s.Nodes["n3"].Alive, s.Nodes["n3"].FreeIndex = false, 60
	s.Pods = []reconcile.Pod{running(0, "n0", 5, 0), running(1, "n1", 5, 0)}
	p, former := &s.Pods[0], &s.Pods[1]
	p.LostSince, p.DeadIndex = &before, 30
	former.Placement.Ghosts = []pod.Ghost{{Node: "n3", Revision: 4, MachineLost: true, DeadIndex: 50}}
	plan := reconcile.Compute(s)
	p.Placement, former.Placement = next(t, &plan, p), next(t, &plan, former)
	if p.LostSince != nil || p.UnmanagedSince == nil || !p.UnmanagedSince.Equal(s.Now) || p.DeadIndex != 40 ||
		plan.Status.Lost != 0 || plan.Status.Available != 2 || len(plan.Adds) > 0 {
		t.Errorf("%+v, status %+v, adds %v", p.Placement, plan.Status, plan.Adds)
	}
	if g := former.Placement.Ghosts[0]; g.MachineLost || g.DeadIndex != 0 {
		t.Errorf("former copy %+v", g)
	}

	// Consul reports that this time the machine died.
	s.Nodes["n3"].MachineLost = true
	plan = reconcile.Compute(s)
	former.Placement = next(t, &plan, former)
	if g := former.Placement.Ghosts[0]; !g.MachineLost || g.DeadIndex != 60 {
		t.Errorf("former copy %+v", g)
	}
	if ch := plan.Changes[0]; len(plan.Changes) != 1 || len(ch.NeedsDead) != 1 ||
		ch.NeedsDead[0] != (reconcile.DeadNode{Name: "n3", Index: 60}) {
		t.Errorf("changes %+v", plan.Changes)
	}
}

// If there are too many pods, a lost one stops first. If its node comes back, the pod may be available without a new
// report, so the stop lands only while the node is dead (P6).
func TestAStopOfALostPodDependsOnTheLoss(t *testing.T) {
	t.Parallel()
	s := snapshotOf(1)
	s.Nodes["n0"].Alive, s.Nodes["n0"].MachineLost, s.Nodes["n0"].FreeIndex = false, true, 40
	s.Pods = []reconcile.Pod{running(0, "n0", 5, 0), running(1, "n1", 5, 0)}
	s.Pods[0].LostSince, s.Pods[0].DeadIndex = &s.Now, 40
	plan := reconcile.Compute(s)
	if ch := plan.Changes[0]; len(plan.Changes) != 1 || ch.Action != reconcile.Stop || len(ch.NeedsDead) != 1 ||
		ch.NeedsDead[0] != (reconcile.DeadNode{Name: "n0", Index: 40}) {
		t.Errorf("changes %+v", plan.Changes)
	}
}

// A pod whose node has no preparer gets another node only while that preparer stays away.
func TestAMoveFromAnUnmanagedNodeNeedsItsDeath(t *testing.T) {
	t.Parallel()
	s := snapshotOf(1)
	s.Nodes["n0"].Alive, s.Nodes["n0"].FreeIndex = false, 40
	s.Pods = []reconcile.Pod{running(0, "n0", 5, 0)}
	plan := reconcile.Compute(s)
	ch := plan.Placer().On(s.Pods[0].Identity, "n1")
	if ch.Action != reconcile.Move || !slices.Equal(ch.NeedsDead, []reconcile.DeadNode{{Name: "n0", Index: 40}}) {
		t.Errorf("change %+v", ch)
	}
	delete(s.Nodes, "n0") // without a record it is not known whether the node is back
	plan = reconcile.Compute(s)
	if ch := plan.Placer().On(s.Pods[0].Identity, "n1"); ch.Action != reconcile.Move || ch.NeedsDead != nil {
		t.Errorf("change %+v", ch)
	}
}

// If there are too many pods, a pod whose new copy never became available stops first. Its former copy on a lost
// machine stops, too. If that machine comes back, the former copy may be available again, so the stop lands only while
// the machine is lost (P6).
func TestAStopOfAFormerCopyDependsOnItsLoss(t *testing.T) {
	t.Parallel()
	s := snapshotOf(1)
	s.Nodes["n3"].Alive, s.Nodes["n3"].MachineLost, s.Nodes["n3"].FreeIndex = false, true, 40
	s.Pods = []reconcile.Pod{running(0, "n0", 5, 0), running(1, "n1", 5, 0)}
	p := &s.Pods[0]
	p.Placement.Ghosts = []pod.Ghost{{Node: "n3", LeftBecauseLost: true, MachineLost: true, DeadIndex: 40}}
	p.Reality, p.Ghosts = nil, map[string]*pod.Reality{"n3": p.Reality}
	plan := reconcile.Compute(s)
	if ch := plan.Changes[0]; len(plan.Changes) != 1 || ch.Action != reconcile.Stop || ch.Identity != p.Identity ||
		len(ch.Intents) != 2 ||
		!slices.Equal(ch.NeedsDead, []reconcile.DeadNode{{Name: "n3", Index: 40}}) {
		t.Errorf("changes %+v", plan.Changes)
	}
}

// A controller can converge although a machine with a former copy, or with a pod that must stop, never comes back. If
// only the preparer of a node is gone, the copy there may run, so the controller does not converge. A deleted
// controller is not finished before an operator declares the copy gone.
func TestCopiesOnLostMachinesDelayNothing(t *testing.T) {
	t.Parallel()
	for name, there := range map[string]func(s *reconcile.Snapshot){
		"former copy": func(s *reconcile.Snapshot) {
			s.Pods[0].Placement.Ghosts = []pod.Ghost{{Node: "n3", Revision: 4, MachineLost: true, DeadIndex: 40}}
		},
		"stopping": func(s *reconcile.Snapshot) {
			p := running(1, "n3", 5, 0)
			p.RunState, p.StoppingSince = pod.Stopped, &s.Now
			s.Pods = append(s.Pods, p)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := snapshotOf(1)
			s.Pods = []reconcile.Pod{running(0, "n0", 5, 0)}
			s.Nodes["n3"].Alive, s.Nodes["n3"].MachineLost, s.Nodes["n3"].FreeIndex = false, true, 40
			there(s)
			if plan := reconcile.Compute(s); !plan.Status.Is(rc.Converged) || len(plan.Changes) != 0 {
				t.Errorf("lost: %+v, changes %v", plan.Status, plan.Changes)
			}
			s.RC.DeletedAt = &s.Now
			if plan := reconcile.Compute(s); plan.Status.Is(rc.Converged) || plan.Finish {
				t.Errorf("deleted: %+v", plan.Status)
			}
			s.RC.DeletedAt, s.Nodes["n3"].MachineLost, s.Nodes["n3"].FreeIndex = nil, false, 50
			if plan := reconcile.Compute(s); plan.Status.Is(rc.Converged) {
				t.Errorf("without a preparer: %+v", plan.Status)
			}
		})
	}
}

// lose makes the machines of pods lost for some time.
func lose(s *reconcile.Snapshot, since time.Duration, pods ...int) {
	at := s.Now.Add(-since)
	for _, i := range pods {
		s.Nodes[s.Pods[i].Node].Alive, s.Nodes[s.Pods[i].Node].MachineLost, s.Pods[i].LostSince = false, true, &at
	}
}

// unmanage takes the preparers of pods' nodes away for some time.
func unmanage(s *reconcile.Snapshot, since time.Duration, pods ...int) {
	at := s.Now.Add(-since)
	for _, i := range pods {
		s.Nodes[s.Pods[i].Node].Alive, s.Pods[i].UnmanagedSince = false, &at
	}
}

// A lost pod is replaced when its wait is over, and the next look is at that time. A pod uses no slot any more when its
// node has had no preparer for so long that the pod may be replaced. A pod whose stop is not confirmed, or whose times
// belong to another death, uses a slot.
func TestLostPodsAreReplacedInTimeWithinTheSurge(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		pods, surge int
		change      func(*reconcile.Snapshot)
		want        []string
		again       time.Duration
	}{
		"its time has not come": {
			2, 0, func(s *reconcile.Snapshot) { lose(s, 10*time.Second, 0) }, nil, 20 * time.Second,
		},
		"a moment is left": {2, 0, func(s *reconcile.Snapshot) { lose(s, 30*time.Second-1, 0) }, nil, 1},
		"its time has come": {
			2, 0, func(s *reconcile.Snapshot) { lose(s, 30*time.Second, 0) }, []string{"main.0"}, 0,
		},
		"its time has come, that of another has not": {2, 0, func(s *reconcile.Snapshot) {
			lose(s, 10*time.Second, 0)
			lose(s, 30*time.Second, 1)
		}, []string{"main.1"}, 20 * time.Second},
		"two, and room for one": {3, 0, func(s *reconcile.Snapshot) {
			lose(s, time.Hour, 0, 1)
			s.Pods[2].Placement.Ghosts = []pod.Ghost{{Node: "n3", Revision: 4}}
		}, []string{"main.0"}, 0},
		"its preparer is away": {
			2, 0, func(s *reconcile.Snapshot) { unmanage(s, 9*time.Minute, 0) }, nil, time.Minute,
		},
		"its preparer has been away long enough": {
			2, 0, func(s *reconcile.Snapshot) { unmanage(s, 10*time.Minute, 0) }, []string{"main.0"}, 0,
		},
		"another one's preparer is away": {3, 0, func(s *reconcile.Snapshot) {
			lose(s, time.Hour, 0)
			unmanage(s, 9*time.Minute, 1)
			s.Pods[2].Placement.Ghosts = []pod.Ghost{{Node: "n3", Revision: 4}}
		}, nil, time.Minute},
		"another one's preparer was away, and is again": {3, 0, func(s *reconcile.Snapshot) {
			lose(s, time.Hour, 0)
			unmanage(s, time.Hour, 1)
			s.Pods[1].DeadIndex, s.Nodes["n1"].FreeIndex = 30, 40
			s.Pods[2].Placement.Ghosts = []pod.Ghost{{Node: "n3", Revision: 4}}
		}, nil, 10 * time.Minute},
	} {
		s := row(c.pods, c.pods)
		s.RC.MaxSurge = &c.surge
		c.change(s)
		plan := reconcile.Compute(s)
		if got := added(&plan); !slices.Equal(got, c.want) || plan.Again != c.again {
			t.Errorf("%s: %v are replaced, want %v; again after %s, want %s", name, got, c.want, plan.Again, c.again)
		}
	}
}

// A pod that is stuck after a loss keeps its copy until another one is available, so missing pods wait (P6).
func TestAStuckPodThatIsMovedOnKeepsItsCopy(t *testing.T) {
	t.Parallel()
	for surge, want := range [][]string{{"main.0"}, {"main.0", "main.2"}} {
		s := row(2, 3)
		s.RC.MaxSurge = &surge
		onItsWay(s, 0, time.Hour)
		s.Pods[0].Placement.Ghosts[0].LeftBecauseLost = true
		s.Nodes["n0"].Alive, s.Nodes["n0"].MachineLost = false, true
		plan := reconcile.Compute(s)
		if got := added(&plan); !slices.Equal(got, want) {
			t.Errorf("surge %d: %v, want %v", surge, got, want)
		}
	}
}

// For each pod, one change writes the loss of the pod and of its former copies. It depends on the deaths of all these
// nodes.
func TestAPodHasOneMarkForItsLoss(t *testing.T) {
	t.Parallel()
	s := row(2, 2)
	s.RC.NodeLoss.After = new(field.Duration)
	for i, name := range []string{"n0", "n1", "n2", "n3"} {
		s.Nodes[name].Alive, s.Nodes[name].MachineLost, s.Nodes[name].FreeIndex = false, true, uint64(40+i)
	}
	s.Pods[0].Placement.Ghosts = []pod.Ghost{{Node: "n2", Revision: 4}}
	s.Pods[1].Placement.Ghosts = []pod.Ghost{{Node: "n3", Revision: 4}}
	plan := reconcile.Compute(s)
	if len(plan.Adds) != 2 || len(plan.LossRecords) != 2 || len(plan.Changes) != 0 {
		t.Fatalf("adds %v, marks %v, changes %v", plan.Adds, plan.LossRecords, plan.Changes)
	}
	for i := range plan.LossRecords {
		m, at, former := &plan.LossRecords[i], fmt.Sprintf("n%d", i), fmt.Sprintf("n%d", i+2)
		if p := m.Placement; m.Identity != s.Pods[i].Identity || p.Node != at || p.LostSince == nil ||
			len(p.Ghosts) != 1 || p.Ghosts[0].Node != former || !p.Ghosts[0].MachineLost {
			t.Errorf("%s: %+v", m, m.Placement)
		}
		want := []reconcile.DeadNode{{Name: at, Index: uint64(40 + i)}, {Name: former, Index: uint64(42 + i)}}
		if !slices.Equal(m.NeedsDead, want) {
			t.Errorf("%s needs %v, want %v", m, m.NeedsDead, want)
		}
	}
}

// Adopted pods take the slots in which lost pods would be replaced, because they run already.
func TestAdoptedPodsTakeTheSlotsOfLostPods(t *testing.T) {
	t.Parallel()
	for surge, want := range map[int]int{0: 0, 1: 1, 2: 2} {
		s := snapshotOf(3)
		s.RC.MaxSurge = count(surge)
		s.Pods = []reconcile.Pod{running(0, "n0", 5, 0), running(1, "n0", 5, 0), running(2, "n1", 5, 0)}
		s.Nodes["n0"].Alive, s.Nodes["n0"].MachineLost = false, true
		since := s.Now.Add(-time.Hour)
		s.Pods[0].LostSince, s.Pods[1].LostSince = &since, &since
		s.Orphans = []reconcile.Orphan{orphan("n2", 7, 5), orphan("n3", 8, 5)}
		plan := reconcile.Compute(s)
		if got := len(plan.Adds); got != want {
			t.Errorf("surge %d: %d are placed beside one that runs and two that are adopted, want %d", surge, got, want)
		}
	}
}

// A lost pod that is adopted elsewhere uses a slot again, although it has always been placed.
func TestAnAdoptedLostPodTakesASlot(t *testing.T) {
	t.Parallel()
	for surge, want := range map[int]int{0: 0, 1: 1} {
		s := snapshotOf(2)
		s.RC.MaxSurge = count(surge)
		s.Pods = []reconcile.Pod{running(0, "n0", 5, 0), running(1, "n0", 5, 0), running(3, "n1", 5, 0)}
		s.Nodes["n0"].Alive, s.Nodes["n0"].MachineLost = false, true
		since := s.Now.Add(-time.Hour)
		s.Pods[0].LostSince, s.Pods[1].LostSince = &since, &since
		stopAt(&s.Pods[2], s)
		s.Orphans = []reconcile.Orphan{orphan("n2", 0, 9)}
		plan := reconcile.Compute(s)
		if got := len(plan.Adds); got != want {
			t.Errorf("surge %d: %d are placed beside one that stops and one that is adopted, want %d", surge, got, want)
		}
	}
}

// Adopted pods also take the slot in which a pod would be moved.
func TestAdoptedPodsTakeTheSlotOfAMove(t *testing.T) {
	t.Parallel()
	for surge, want := range map[int]int{1: 0, 2: 1} {
		s := row(2, 2)
		s.RC.MaxSurge = count(surge)
		v := *s.Nodes["n0"]
		v.Ops.Drain = &node.Drain{Since: s.Now}
		s.Nodes["n0"] = &v
		s.Orphans = []reconcile.Orphan{orphan("n2", 7, 5)}
		plan := reconcile.Compute(s)
		if got := len(plan.Adds); got != want {
			t.Errorf("surge %d: %d are moved beside two that run and one that is adopted, want %d", surge, got, want)
		}
	}
}

// A pod that a forced drain gives back to a former node whose machine is lost is recorded as lost there, on condition
// that the machine is still lost (R10).
func TestAReturnToALostMachineNeedsItsDeath(t *testing.T) {
	t.Parallel()
	for _, lost := range []bool{true, false} {
		s := one(func(s *reconcile.Snapshot, p *reconcile.Pod) {
			p.Placement.Ghosts = []pod.Ghost{{Node: "n1", Since: s.Now.Add(-time.Minute)}}
			s.Nodes["n0"].Ops.Drain = &node.Drain{Since: s.Now.Add(-time.Hour), Force: true}
			if lost {
				v := s.Nodes["n1"]
				v.Alive, v.MachineLost, v.FreeIndex = false, true, 40
			}
		})
		s.Pods[0].Ghosts["n1"] = &pod.Reality{
			Identity: s.Pods[0].Identity, Node: "n1", Digest: "m1", Revision: 4, State: pod.StateReady, Available: true,
		}
		changes := reconcile.Compute(s).Changes
		if len(changes) != 1 || changes[0].Action != reconcile.Return || changes[0].Placement.Node != "n1" ||
			(changes[0].Placement.LostSince != nil) != lost {
			t.Fatalf("lost %v: %v", lost, changes)
		}
		want := []reconcile.DeadNode{{Name: "n1", Index: 40}}
		if got := changes[0].NeedsDead; lost && !slices.Equal(got, want) || !lost && got != nil {
			t.Errorf("lost %v: it depends on the deaths %v", lost, got)
		}
	}
}
