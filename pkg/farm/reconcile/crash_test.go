package reconcile_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/rcfarm/rcfarm/pkg/farm/reconcile"
	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
)

// crash makes a pod crash-looping.
func crash(p *reconcile.Pod) {
	p.Reality.State, p.Reality.Available, p.Reality.Restarts = pod.StateCrashLooping, false, 3
	p.Reality.LastExit = &pod.Exit{Launchable: "web", Code: 3, At: time.Unix(1_700_000_000, 0)}
}

func reasonOf(plan *reconcile.Plan, t rc.ConditionType) string {
	for _, c := range plan.Status.Conditions {
		if c.Type == t && c.True {
			return c.Reason
		}
	}
	return ""
}

// Crash-looping pods are counted, and the first few are named with how they ended. Another restart does not change the
// text.
func TestCrashLoopsAreNamed(t *testing.T) {
	t.Parallel()
	s := snapshotOf(8)
	for i := range 8 {
		s.Pods = append(s.Pods, running(i, fmt.Sprintf("n%d", i%3), 5, 0))
		if i < 7 {
			crash(&s.Pods[i])
		}
	}
	s.Pods[0].RunState = pod.Stopped
	plan := reconcile.Compute(s)
	want := "6 pods end again and again soon after their start: main.1 on n1 (web ended with exit status 3), " +
		"main.2 on n2 (web ended with exit status 3), "
	if got := reasonOf(&plan, rc.CrashLooping); !strings.HasPrefix(got, want) ||
		!strings.HasSuffix(got, ", and 1 more") || plan.Status.Is(rc.Converged) {
		t.Errorf("%q, %+v", got, plan.Status)
	}
	for i := range 7 {
		s.Pods[i].Reality.Restarts++
		s.Pods[i].Reality.LastExit.At = s.Now
	}
	again := reconcile.Compute(s)
	if diff := cmp.Diff(plan.Status, again.Status); diff != "" {
		t.Error(diff)
	}
	for i := range 7 {
		s.Pods[i] = running(i, s.Pods[i].Node, 5, 0)
	}
	if again = reconcile.Compute(s); again.Status.Is(rc.CrashLooping) {
		t.Errorf("after the last: %+v", again.Status)
	}
}

// On a lost machine no pod is crash-looping.
func TestALostMachineHasNoCrashLoops(t *testing.T) {
	t.Parallel()
	s := snapshotOf(1)
	s.Pods = []reconcile.Pod{running(0, "n0", 5, 0)}
	crash(&s.Pods[0])
	dead(s, "n0", true)
	if plan := reconcile.Compute(s); plan.Status.Is(rc.CrashLooping) {
		t.Errorf("%+v", plan.Status)
	}
}

// If a process of a new version ends once, the upgrade halts until its pod is available, even if the process runs
// again. A crash loop halts the upgrade too.
func TestAnEndedProcessHaltsTheUpgrade(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(r *pod.Reality)
		halted bool
	}{
		"runs":                  {func(*pod.Reality) {}, false},
		"has ended":             {func(r *pod.Reality) { r.Restarts = 1 }, true},
		"of the version before": {func(r *pod.Reality) { r.Restarts, r.Digest = 1, "m0" }, false},
		"not heard of yet":      {func(r *pod.Reality) { r.Restarts, r.Revision = 1, 4 }, false},
		"crash-looping":         {func(r *pod.Reality) { r.State = pod.StateCrashLooping }, true},
	} {
		s := snapshotOf(2)
		s.Pods = []reconcile.Pod{running(0, "n0", 5, 0), running(1, "n1", 5, 0)}
		s.Pods[1].Digest, s.Pods[1].Reality.Digest = "m0", "m0"
		r := s.Pods[0].Reality
		s.Pods[0].ChangedAt, r.State, r.Available = s.Now, pod.StateRunning, false
		c.change(r)
		plan := reconcile.Compute(s)
		if plan.Status.Is(rc.Blocked) != c.halted || len(plan.Changes) > 0 {
			t.Errorf("%s: %+v, %v", name, plan.Status, plan.Changes)
		}
		r.State, r.Available, r.Digest, r.Revision = pod.StateReady, true, "m1", 5
		if len(reconcile.Compute(s).Changes) != 1 {
			t.Errorf("%s: the pod is available, and the upgrade does not go on", name)
		}
	}
}

// If the last pod of an upgrade fails, the controller is reported as blocked, too. If the pod was available before, or
// is new, the controller is not reported as blocked.
func TestAFailedLastPodOfAnUpgradeIsReported(t *testing.T) {
	t.Parallel()
	for _, switching := range []bool{true, false} {
		s := snapshotOf(1)
		s.Pods = []reconcile.Pod{running(0, "n0", 5, 0)}
		s.Pods[0].Switching = switching
		s.Pods[0].Reality.State, s.Pods[0].Reality.Available = pod.StateFailed, false
		if plan := reconcile.Compute(s); plan.Status.Is(rc.Blocked) != switching {
			t.Errorf("switching %t: %+v", switching, plan.Status)
		}
	}
}

// An upgrade without a spare pod waits for new pods, which may make it possible.
func TestAnUpgradeAtTheMinimumWaitsForNewPods(t *testing.T) {
	t.Parallel()
	for desired, blocked := range map[int]bool{2: true, 3: false} {
		s := snapshotOf(desired)
		least := 2
		s.RC.MinAvailable = &least
		s.Pods = []reconcile.Pod{running(0, "n0", 5, 0), running(1, "n1", 5, 0)}
		for i := range s.Pods {
			s.Pods[i].Digest, s.Pods[i].Reality.Digest = "m0", "m0"
		}
		if plan := reconcile.Compute(s); plan.Status.Is(rc.Blocked) != blocked {
			t.Errorf("%d desired: %+v", desired, plan.Status)
		}
	}
}

// The deadline begins at the earliest time at which min_ready can be over.
func TestTheDeadlineIncludesMinReady(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		ready *field.Duration
		again time.Duration
	}{
		"none":    {new(field.Duration), 20 * time.Second},
		"default": {nil, 30 * time.Second},
		"longer":  {func() *field.Duration { d := field.Duration(time.Minute); return &d }(), 80 * time.Second},
	} {
		s := snapshotOf(2)
		d := field.Duration(30 * time.Second)
		s.RC.ProgressDeadline, s.Manifest = &d, &manifest.Manifest{Version: 1, ID: "p", MinReady: c.ready}
		s.Pods = []reconcile.Pod{running(0, "n0", 5, 0), running(1, "n1", 5, 0)}
		s.Pods[0].ChangedAt, s.Pods[0].Reality = s.Now.Add(-10*time.Second), nil
		s.Pods[1].Digest = "m0"
		if plan := reconcile.Compute(s); plan.Status.Is(rc.Blocked) || plan.Again != c.again {
			t.Errorf("%s: %+v, again after %s, want %s", name, plan.Status.Conditions, plan.Again, c.again)
		}
		s.Now = s.Now.Add(c.again)
		if plan := reconcile.Compute(s); !plan.Status.Is(rc.Blocked) {
			t.Errorf("%s: not blocked at its time", name)
		}
	}
}
