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
		"nothing there":    {nil, nil, nil, []string{"a", "b"}},
		"all well":         {[]runtime.Status{status("a", runtime.Running), status("b", runtime.Backoff)}, nil, nil, nil},
		"one was stopped":  {[]runtime.Status{status("a", runtime.Stopped), status("b", runtime.Running)}, nil, []string{"a"}, []string{"a"}},
		"one is going":     {[]runtime.Status{status("a", runtime.Stopping), status("b", runtime.Running)}, []string{"a"}, []string{"a"}, []string{"a"}},
		"earlier version":  {[]runtime.Status{status("x", runtime.Running)}, []string{"x"}, []string{"x"}, []string{"a", "b"}},
		"earlier leftover": {[]runtime.Status{status("x", runtime.Stopped), status("a", runtime.Running), status("b", runtime.Starting)}, nil, []string{"x"}, nil},
	} {
		plan := Compare([]string{"a", "b"}, c.procs)
		if !slices.Equal(plan.Stop, c.stop) || !slices.Equal(plan.Remove, c.remove) || !slices.Equal(plan.Start, c.start) {
			t.Errorf("%s: %+v", name, plan)
		}
	}
}

// The id is all that is left of a process whose record cannot be read.
func TestPodOf(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("a", 63)
	for _, id := range []pod.Identity{{RCID: "rc1", Role: "main", Index: 3}, {RCID: long, Role: long, Index: 1 << 30}} {
		status := statusOf(install.SpecID(id, &install.Installed{Digest: strings.Repeat("0", 64), Revision: 7}, "main-a.b"), runtime.Unknown)
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
