package supervise

import (
	"slices"
	"strings"
	"testing"

	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/preparer/install"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime"
)

func statusOf(id string, phase runtime.Phase) runtime.Status {
	return runtime.Status{Spec: runtime.Spec{Process: runtime.Process{ID: id}}, State: runtime.State{Phase: phase}}
}

func TestPlanProcs(t *testing.T) {
	t.Parallel()
	status := statusOf
	for name, c := range map[string]struct {
		procs               []runtime.Status
		stop, remove, start []string
	}{
		"nothing there": {nil, nil, nil, []string{"a", "b"}},
		"all well": {
			[]runtime.Status{status("a", runtime.Running), status("b", runtime.Backoff)},
			nil, nil,
			nil,
		},
		"one was stopped": {
			[]runtime.Status{status("a", runtime.Stopped), status("b", runtime.Running)},
			nil,
			[]string{"a"},
			[]string{"a"},
		},
		"one is going": {
			[]runtime.Status{status("a", runtime.Stopping), status("b", runtime.Running)},
			[]string{"a"},
			[]string{"a"},
			[]string{"a"},
		},
		"earlier version": {
			[]runtime.Status{status("x", runtime.Running)},
			[]string{"x"},
			[]string{"x"},
			[]string{"a", "b"},
		},
		"earlier leftover": {[]runtime.Status{
			status("x", runtime.Stopped), status("a", runtime.Running),
			status("b", runtime.Starting),
		}, nil, []string{"x"}, nil},
	} {
		plan := Compare([]string{"a", "b"}, c.procs)
		if !slices.Equal(plan.Stop, c.stop) || !slices.Equal(plan.Remove, c.remove) ||
			!slices.Equal(plan.Start, c.start) {
			t.Errorf("%s: %+v", name, plan)
		}
	}
}

// Without a readable record, only a process's id shows its pod.
func TestPodOf(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("a", 63)
	for _, id := range []pod.Identity{{RCID: "rc1", Role: "main", Index: 3}, {RCID: long, Role: long, Index: 1 << 30}} {
		status := statusOf(install.SpecID(id, &install.Installed{Digest: strings.Repeat("0", 64), Revision: 7},
			"main-a.b"), runtime.Unknown)
		if got, ok := PodOf(&status); !ok || got != id {
			t.Errorf("%s: %v, %t", status.Spec.ID, got, ok)
		}
	}
	for _, id := range []string{"", "web", "rc.main.x.web", "rc.main.01.web", "rc.main.0"} {
		status := statusOf(id, runtime.Unknown)
		if got, ok := PodOf(&status); ok {
			t.Errorf("%q: %v", id, got)
		}
	}
	known := statusOf("x", runtime.Running)
	known.Spec.Pod = pod.Identity{RCID: "rc1", Role: "main", Index: 1}
	if got, ok := PodOf(&known); !ok || got != (pod.Identity{RCID: "rc1", Role: "main", Index: 1}) {
		t.Errorf("a process that is known: %v, %t", got, ok)
	}
}

// Limits can change without a restart only if all processes run or have ended with success. Requests are made only for
// processes with other limits.
func TestCompareLimits(t *testing.T) {
	t.Parallel()
	status := func(id string, phase runtime.Phase, change func(*runtime.Status)) runtime.Status {
		s := statusOf(id, phase)
		s.Spec.Isolation = &runtime.Isolation{CPU: 500, Memory: 64, PIDs: 10}
		if change != nil {
			change(&s)
		}
		return s
	}
	a, b := runtime.LimitRequest{ID: "a", CPU: 500, Memory: 64}, runtime.LimitRequest{ID: "b", CPU: 500, Memory: 64}
	less, more := runtime.LimitRequest{ID: "a", CPU: 100, Memory: 64}, runtime.LimitRequest{
		ID:  "b",
		CPU: 500, Memory: 128,
	}
	ended := func(code int) func(*runtime.Status) {
		return func(s *runtime.Status) { s.LastExit = &pod.Exit{Code: code} }
	}
	runs := status("a", runtime.Running, nil)
	for name, c := range map[string]struct {
		wanted []runtime.LimitRequest
		procs  []runtime.Status
		asks   []runtime.LimitRequest
		live   bool
	}{
		"as they are": {
			[]runtime.LimitRequest{a, b},
			[]runtime.Status{runs, status("b", runtime.Running, nil)},
			nil, true,
		},
		"one has others": {
			[]runtime.LimitRequest{a, more},
			[]runtime.Status{runs, status("b", runtime.Running, nil)},
			[]runtime.LimitRequest{more},
			true,
		},
		"both have": {
			[]runtime.LimitRequest{less, more},
			[]runtime.Status{runs, status("b", runtime.Running, nil)},
			[]runtime.LimitRequest{less, more},
			true,
		},
		"one is not there": {
			[]runtime.LimitRequest{less, more},
			[]runtime.Status{runs},
			[]runtime.LimitRequest{less},
			false,
		},
		"one waits": {
			[]runtime.LimitRequest{a, more},
			[]runtime.Status{runs, status("b", runtime.Backoff, nil)},
			[]runtime.LimitRequest{more},
			false,
		},
		"one crashes": {
			[]runtime.LimitRequest{a, b},
			[]runtime.Status{
				runs,
				status("b", runtime.Running, func(s *runtime.Status) { s.ShortRuns = pod.CrashLoop }),
			},
			nil, false,
		},
		"one has done it": {
			[]runtime.LimitRequest{a, b},
			[]runtime.Status{runs, status("b", runtime.Exited, ended(0))},
			nil, true,
		},
		"one has failed": {
			[]runtime.LimitRequest{a, b},
			[]runtime.Status{runs, status("b", runtime.Exited, ended(1))},
			nil, false,
		},
		"all have done it": {
			[]runtime.LimitRequest{b},
			[]runtime.Status{status("b", runtime.Exited, ended(0))},
			nil, true,
		},
		"unknown": {
			[]runtime.LimitRequest{more},
			[]runtime.Status{status("b", runtime.Unknown, nil)},
			nil, false,
		},
		"not isolated": {
			[]runtime.LimitRequest{less},
			[]runtime.Status{status("a", runtime.Running,
				func(s *runtime.Status) { s.Spec.Isolation = nil })},
			nil, false,
		},
		"started without": {
			[]runtime.LimitRequest{less},
			[]runtime.Status{status("a", runtime.Running,
				func(s *runtime.Status) { s.Spec.Isolation = &runtime.Isolation{} })},
			nil, false,
		},
		"another version": {
			[]runtime.LimitRequest{a},
			[]runtime.Status{runs, status("x", runtime.Running, nil)},
			nil, true,
		},
		"node has no limits": {nil, []runtime.Status{runs}, nil, false},
	} {
		asks, live := CompareLimits(c.wanted, c.procs)
		if !slices.Equal(asks, c.asks) || live != c.live {
			t.Errorf("%s: %+v, %t; want %+v, %t", name, asks, live, c.asks, c.live)
		}
	}
}
