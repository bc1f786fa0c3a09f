package preparer

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/runtime"
)

func procsIn(phases ...runtime.Phase) []runtime.Status {
	procs := make([]runtime.Status, len(phases))
	for i, phase := range phases {
		procs[i] = runtime.Status{Spec: runtime.Spec{ID: string(rune('a' + i)), Name: "web"}, Phase: phase, PID: i + 1, Restarts: 2}
	}
	return procs
}

func TestObserve(t *testing.T) {
	t.Parallel()
	rec := sampleRecord(0)
	upgrading := rec.accept(pod.Intent{Identity: ident(0), PodID: "web", Digest: strings.Repeat("cd", 32), State: pod.Running, Revision: 9})
	stopping := rec.accept(pod.Intent{Identity: ident(0), State: pod.Stopped, Revision: 9})
	fresh := Record{Version: RecordVersion, Intent: rec.Intent}
	up := procsIn(runtime.Running, runtime.Running)
	for name, c := range map[string]struct {
		o         observation
		state     pod.State
		available bool
		digest    string
		revision  int64
		message   string
	}{
		"accepted":        {observation{rec: fresh}, pod.StatePending, false, rec.Intent.Digest, 7, ""},
		"fetching":        {observation{rec: fresh, activity: activity{state: pod.StateFetching}}, pod.StateFetching, false, rec.Intent.Digest, 7, ""},
		"starting":        {observation{rec: rec, procs: procsIn(runtime.Running, runtime.Starting)}, pod.StateStarting, false, rec.Intent.Digest, 7, ""},
		"half there":      {observation{rec: rec, procs: procsIn(runtime.Running), missing: true}, pod.StateStarting, false, rec.Intent.Digest, 7, ""},
		"running":         {observation{rec: rec, procs: up}, pod.StateRunning, false, rec.Intent.Digest, 7, ""},
		"unhealthy":       {observation{rec: rec, procs: up, unhealthy: true}, pod.StateUnhealthy, false, rec.Intent.Digest, 7, "health check"},
		"available":       {observation{rec: rec, procs: up, available: true}, pod.StateReady, true, rec.Intent.Digest, 7, ""},
		"crashed":         {observation{rec: rec, procs: procsIn(runtime.Running, runtime.Backoff)}, pod.StateFailed, false, rec.Intent.Digest, 7, "started again"},
		"upgrade fetches": {observation{rec: upgrading, procs: up, available: true, activity: activity{state: pod.StateFetching}}, pod.StateFetching, true, rec.Intent.Digest, 9, ""},
		"upgrade fails":   {observation{rec: upgrading, procs: up, available: true, activity: activity{pod.StateFailed, "no such file"}}, pod.StateFailed, true, rec.Intent.Digest, 9, "no such file"},
		"orphan":          {observation{rec: rec, procs: up, available: true, standing: standing{verdict: Orphan}}, pod.StateOrphaned, true, rec.Intent.Digest, 7, "orphaned"},
		"crashed orphan":  {observation{rec: rec, procs: procsIn(runtime.Backoff), standing: standing{verdict: Orphan}}, pod.StateFailed, false, rec.Intent.Digest, 7, "orphaned"},
		"regressed":       {observation{rec: rec, procs: up, available: true, standing: standing{Regress, 3}}, pod.StateReady, true, rec.Intent.Digest, 7, "revision 3"},
		"stopping":        {observation{rec: stopping, procs: up, available: true}, pod.StateStopping, false, rec.Intent.Digest, 9, ""},
		"stopped":         {observation{rec: stopping.buried(time.Now())}, pod.StateStopped, false, "", 9, ""},
		"refused":         {observation{rec: stopping.buried(time.Now()), standing: standing{Refuse, 8}}, pod.StateStopped, false, "", 9, "refused to run revision 8"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := observe(c.o)
			if r.State != c.state || r.Available != c.available || r.Digest != c.digest || r.Revision != c.revision {
				t.Errorf("got %+v", r)
			}
			if !strings.Contains(r.Message, c.message) || (c.message == "") != (r.Message == "") {
				t.Errorf("message %q, want %q", r.Message, c.message)
			}
		})
	}
}

func TestReadiness(t *testing.T) {
	t.Parallel()
	now := time.Now()
	sec := func(n int) *field.Duration { d := field.Duration(time.Duration(n) * time.Second); return &d }
	spec := &manifest.Health{Interval: sec(2), Timeout: sec(1), MinReady: sec(3)}
	failing, passing := checkState{known: true}, checkState{known: true, passing: true}
	var r readiness
	is := func(what, procs string, h checkState, wantAvailable, wantUnhealthy bool) {
		t.Helper()
		available, unhealthy, _ := r.update(now, procs, h, spec)
		if available != wantAvailable || unhealthy != wantUnhealthy {
			t.Errorf("%s: available %v, unhealthy %v", what, available, unhealthy)
		}
	}
	is("started", "a:1", failing, false, false)
	now = now.Add(4 * time.Second)
	is("check has not had its time", "a:1", failing, false, false)
	now = now.Add(time.Second)
	is("check had its time", "a:1", failing, false, true)
	is("passes", "a:1", passing, false, false)
	now = now.Add(2 * time.Second)
	is("not for min_ready yet", "a:1", passing, false, false)
	is("fails in between", "a:1", failing, false, true)
	is("counts anew", "a:1", passing, false, false)
	now = now.Add(3 * time.Second)
	is("available", "a:1", passing, true, false)

	restarted := readiness{ready: r.ready}
	if available, _, _ := restarted.update(now, "a:1", passing, spec); !available {
		t.Error("a restarted preparer made the pod wait again")
	}
	restarted = readiness{ready: r.ready}
	if available, _, _ := restarted.update(now, "a:1", checkState{silent: true}, spec); !available {
		t.Error("an agent that does not answer a restarted preparer made the pod unavailable")
	}
	is("process ended", "", passing, false, false)
	is("new process, old check result", "a:2", passing, false, false)
	now = now.Add(5 * time.Second)
	is("check result is its own, min_ready begins", "a:2", passing, false, false)
	now = now.Add(3 * time.Second)
	is("available again", "a:2", passing, true, false)
	is("agent lost the service", "a:2", checkState{}, false, true)
	is("agent has it again", "a:2", passing, true, false)
}

func TestPlanProcs(t *testing.T) {
	t.Parallel()
	status := func(id string, phase runtime.Phase) runtime.Status {
		return runtime.Status{Spec: runtime.Spec{ID: id}, Phase: phase}
	}
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
		plan := planProcs([]string{"a", "b"}, c.procs)
		if !slices.Equal(plan.stop, c.stop) || !slices.Equal(plan.remove, c.remove) || !slices.Equal(plan.start, c.start) {
			t.Errorf("%s: %+v", name, plan)
		}
	}
}

func TestSpecIDsAreSafeAndNew(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("a", 63)
	id := pod.Identity{RCID: long, Role: long, Index: 1 << 30}
	one, other := specID(id, 1, strings.Repeat("0", 64), long), specID(id, 2, strings.Repeat("0", 64), long)
	if one == other || len(one) > maxSpecID {
		t.Errorf("%q and %q", one, other)
	}
}
