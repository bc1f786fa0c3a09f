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

// pair is a controller of two pods that are as they should be, on n0 and n1.
func pair() *reconcile.Snapshot {
	s := snapshotOf(2)
	s.Pods = []reconcile.Pod{running(0, "n0", 5, 0), running(1, "n1", 5, 0)}
	return s
}

// condition returns what a status says of one condition; none is one that is not true.
func condition(st *rc.Status, t rc.ConditionType) (c rc.Condition) {
	if i := slices.IndexFunc(st.Conditions, func(c rc.Condition) bool { return c.Type == t }); i >= 0 {
		c = st.Conditions[i]
	}
	return c
}

// isTrue returns which conditions are.
func isTrue(st *rc.Status) (types []rc.ConditionType) {
	for _, c := range st.Conditions {
		if c.True {
			types = append(types, c.Type)
		}
	}
	return types
}

// A status says in one sentence how far the controller is, and what it waits for: each part of the sentence only where there is such.
func TestAStatusSaysWhatIsWaitedFor(t *testing.T) {
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
		says   string
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
		"one is not well and says nothing": {
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
		before := reconcile.Compute(pair()).Status // all was well until now
		s.Previous = &before
		c.change(s)
		plan := reconcile.Compute(s)
		got := condition(&plan.Status, rc.Converged)
		if got.Reason != c.says || !slices.Equal(isTrue(&plan.Status), c.are) || len(plan.Changes)+len(plan.Adds) > 0 {
			t.Errorf("%s: %q, true are %v; changes %v, adds %v", name, got.Reason, isTrue(&plan.Status), plan.Changes, plan.Adds)
		}
		if len(c.are) > 0 && plan.Again != 0 {
			t.Errorf("%s: looked at again after %s, though there is nothing to wait for", name, plan.Again)
		}
	}
}

// Pods that were found running are Regressed where they are not what is desired: of another manifest, or too many. Others are nothing
// that an operator must look at.
func TestRegressedCountsWhatIsNotDesired(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		pods, old int // found running, the first ones with another manifest
		says      string
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
		if got.True != (c.says != "") || !strings.HasPrefix(got.Reason, c.says) {
			t.Errorf("%s: %+v, want %q", name, got, c.says)
		}
	}
}

// That nodes are too few is so until every replica has one, or none is wanted any more.
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

// What a farm of another version has set goes, since nobody here could end it.
func TestUnknownConditionsGo(t *testing.T) {
	t.Parallel()
	s := pair()
	s.Previous = &rc.Status{Conditions: []rc.Condition{{Type: "OfTomorrow", True: true}, {Type: rc.BooksDiffer, True: true}}}
	if plan := reconcile.Compute(s); plan.Status.Is("OfTomorrow") || !plan.Status.Is(rc.BooksDiffer) || len(s.Previous.Conditions) != 2 || s.Previous.Conditions[0].Type != "OfTomorrow" {
		t.Errorf("%+v of %+v", plan.Status.Conditions, s.Previous.Conditions)
	}
}

// A status tells for ten minutes that a request was void, and asks for a look when they are over.
func TestAVoidRequestIsToldOfForTenMinutes(t *testing.T) {
	t.Parallel()
	for after, again := range map[time.Duration]time.Duration{
		0: 10 * time.Minute, time.Minute: 9 * time.Minute, 10*time.Minute - 1: 1, 10 * time.Minute: 0, time.Hour: 0,
	} {
		s := pair()
		s.Previous = &rc.Status{Conditions: []rc.Condition{{Type: rc.RequestVoid, True: true, Reason: "r is void", Since: s.Now.Add(-after)}}}
		plan := reconcile.Compute(s)
		if plan.Status.Is(rc.RequestVoid) != (again > 0) || plan.Again != again {
			t.Errorf("after %s: %+v, looked at again after %s", after, plan.Status.Conditions, plan.Again)
		}
	}
}

// The last error names the first five things that are wrong, and says how many more there are.
func TestTheLastErrorNamesTheFirstFive(t *testing.T) {
	t.Parallel()
	for errors, want := range map[int]string{5: "e0; e1; e2; e3; e4", 6: "e0; e1; e2; e3; e4; and 1 more", 12: "e0; e1; e2; e3; e4; and 7 more"} {
		s := pair()
		for i := range errors {
			s.Errors = append(s.Errors, fmt.Sprintf("e%d", i))
		}
		if plan := reconcile.Compute(s); plan.Status.LastError != want {
			t.Errorf("%d errors: %q, want %q", errors, plan.Status.LastError, want)
		}
	}
}

// What people are alerted to about a rollout is a condition while it lasts. It keeps the controller from nothing, and
// is no reason to take the plan for hampered.
func TestTroubleOfARollout(t *testing.T) {
	t.Parallel()
	s := pair()
	calm := reconcile.Compute(s)
	if len(condition(&calm.Status, rc.RolloutTrouble).Type) > 0 || !calm.Unhampered() {
		t.Errorf("without trouble: %+v", calm.Status.Conditions)
	}
	s.RolloutTrouble = "it rolls back: " + strings.Repeat("x", rc.MaxReason)
	s.RolloutStuck = "no room"
	told := reconcile.Compute(s)
	got := condition(&told.Status, rc.RolloutTrouble)
	if !got.True || !got.Since.Equal(s.Now) || !strings.HasPrefix(got.Reason, "it rolls back: x") ||
		len(got.Reason) > rc.MaxReason {
		t.Errorf("%+v", got)
	}
	if c := condition(&told.Status, rc.RolloutStuck); !c.True || c.Reason != "no room" {
		t.Errorf("%+v", c)
	}
	if !told.Unhampered() || !told.Status.Is(rc.Converged) || len(told.Changes) != len(calm.Changes) {
		t.Errorf("it hampers: %+v, %+v", told.Status.Conditions, told.Changes)
	}
	s.Previous, s.Now = &told.Status, s.Now.Add(time.Minute)
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
	if hampered := reconcile.Compute(s); !hampered.Status.Is(rc.BreakerTripped) || hampered.Unhampered() {
		t.Errorf("beside another condition: %+v", hampered.Status.Conditions)
	}
}
