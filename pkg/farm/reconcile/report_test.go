package reconcile_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/farm/reconcile"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
)

// pair is a controller with two available pods, on n0 and n1.
func pair() *reconcile.Snapshot {
	s := snapshotOf(2)
	s.Pods = []reconcile.Pod{running(0, "n0", 5, 0), running(1, "n1", 5, 0)}
	return s
}

// condition returns one condition of a status; if the status has none, one that is not true.
func condition(st *rc.Status, t rc.ConditionType) (c rc.Condition) {
	if i := slices.IndexFunc(st.Conditions, func(c rc.Condition) bool { return c.Type == t }); i >= 0 {
		c = st.Conditions[i]
	}
	return c
}

// isTrue returns the conditions that are true.
func isTrue(st *rc.Status) (types []rc.ConditionType) {
	for _, c := range st.Conditions {
		if c.True {
			types = append(types, c.Type)
		}
	}
	return types
}

// The status tells in one sentence how far the controller is, and what it waits for. The sentence has only the parts
// that apply.
func TestAStatusReportsWhatItWaitsFor(t *testing.T) {
	t.Parallel()
	third := func(s *reconcile.Snapshot) *reconcile.Pod {
		s.Pods = append(s.Pods, running(2, "n2", 5, 0))
		return &s.Pods[2]
	}
	unwell := func(p *reconcile.Pod, message string) {
		p.Reality.State, p.Reality.Available, p.Reality.Message = pod.StateUnhealthy, false, message
	}
	for name, c := range map[string]struct {
		change func(*reconcile.Snapshot)
		reason string
		are    []rc.ConditionType
	}{
		"all is well": {
			func(*reconcile.Snapshot) {}, "2 of 2 replicas available", []rc.ConditionType{rc.Converged},
		},
		"a former copy was on a machine that is lost": {
			func(s *reconcile.Snapshot) { dead(s, "n3", true); s.Pods[0].Placement.Ghosts[0].MachineLost = true },
			"2 of 2 replicas available; nothing can confirm that copies have stopped on machines that are lost: n3",
			[]rc.ConditionType{rc.Converged},
		},
		"one is not well": {
			func(s *reconcile.Snapshot) { unwell(&s.Pods[1], "no answer") },
			"1 of 2 replicas available, 2 placed; waiting for main.1 on n1 (unhealthy: no answer)", nil,
		},
		"one is not well and reports no reason": {
			func(s *reconcile.Snapshot) { unwell(&s.Pods[1], "") },
			"1 of 2 replicas available, 2 placed; waiting for main.1 on n1 (unhealthy)", nil,
		},
		"none has started": {
			func(s *reconcile.Snapshot) { s.Pods[0].Reality, s.Pods[1].Reality = nil, nil },
			"0 of 2 replicas available, 2 placed; waiting for main.0 on n0 (nothing reported yet)", nil,
		},
		"one stops": {
			func(s *reconcile.Snapshot) { third(s).RunState = pod.Stopped },
			"2 of 2 replicas available, 2 placed, 1 stopping; n2 has not confirmed that main.2 stopped there", nil,
		},
		"one stops, another is not well": {
			func(s *reconcile.Snapshot) { third(s).RunState = pod.Stopped; unwell(&s.Pods[0], "") },
			"1 of 2 replicas available, 2 placed, 1 stopping; waiting for main.0 on n0 (unhealthy)", nil,
		},
		"a rollout has one to upgrade": {
			func(s *reconcile.Snapshot) {
				s.Rollout, s.Pods[1].Digest, s.Pods[1].Reality.Digest = "r1", "m0", "m0"
			},
			"2 of 2 replicas available, 2 placed, 1 with another manifest", nil,
		},
		"nothing can be placed": {
			func(s *reconcile.Snapshot) { s.Manifest, s.Pods = nil, s.Pods[:1] },
			"1 of 2 replicas available, 1 placed", nil,
		},
	} {
		s := pair()
		before := reconcile.Compute(pair()).Status // the controller had converged until now
		s.Previous = &before
		c.change(s)
		plan := reconcile.Compute(s)
		got := condition(&plan.Status, rc.Converged)
		if got.Reason != c.reason || !slices.Equal(isTrue(&plan.Status), c.are) ||
			len(plan.Changes)+len(plan.Adds) > 0 {
			t.Errorf("%s: %q, true are %v; changes %v, adds %v", name, got.Reason, isTrue(&plan.Status), plan.Changes,
				plan.Adds)
		}
		if len(c.are) > 0 && plan.Again != 0 {
			t.Errorf("%s: look again after %s, although there is nothing to wait for", name, plan.Again)
		}
	}
}

// Adopted pods are Regressed if they have another manifest than desired, or if there are too many pods. An operator
// does not have to look at other adopted pods.
func TestRegressedCountsAdoptedPodsThatAreNotDesired(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		pods, old int // found running, the first ones with another manifest
		reason    string
	}{
		"as many as desired":   {2, 0, ""},
		"too few":              {1, 0, ""},
		"too many":             {4, 0, "2 pods were found running"},
		"another manifest":     {2, 1, "1 pods were found running"},
		"too many, and others": {3, 2, "3 pods were found running"},
	} {
		s := snapshotOf(2)
		for i := range c.pods {
			p := running(i, fmt.Sprintf("n%d", i), 5, s.RC.Generation)
			if i < c.old {
				p.Digest, p.Reality.Digest = "m0", "m0"
			}
			s.Pods = append(s.Pods, p)
		}
		plan := reconcile.Compute(s)
		got := condition(&plan.Status, rc.Regressed)
		if got.True != (c.reason != "") || !strings.HasPrefix(got.Reason, c.reason) {
			t.Errorf("%s: %+v, want %q", name, got, c.reason)
		}
	}
}

// InsufficientNodes ends when all replicas have a node, or no more are desired.
func TestInsufficientNodesEndsWithTheLastReplica(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		placed          int
		disabled, short bool
	}{{1, false, true}, {2, false, false}, {1, true, false}} {
		s := pair()
		s.Pods, s.RC.Disabled = s.Pods[:c.placed], c.disabled
		s.Previous = &rc.Status{Conditions: []rc.Condition{{Type: rc.InsufficientNodes, True: true, Reason: "no room"}}}
		if plan := reconcile.Compute(s); plan.Status.Is(rc.InsufficientNodes) != c.short {
			t.Errorf("%d of 2 placed, disabled %t: %+v", c.placed, c.disabled, plan.Status.Conditions)
		}
	}
}

// A condition of a farm of another version is removed, because this version could never end it.
func TestUnknownConditionsAreRemoved(t *testing.T) {
	t.Parallel()
	s := pair()
	s.Previous = &rc.Status{
		Conditions: []rc.Condition{{Type: "OfTomorrow", True: true}, {Type: rc.BooksDiffer, True: true}},
	}
	if plan := reconcile.Compute(s); plan.Status.Is("OfTomorrow") || !plan.Status.Is(rc.BooksDiffer) ||
		len(s.Previous.Conditions) != 2 || s.Previous.Conditions[0].Type != "OfTomorrow" {
		t.Errorf("%+v of %+v", plan.Status.Conditions, s.Previous.Conditions)
	}
}

// A status shows a void request for ten minutes, and asks for a look when they are over.
func TestAVoidRequestIsShownForTenMinutes(t *testing.T) {
	t.Parallel()
	for after, again := range map[time.Duration]time.Duration{
		0: 10 * time.Minute, time.Minute: 9 * time.Minute, 10*time.Minute - 1: 1, 10 * time.Minute: 0, time.Hour: 0,
	} {
		s := pair()
		s.Previous = &rc.Status{
			Conditions: []rc.Condition{
				{Type: rc.RequestVoid, True: true, Reason: "r is void", Since: s.Now.Add(-after)},
			},
		}
		plan := reconcile.Compute(s)
		if plan.Status.Is(rc.RequestVoid) != (again > 0) || plan.Again != again {
			t.Errorf("after %s: %+v, look again after %s", after, plan.Status.Conditions, plan.Again)
		}
	}
}

// The last error names the first five errors, and the number of the others.
func TestTheLastErrorNamesTheFirstFive(t *testing.T) {
	t.Parallel()
	for errors, want := range map[int]string{
		5: "e0; e1; e2; e3; e4", 6: "e0; e1; e2; e3; e4; and 1 more",
		12: "e0; e1; e2; e3; e4; and 7 more",
	} {
		s := pair()
		for i := range errors {
			s.Errors = append(s.Errors, fmt.Sprintf("e%d", i))
		}
		if plan := reconcile.Compute(s); plan.Status.LastError != want {
			t.Errorf("%d errors: %q, want %q", errors, plan.Status.LastError, want)
		}
	}
}

// While people are alerted to a rollout, its trouble is a condition. The controller's work continues, and the plan is
// unobstructed.
func TestTroubleOfARolloutIsACondition(t *testing.T) {
	t.Parallel()
	s := pair()
	calm := reconcile.Compute(s)
	if len(condition(&calm.Status, rc.RolloutTrouble).Type) > 0 || !calm.Unobstructed() {
		t.Errorf("without trouble: %+v", calm.Status.Conditions)
	}
	s.RolloutTrouble = "it rolls back: " + strings.Repeat("x", rc.MaxReason)
	s.RolloutStuck = "no room"
	troubled := reconcile.Compute(s)
	got := condition(&troubled.Status, rc.RolloutTrouble)
	if !got.True || !got.Since.Equal(s.Now) || !strings.HasPrefix(got.Reason, "it rolls back: x") ||
		len(got.Reason) > rc.MaxReason {
		t.Errorf("%+v", got)
	}
	if c := condition(&troubled.Status, rc.RolloutStuck); !c.True || c.Reason != "no room" {
		t.Errorf("%+v", c)
	}
	if !troubled.Unobstructed() || !troubled.Status.Is(rc.Converged) || len(troubled.Changes) != len(calm.Changes) {
		t.Errorf("the plan is hampered: %+v, %+v", troubled.Status.Conditions, troubled.Changes)
	}
	s.Previous, s.Now = &troubled.Status, s.Now.Add(time.Minute)
	if again := reconcile.Compute(s); !condition(&again.Status, rc.RolloutTrouble).Since.Equal(got.Since) {
		t.Errorf("it began anew: %+v", again.Status.Conditions)
	}
	s.RolloutTrouble, s.RolloutStuck = "", ""
	over := reconcile.Compute(s)
	for _, of := range []rc.ConditionType{rc.RolloutTrouble, rc.RolloutStuck} {
		if c := condition(&over.Status, of); c.True || c.Reason != "" {
			t.Errorf("it lasts: %+v", c)
		}
	}
	s.RolloutTrouble, s.Breaker, s.RC.ReplicaGroups = "it has failed", "tripped", []rc.ReplicaGroup{{
		Role:  "main",
		Count: count(0),
	}}
	if hampered := reconcile.Compute(s); !hampered.Status.Is(rc.BreakerTripped) || hampered.Unobstructed() {
		t.Errorf("beside another condition: %+v", hampered.Status.Conditions)
	}
}
