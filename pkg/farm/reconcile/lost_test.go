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
	s.Nodes["n0"].Alive, s.Nodes["n0"].MachineLost = false, true
	plan := reconcile.Compute(s)
	if ghosts := reconcile.NewPlacer(s).On(p.Identity, "n1").Placement.Ghosts; len(ghosts) != 1 || !ghosts[0].MachineLost || !ghosts[0].LeftBecauseLost {
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

// What a move would have brought along is written alone where a scheduler fails (P7).
func TestALossIsMarkedThoughNothingCanBeScheduled(t *testing.T) {
	t.Parallel()
	s := snapshotOf(1)
	s.RC.NodeLoss.After = new(field.Duration)
	s.Pods = []reconcile.Pod{running(0, "n0", 5, 0)}
	s.Nodes["n0"].Alive, s.Nodes["n0"].MachineLost = false, true
	plan := reconcile.Compute(s)
	if len(plan.Adds) != 1 || len(plan.Changes) != 0 {
		t.Fatalf("adds %v, changes %v", plan.Adds, plan.Changes)
	}
	plan.Unscheduled(s, "out of order")
	if len(plan.Changes) != 1 || plan.Changes[0].Action != reconcile.Mark || plan.Changes[0].Placement.LostSince == nil {
		t.Errorf("changes %v", plan.Changes)
	}
}

// A lost pod is replaced once there is room for one more: while another one moves, both of its copies take some (P6). The room that its
// new copy takes is not there for a pod that is missing besides.
func TestALostPodWaitsForRoom(t *testing.T) {
	t.Parallel()
	for desired, wanted := range map[int][]int{2: {0, 1}, 3: {1, 2}} { // how many are placed at each surge
		for surge, want := range wanted {
			s := snapshotOf(desired)
			s.RC.MaxSurge, s.RC.NodeLoss.After = &surge, new(field.Duration)
			s.Pods = []reconcile.Pod{running(0, "n0", 5, 0), running(1, "n1", 5, 0)}
			since := s.Now.Add(-time.Minute)
			s.Nodes["n1"].Alive, s.Nodes["n1"].MachineLost, s.Pods[1].LostSince = false, true, &since
			s.Pods[0].Placement.Ghosts = []pod.Ghost{{Node: "n2", Revision: 4, Since: since}} // has yet to stop
			if plan := reconcile.Compute(s); len(plan.Adds) != want {
				t.Errorf("%d desired, surge %d: adds %v", desired, surge, plan.Adds)
			}
		}
	}
}

// A node that came back and lost its preparer again before its owner looked has not died a second time: what the placements say is
// about another death, and the time counts from now.
func TestALossIsAboutOneDeath(t *testing.T) {
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
	if p.LostSince != nil || p.UnmanagedSince == nil || !p.UnmanagedSince.Equal(s.Now) || p.DeadIndex != 40 || plan.Status.Lost != 0 || plan.Status.Available != 2 || len(plan.Adds) > 0 {
		t.Errorf("%+v, status %+v, adds %v", p.Placement, plan.Status, plan.Adds)
	}
	if g := former.Placement.Ghosts[0]; g.MachineLost || g.DeadIndex != 0 {
		t.Errorf("former copy %+v", g)
	}

	// Consul says that this time the machine died.
	s.Nodes["n3"].MachineLost = true
	plan = reconcile.Compute(s)
	former.Placement = next(t, &plan, former)
	if g := former.Placement.Ghosts[0]; !g.MachineLost || g.DeadIndex != 60 {
		t.Errorf("former copy %+v", g)
	}
	if ch := plan.Changes[0]; len(plan.Changes) != 1 || len(ch.NeedsDead) != 1 || ch.NeedsDead[0] != (reconcile.DeadNode{Name: "n3", Index: 60}) {
		t.Errorf("changes %+v", plan.Changes)
	}
}

// A lost pod goes first where there are too many. Its node may come back with it, available as it last said and without a word, so
// that the stop lands only while it is away (P6).
func TestAStopOfALostPodDependsOnTheLoss(t *testing.T) {
	t.Parallel()
	s := snapshotOf(1)
	s.Nodes["n0"].Alive, s.Nodes["n0"].MachineLost, s.Nodes["n0"].FreeIndex = false, true, 40
	s.Pods = []reconcile.Pod{running(0, "n0", 5, 0), running(1, "n1", 5, 0)}
	s.Pods[0].LostSince, s.Pods[0].DeadIndex = &s.Now, 40
	plan := reconcile.Compute(s)
	if ch := plan.Changes[0]; len(plan.Changes) != 1 || ch.Action != reconcile.Stop || len(ch.NeedsDead) != 1 || ch.NeedsDead[0] != (reconcile.DeadNode{Name: "n0", Index: 40}) {
		t.Errorf("changes %+v", plan.Changes)
	}
}

// The pod of a node whose preparer is away is given another node only while that preparer stays away.
func TestAMoveFromAnUnmanagedNodeDependsOnItsAbsence(t *testing.T) {
	t.Parallel()
	s := snapshotOf(1)
	s.Nodes["n0"].Alive, s.Nodes["n0"].FreeIndex = false, 40
	s.Pods = []reconcile.Pod{running(0, "n0", 5, 0)}
	ch := reconcile.NewPlacer(s).On(s.Pods[0].Identity, "n1")
	if ch.Action != reconcile.Move || !slices.Equal(ch.NeedsDead, []reconcile.DeadNode{{Name: "n0", Index: 40}}) {
		t.Errorf("change %+v", ch)
	}
	delete(s.Nodes, "n0") // nobody can be asked whether it is back
	if ch := reconcile.NewPlacer(s).On(s.Pods[0].Identity, "n1"); ch.Action != reconcile.Move || ch.NeedsDead != nil {
		t.Errorf("change %+v", ch)
	}
}

// A pod whose new copy never became available goes first where there are too many. The former copy, on a lost machine, stops with it; back,
// that one is available as it last said, so that the stop lands only while the machine is away (P6).
func TestAStopOfAFormerCopyDependsOnItsLoss(t *testing.T) {
	t.Parallel()
	s := snapshotOf(1)
	s.Nodes["n3"].Alive, s.Nodes["n3"].MachineLost, s.Nodes["n3"].FreeIndex = false, true, 40
	s.Pods = []reconcile.Pod{running(0, "n0", 5, 0), running(1, "n1", 5, 0)}
	p := &s.Pods[0]
	p.Placement.Ghosts = []pod.Ghost{{Node: "n3", LeftBecauseLost: true, MachineLost: true, DeadIndex: 40}}
	p.Reality, p.Ghosts = nil, map[string]*pod.Reality{"n3": p.Reality}
	plan := reconcile.Compute(s)
	if ch := plan.Changes[0]; len(plan.Changes) != 1 || ch.Action != reconcile.Stop || ch.Identity != p.Identity || len(ch.Intents) != 2 ||
		!slices.Equal(ch.NeedsDead, []reconcile.DeadNode{{Name: "n3", Index: 40}}) {
		t.Errorf("changes %+v", plan.Changes)
	}
}

// A machine that never comes back keeps no controller from having converged: neither with a former copy nor with a pod that was to stop.
// One that may run, because only its preparer is away, does; and a deleted controller is not done before the operator's word.
func TestCopiesOnLostMachinesHoldNothingUp(t *testing.T) {
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

// unmanage takes the preparers of pods away for some time.
func unmanage(s *reconcile.Snapshot, since time.Duration, pods ...int) {
	at := s.Now.Add(-since)
	for _, i := range pods {
		s.Nodes[s.Pods[i].Node].Alive, s.Pods[i].UnmanagedSince = false, &at
	}
}

// A lost pod is replaced when its time has come, and looked at again just then. One whose preparer is away so long that it may be
// replaced takes no room any more; one that has yet to stop, or for which the time counts from another death, does.
func TestLostPodsAreReplacedInTimeAndAsThereIsRoom(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		pods, surge int
		change      func(*reconcile.Snapshot)
		want        []string
		again       time.Duration
	}{
		"its time has not come": {2, 0, func(s *reconcile.Snapshot) { lose(s, 10*time.Second, 0) }, nil, 20 * time.Second},
		"a moment is left":      {2, 0, func(s *reconcile.Snapshot) { lose(s, 30*time.Second-1, 0) }, nil, 1},
		"its time has come":     {2, 0, func(s *reconcile.Snapshot) { lose(s, 30*time.Second, 0) }, []string{"main.0"}, 0},
		"its time has come, that of another has not": {2, 0, func(s *reconcile.Snapshot) {
			lose(s, 10*time.Second, 0)
			lose(s, 30*time.Second, 1)
		}, []string{"main.1"}, 20 * time.Second},
		"two, and room for one": {3, 0, func(s *reconcile.Snapshot) {
			lose(s, time.Hour, 0, 1)
			s.Pods[2].Placement.Ghosts = []pod.Ghost{{Node: "n3", Revision: 4}}
		}, []string{"main.0"}, 0},
		"its preparer is away":                   {2, 0, func(s *reconcile.Snapshot) { unmanage(s, 9*time.Minute, 0) }, nil, time.Minute},
		"its preparer has been away long enough": {2, 0, func(s *reconcile.Snapshot) { unmanage(s, 10*time.Minute, 0) }, []string{"main.0"}, 0},
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

// A pod that got stuck after a loss stands where it is until another copy is available: what is missing besides waits for room (P6).
func TestAStuckPodThatIsMovedOnTakesRoom(t *testing.T) {
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

// What is known of a lost pod and of its former copies is one mark for each pod, with the deaths of all its nodes.
func TestALossIsOneMarkOfEachPod(t *testing.T) {
	t.Parallel()
	s := row(2, 2)
	s.RC.NodeLoss.After = new(field.Duration)
	for i, name := range []string{"n0", "n1", "n2", "n3"} {
		s.Nodes[name].Alive, s.Nodes[name].MachineLost, s.Nodes[name].FreeIndex = false, true, uint64(40+i)
	}
	s.Pods[0].Placement.Ghosts = []pod.Ghost{{Node: "n2", Revision: 4}}
	s.Pods[1].Placement.Ghosts = []pod.Ghost{{Node: "n3", Revision: 4}}
	plan := reconcile.Compute(s)
	if len(plan.Adds) != 2 || len(plan.Marks) != 2 || len(plan.Changes) != 0 {
		t.Fatalf("adds %v, marks %v, changes %v", plan.Adds, plan.Marks, plan.Changes)
	}
	for i := range plan.Marks {
		m, at, former := &plan.Marks[i], fmt.Sprintf("n%d", i), fmt.Sprintf("n%d", i+2)
		if p := m.Placement; m.Identity != s.Pods[i].Identity || p.Node != at || p.LostSince == nil || len(p.Ghosts) != 1 || p.Ghosts[0].Node != former || !p.Ghosts[0].MachineLost {
			t.Errorf("%s: %+v", m, m.Placement)
		}
		if want := []reconcile.DeadNode{{Name: at, Index: uint64(40 + i)}, {Name: former, Index: uint64(42 + i)}}; !slices.Equal(m.NeedsDead, want) {
			t.Errorf("%s needs %v, want %v", m, m.NeedsDead, want)
		}
	}
}

// What a plan adopts takes the room in which lost pods would be replaced: for that nobody waits.
func TestWhatIsAdoptedTakesTheRoomOfWhatIsLost(t *testing.T) {
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

// A lost pod that is adopted elsewhere stands again, though it was placed all the time.
func TestALostPodThatIsAdoptedTakesRoom(t *testing.T) {
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

// What a plan adopts takes the room in which a pod would be moved, too.
func TestWhatIsAdoptedTakesTheRoomOfAMove(t *testing.T) {
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

// A pod that a forced drain gives back to a former node whose machine is lost is marked as lost there, on condition that the machine is dead as it was (R10).
func TestGivenBackToALostMachineNeedsItsDeath(t *testing.T) {
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
		s.Pods[0].Ghosts["n1"] = &pod.Reality{Identity: s.Pods[0].Identity, Node: "n1", Digest: "m1", Revision: 4, State: pod.StateReady, Available: true}
		changes := reconcile.Compute(s).Changes
		if len(changes) != 1 || changes[0].Action != reconcile.Return || changes[0].Placement.Node != "n1" || (changes[0].Placement.LostSince != nil) != lost {
			t.Fatalf("lost %v: %v", lost, changes)
		}
		want := []reconcile.DeadNode{{Name: "n1", Index: 40}}
		if got := changes[0].NeedsDead; lost && !slices.Equal(got, want) || !lost && got != nil {
			t.Errorf("lost %v: it depends on the deaths %v", lost, got)
		}
	}
}
