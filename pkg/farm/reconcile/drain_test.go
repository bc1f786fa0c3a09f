package reconcile_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/farm/reconcile"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
)

// drained is a controller with two pods: on n0, which is drained, and on n1.
func drained() *reconcile.Snapshot {
	s := snapshotOf(2)
	s.Pods = []reconcile.Pod{running(0, "n0", 5, 0), running(1, "n1", 5, 0)}
	s.Nodes["n0"].Ops.Drain = &node.Drain{Since: s.Now.Add(-time.Minute)}
	return s
}

// forced makes the drain of n0 forced and gives it a deadline.
func forced(s *reconcile.Snapshot, in time.Duration) {
	deadline := s.Now.Add(in)
	s.Nodes["n0"].Ops.Drain.Deadline, s.Nodes["n0"].Ops.Drain.Force = &deadline, true
}

// dead makes a machine lost. It also gives the snapshot's first pod a former copy there, and no other former copy.
// lost: the pod has left this copy because the machine was lost.
func dead(s *reconcile.Snapshot, name string, lost bool) {
	s.Nodes[name].Alive, s.Nodes[name].MachineLost = false, true
	s.Pods[0].Placement.Ghosts = []pod.Ghost{{Node: name, LeftBecauseLost: lost, Revision: 4}}
}

func blocked(t *testing.T, plan *reconcile.Plan, want string) {
	t.Helper()
	i := slices.IndexFunc(plan.Status.Conditions, func(c rc.Condition) bool { return c.Type == rc.Blocked })
	if i < 0 || !plan.Status.Conditions[i].True || !strings.Contains(plan.Status.Conditions[i].Reason, want) {
		t.Errorf("conditions %+v, want Blocked: %s", plan.Status.Conditions, want)
	}
	if plan.Status.Is(rc.Converged) {
		t.Error("the controller has converged while a drain waits")
	}
}

func stops(plan *reconcile.Plan) (names []string) {
	for _, ch := range plan.Changes {
		for _, in := range ch.Intents {
			if in.Intent != nil && in.Intent.State == pod.Stopped {
				names = append(names, in.Node)
			}
		}
	}
	return names
}

// A machine that never comes back reports nothing any more, so nothing may wait for it. The pod that has left it is
// moved again.
func TestAPodThatReplacedALostOneIsDrained(t *testing.T) {
	t.Parallel()
	for _, lost := range []bool{true, false} { // false: the machine died after the pod had moved
		s := drained()
		dead(s, "n3", lost)
		plan := reconcile.Compute(s)
		if !slices.Equal(plan.Adds, []pod.Identity{s.Pods[0].Identity}) || len(plan.Changes) != 0 {
			t.Errorf("adds %v, changes %v; want main.0 to move", plan.Adds, plan.Changes)
		}
	}
}

// If a node has stopped a pod, the pod's share there is given back, although the stop of a former copy may never be
// confirmed.
func TestAStopIsConfirmedDespiteACopyOnALostMachine(t *testing.T) {
	t.Parallel()
	s := drained()
	dead(s, "n3", true)
	p := &s.Pods[0]
	p.RunState, p.Revision, p.StoppingSince = pod.Stopped, 7, &s.Now
	p.Reality.State, p.Reality.Available, p.Reality.Revision = pod.StateStopped, false, 7
	plan := reconcile.Compute(s)
	i := slices.IndexFunc(plan.Changes, func(ch reconcile.Change) bool { return ch.Identity == p.Identity })
	if i < 0 {
		t.Fatalf("no change of main.0 in %v", plan.Changes)
	}
	ch := plan.Changes[i]
	if ch.Placement == nil || ch.Placement.Node != "n3" || ch.Placement.RunState != pod.Stopped ||
		len(ch.Placement.Ghosts) != 0 || ch.Placement.Revision <= 7 {
		t.Fatalf("placement %+v; want a stop on n3", ch.Placement)
	}
	if in := ch.Intents; len(in) != 2 || in[0].Node != "n0" || in[0].Intent != nil || in[1].Node != "n3" ||
		in[1].Intent.State != pod.Stopped || !ch.NeedsBreaker {
		t.Errorf("intents %+v", in)
	}
	if len(ch.Reserve) != 1 || ch.Reserve[0].Node != "n0" || ch.Reserve[0].Claim != nil {
		t.Errorf("reservations %+v", ch.Reserve)
	}
}

// The status has the reason why a drain does not end. The deadline of a forced drain ends it, except while nothing may
// be stopped at all.
func TestADrainReportsWhatItWaitsFor(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(*reconcile.Snapshot)
		reason string
		stays  bool // also after the deadline
	}{
		"static":   {func(s *reconcile.Snapshot) { s.RC.Strategy = rc.Static }, "static", false},
		"rollout":  {func(s *reconcile.Snapshot) { s.Rollout = "r1" }, "rollout r1 is in charge", false},
		"manifest": {func(s *reconcile.Snapshot) { s.Manifest = nil }, "cannot be read", false},
		"minimum": {
			func(s *reconcile.Snapshot) { two, zero := 2, 0; s.RC.MinAvailable, s.RC.MaxSurge = &two, &zero },
			"a minimum of 2", false,
		},
		"found":    {func(s *reconcile.Snapshot) { s.Pods[0].AdoptedAtGeneration = 7 }, "found running", false},
		"disabled": {func(s *reconcile.Snapshot) { s.RC.Disabled = true }, "disabled", true},
		"found after the drain": {func(s *reconcile.Snapshot) {
			s.Pods[0].AdoptedAtGeneration, s.Pods[0].ChangedAt = 7, s.Now.Add(-time.Second)
		}, "found running", true},
		"former copy": {func(s *reconcile.Snapshot) {
			s.Nodes["n3"].Alive = false // its machine lives
			s.Pods[1].Placement.Ghosts = []pod.Ghost{{Node: "n3", Revision: s.Now.UnixMilli()}}
		}, "n3, which has no preparer", false},
	} {
		s := drained()
		c.change(s)
		plan := reconcile.Compute(s)
		if len(stops(&plan))+len(plan.Adds) > 0 {
			t.Errorf("%s: adds %v, stops on %v", name, plan.Adds, stops(&plan))
		}
		blocked(t, &plan, c.reason)

		forced(s, time.Minute)
		plan = reconcile.Compute(s)
		again := time.Minute
		if s.Rollout != "" {
			again = reconcile.RetryAfter // the rollout may be idle by then
		}
		if len(stops(&plan)) > 0 || !c.stays && plan.Again != again {
			t.Errorf("%s: before the deadline: stops on %v, again after %s", name, stops(&plan), plan.Again)
		}
		blocked(t, &plan, c.reason)

		forced(s, -time.Second)
		plan = reconcile.Compute(s)
		if got := stops(&plan); c.stays != (len(got) == 0) || len(got) > 1 || len(got) == 1 && got[0] != "n0" {
			t.Errorf("%s: after the deadline: stops on %v", name, got)
		}
		if c.stays {
			blocked(t, &plan, c.reason)
		}
	}
}

// A pod that a drain stops by force is one of the surplus pods, and stops before all others.
func TestAForcedStopCountsAsARemoval(t *testing.T) {
	t.Parallel()
	s := drained()
	s.Pods = append(s.Pods, running(2, "n2", 5, 0))
	forced(s, -time.Second)
	plan := reconcile.Compute(s)
	if got := stops(&plan); !slices.Equal(got, []string{"n0"}) {
		t.Errorf("stops on %v, want n0 alone: three run, two are desired", got)
	}

	// A pod on a silent machine would be the first to stop.
	since := s.Now.Add(-time.Second)
	s.Nodes["n2"].Alive, s.Nodes["n2"].MachineLost, s.Nodes["n2"].FreeIndex = false, true, 7
	s.Pods[2].LostSince, s.Pods[2].DeadIndex = &since, 7
	plan = reconcile.Compute(s)
	if got := stops(&plan); !slices.Equal(got, []string{"n0"}) {
		t.Errorf("beside a silent machine: stops on %v, want n0 alone: three run, two are desired", got)
	}
}

// Nothing is stopped during a hold, or while the breaker is tripped. Both are reported.
func TestAForcedDrainWaitsForHoldAndBreaker(t *testing.T) {
	t.Parallel()
	for want, change := range map[rc.ConditionType]func(*reconcile.Snapshot){
		rc.Holding:        func(s *reconcile.Snapshot) { s.Hold = "the records are new" },
		rc.BreakerTripped: func(s *reconcile.Snapshot) { s.Breaker = "tripped" },
	} {
		s := drained()
		forced(s, -time.Second)
		s.Nodes["n1"].Ops.Drain = s.Nodes["n0"].Ops.Drain
		change(s)
		plan := reconcile.Compute(s)
		if len(stops(&plan)) > 0 || !plan.Status.Is(want) {
			t.Errorf("%s: stops on %v, conditions %+v", want, stops(&plan), plan.Status.Conditions)
		}
	}
}

// A forced drain is about one node. If a former copy runs on another node while the pod moves, this copy is the pod
// again. The pod stops only if pods must leave that node, too.
func TestAForcedDrainReturnsToTheFormerCopy(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		former func(v *node.View)
		node   string // where the pod is next
		state  pod.RunState
		stops  []string
	}{
		"runs": {func(*node.View) {}, "n2", pod.Running, []string{"n0"}},
		"lost": {
			func(v *node.View) { v.Alive, v.MachineLost = false, true }, "n2", pod.Running, []string{"n0"},
		},
		"drained": {func(v *node.View) { v.Ops.Drain = &node.Drain{} }, "n2", pod.Running, []string{"n0"}},
		"forced, too": {
			func(v *node.View) { v.Ops.Drain = &node.Drain{Force: true} }, "n0", pod.Stopped, []string{"n0", "n2"},
		},
		"asked to end": {nil, "n0", pod.Stopped, []string{"n0"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := drained()
			forced(s, -time.Second)
			g := pod.Ghost{Node: "n2", Since: s.Now.Add(-time.Second)}
			v := *s.Nodes["n1"]
			v.Name = "n2"
			if tt.former == nil {
				g.Revision = 6
			} else {
				tt.former(&v)
			}
			s.Nodes["n2"] = &v
			s.Pods[0].Placement.Ghosts = []pod.Ghost{g}
			s.Pods[0].Ghosts = map[string]*pod.Reality{
				"n2": {
					Identity: s.Pods[0].Identity, Node: "n2", Digest: "before", Revision: 4, State: pod.StateReady,
					Available: true,
				},
			}
			plan := reconcile.Compute(s)
			if len(plan.Changes) != 1 || plan.Changes[0].Placement == nil {
				t.Fatalf("changes %v", plan.Changes)
			}
			next := plan.Changes[0].Placement
			if next.Node != tt.node || next.RunState != tt.state || next.Revision <= 5 {
				t.Errorf("placed on %s, %s, at %d", next.Node, next.RunState, next.Revision)
			}
			if got := stops(&plan); !slices.Equal(slices.Sorted(slices.Values(got)), tt.stops) {
				t.Errorf("stops on %v, want %v", got, tt.stops)
			}
			if tt.state == pod.Running &&
				(next.Digest != "before" || len(next.Ghosts) != 1 || next.Ghosts[0].Node != "n0" ||
					next.Ghosts[0].Revision == 0) {
				t.Errorf("with %s and former copies %+v", next.Digest, next.Ghosts)
			}
		})
	}
}

// onItsWay makes the state of a pod that was moved to n3 some time ago. Its former copy still runs.
func onItsWay(s *reconcile.Snapshot, i int, ago time.Duration) {
	p := &s.Pods[i]
	p.Ghosts[p.Node], p.Placement.Ghosts = p.Reality, []pod.Ghost{{Node: p.Node, Since: s.Now.Add(-ago)}}
	p.Node, p.Revision, p.ChangedAt, p.Reality = "n3", 6, s.Now.Add(-ago), nil
}

// Pods move off their node one at a time. If one more copy is allowed, besides the pods that the same pass places, the
// new copy is placed first. Otherwise the pod stops first. If that would break the minimum, the pod is not moved,
// unless all pods are available and the new copy is placed first.
func TestOnePodLeavesADrainedNodeAtATime(t *testing.T) {
	t.Parallel()
	drain := func(s *reconcile.Snapshot, names ...string) {
		for _, name := range names {
			s.Nodes[name].Ops.Drain = &node.Drain{Since: s.Now}
		}
	}
	for name, c := range map[string]struct {
		pods, desired, least, surge int
		change                      func(*reconcile.Snapshot)
		adds, stops                 []string
		halted                      bool
	}{
		"with room":                    {3, 3, 2, 1, nil, []string{"main.0"}, nil, false},
		"with room, at the minimum":    {3, 3, 3, 1, nil, []string{"main.0"}, nil, false},
		"without room":                 {3, 3, 2, 0, nil, nil, []string{"main.0"}, false},
		"without room, at the minimum": {3, 3, 3, 0, nil, nil, nil, true},
		"two nodes": {
			3, 3, 1, 2, func(s *reconcile.Snapshot) { drain(s, "n1") }, []string{"main.0"}, nil, false,
		},
		"one of two is not well": {
			3, 3, 1, 2, func(s *reconcile.Snapshot) { drain(s, "n1"); sick(s, 1) }, []string{"main.1"}, nil, false,
		},
		"another one is not well": {
			3, 3, 1, 1, func(s *reconcile.Snapshot) { sick(s, 2) }, []string{"main.0"}, nil, false,
		},
		"another one is not well, at the minimum": {
			3, 3, 2, 1, func(s *reconcile.Snapshot) { sick(s, 2) }, nil, nil, true,
		},
		"it is not well, at the minimum": {
			3, 3, 2, 1, func(s *reconcile.Snapshot) { sick(s, 0) }, []string{"main.0"}, nil, false,
		},
		"one is placed, and one more may": {2, 3, 1, 1, nil, []string{"main.2", "main.0"}, nil, false},
		"one is placed, and no more may":  {2, 3, 1, 0, nil, []string{"main.2"}, []string{"main.0"}, false},
		"one that was moved has not stopped": {3, 3, 2, 2, func(s *reconcile.Snapshot) {
			s.Pods[2].Placement.Ghosts = []pod.Ghost{{Node: "n3", Revision: s.Now.Add(-2*time.Minute).UnixMilli() + 1}}
		}, nil, nil, false},
		"one that was moved has not stopped in time": {3, 3, 2, 2, func(s *reconcile.Snapshot) {
			s.Pods[2].Placement.Ghosts = []pod.Ghost{{Node: "n3", Revision: s.Now.Add(-2 * time.Minute).UnixMilli()}}
		}, []string{"main.0"}, nil, false},
		"one that was moved by a clock that was ahead has not stopped": {3, 3, 2, 2, func(s *reconcile.Snapshot) {
			s.Pods[2].Placement.Ghosts = []pod.Ghost{
				{Node: "n3", Revision: s.Now.Add(time.Hour).UnixMilli(), Since: s.Now.Add(time.Second - 2*time.Minute)},
			}
		}, nil, nil, false},
		"one that was moved by a clock that was ahead has not stopped in time": {
			3, 3, 2, 2,
			func(s *reconcile.Snapshot) {
				s.Pods[2].Placement.Ghosts = []pod.Ghost{
					{Node: "n3", Revision: s.Now.Add(time.Hour).UnixMilli(), Since: s.Now.Add(-2 * time.Minute)},
				}
			},
			[]string{"main.0"},
			nil, false,
		},
		"one is on its way": {
			3, 3, 2, 2, func(s *reconcile.Snapshot) { drain(s, "n2"); onItsWay(s, 2, time.Minute) }, nil, nil, false,
		},
		"one has not arrived in time": {
			3, 3, 1, 2, func(s *reconcile.Snapshot) { drain(s, "n2"); onItsWay(s, 2, 2*time.Minute) },
			[]string{"main.0"},
			nil, true,
		},
	} {
		s := row(c.pods, c.desired)
		s.RC.MinAvailable, s.RC.MaxSurge = &c.least, &c.surge
		drain(s, "n0")
		if c.change != nil {
			c.change(s)
		}
		plan := reconcile.Compute(s)
		if adds, stops := added(&plan), stopped(&plan); !slices.Equal(adds, c.adds) || !slices.Equal(stops, c.stops) ||
			plan.Status.Is(rc.Blocked) != c.halted {
			t.Errorf("%s: places %v, stops %v, want %v and %v: %+v", name, adds, stops, c.adds, c.stops,
				plan.Status.Conditions)
		}
	}
}

// A waiting drain reports what would end the wait: for a static controller an act of the operator, for a forced drain
// its deadline.
func TestAWaitingDrainReportsItsEnd(t *testing.T) {
	t.Parallel()
	static := func(s *reconcile.Snapshot) { s.RC.Strategy = rc.Static }
	force := func(s *reconcile.Snapshot) { forced(s, time.Minute) }
	const until = "; it is stopped at 2023-11-14T22:14:20Z"
	for name, c := range map[string]struct {
		changes []func(*reconcile.Snapshot)
		reason  string
	}{
		"static": {
			[]func(*reconcile.Snapshot){static},
			"its controller is static; end the drain, or drain with --deadline and --force",
		},
		"static, forced": {[]func(*reconcile.Snapshot){static, force}, "its controller is static" + until},
		"a rollout": {
			[]func(*reconcile.Snapshot){func(s *reconcile.Snapshot) { s.Rollout = "r1" }},
			"rollout r1 is in charge of its controller",
		},
		"a rollout, forced": {
			[]func(*reconcile.Snapshot){func(s *reconcile.Snapshot) { s.Rollout = "r1" }, force},
			"rollout r1 is in charge of its controller" + until,
		},
		"disabled, forced": {
			[]func(*reconcile.Snapshot){func(s *reconcile.Snapshot) { s.RC.Disabled = true }, force},
			"its controller is disabled: nothing is placed and nothing removed",
		},
		"forced at once, and the breaker has tripped": {[]func(*reconcile.Snapshot){
			static,
			func(s *reconcile.Snapshot) {
				s.Nodes["n0"].Ops.Drain.Force, s.Breaker = true, "tripped"
			},
		}, "its controller is static"},
	} {
		s := drained()
		for _, change := range c.changes {
			change(s)
		}
		plan := reconcile.Compute(s)
		if got := condition(&plan.Status, rc.Blocked).Reason; got != "main.0 must leave n0: "+c.reason {
			t.Errorf("%s: %q, want %q", name, got, c.reason)
		}
	}
}

// A pod that must leave its node and finds no other node does not delay an upgrade, if the minimum leaves a spare pod
// for it.
func TestAPodWithoutAnotherNodeDelaysNoUpgrade(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		least    int
		change   func(*reconcile.Snapshot)
		upgrades []string
	}{
		"it has the new manifest": {2, nil, []string{"main.1 p m1"}},
		"it has the old manifest, too": {
			2, func(s *reconcile.Snapshot) { other(s, 0) }, []string{"main.1 p m1"},
		},
		"at the minimum":               {3, nil, nil},
		"it does not become available": {1, func(s *reconcile.Snapshot) { fails(s, 0) }, nil},
		"its node is lost, and there is room for one": {
			1, func(s *reconcile.Snapshot) { longLost(s, 0) }, []string{"main.1 p m1"},
		},
	} {
		s := row(3, 3)
		s.RC.MinAvailable, s.RC.MaxSurge = count(c.least), count(1)
		s.Nodes["n0"].Ops.Drain = &node.Drain{Since: s.Now}
		other(s, 1)
		if c.change != nil {
			c.change(s)
		}
		plan := reconcile.Compute(s)
		if got := upgrades(&plan); !slices.Equal(got, c.upgrades) || !slices.Equal(added(&plan), []string{"main.0"}) {
			t.Errorf("%s: upgrades %v, want %v; places %v: %+v", name, got, c.upgrades, added(&plan),
				plan.Status.Conditions)
		}
	}
}

// longLost makes a pod's machine lost for longer than its controller waits.
func longLost(s *reconcile.Snapshot, i int) {
	v, since := s.Nodes[s.Pods[i].Node], s.Now.Add(-time.Hour)
	v.Alive, v.MachineLost = false, true
	s.Pods[i].LostSince, s.Pods[i].DeadIndex = &since, v.FreeIndex
}
