package runtimetest

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/runtime"
)

// policyTests are about what follows the end of a process.
func policyTests() []test {
	return []test{
		{"RestartAlways", testRestartAlways},
		{"RestartOnFailure", testRestartOnFailure},
		{"RestartNever", testRestartNever},
		{"RestartQuicklyAtFirst", testRestartQuicklyAtFirst},
		{"RestartBackoffOfSpec", testRestartBackoffOfSpec},
		{"ExitedStart", testExitedStart},
		{"ExitedStop", testExitedStop},
		{"ExitedRemove", testExitedRemove},
		{"ExitedEndsGrandchildren", testExitedEndsGrandchildren},
		{"ExitedSupervisorDies", testExitedSupervisorDies},
		{"SupervisorDiesExitOfNever", testSupervisorDiesExitOfNever},
		{"SupervisorDiesExitOfOnFailure", testSupervisorDiesExitOfOnFailure},
	}
}

// policy returns the spec of a script that writes down each of its runs.
func (b *bench) policy(id string, policy runtime.RestartPolicy, script string) runtime.Spec {
	spec := b.script(id, `echo $$ >> pid; `+script)
	spec.Restart.Policy = policy
	return spec
}

func exited(st runtime.Status) bool { return st.Phase == runtime.Exited }

// wantExited fails the test unless the process has exited so, and is not started again while another one is.
func (b *bench) wantExited(t *testing.T, st runtime.Status, code, runs int) {
	t.Helper()
	if e := st.LastExit; e == nil || e.Code != code || e.Unknown || e.Signal != "" {
		t.Errorf("last exit %+v, want status %d", e, code)
	}
	if st.PID != 0 || st.Restarts != runs-1 {
		t.Errorf("pid %d after %d restarts; want none after %d", st.PID, st.Restarts, runs-1)
	}
	b.wantRuns(t, st.Spec.ID, runs)
}

// wantRuns fails the test unless the process has run so often, also after the runtime has been at work on something else.
func (b *bench) wantRuns(t *testing.T, id string, runs int) {
	t.Helper()
	other := b.script(fmt.Sprintf("%s-other-%d", id, runs), `exec sleep 1000`)
	b.start(t, other)
	b.await(t, other.ID, "running", func(st runtime.Status) bool { return st.Phase == runtime.Running })
	b.stop(t, other.ID)
	if err := b.Runtime.Remove(t.Context(), other.ID); err != nil {
		t.Error(err)
	}
	if got := b.pids(t, "pid"); len(got) != runs {
		t.Errorf("runs %v, want %d", got, runs)
	}
}

func testRestartAlways(t *testing.T, b *bench) {
	b.start(t, b.policy("p", runtime.Always, `exit 0`))
	b.awaitPIDs(t, 3)
	st := b.await(t, "p", "restarted", func(st runtime.Status) bool { return st.Restarts >= 2 && st.LastExit != nil })
	if st.LastExit.Code != 0 || st.Phase == runtime.Exited {
		t.Errorf("phase %s, last exit %+v; want restarts after exit status 0", st.Phase, st.LastExit)
	}
}

func testRestartOnFailure(t *testing.T, b *bench) {
	b.start(t, b.policy("p", runtime.OnFailure, `case $(wc -l < pid) in 1) exit 3;; 2) kill -USR1 $$;; esac; exit 0`))
	b.wantExited(t, b.await(t, "p", "exited", exited), 0, 3)
}

func testRestartNever(t *testing.T, b *bench) {
	b.start(t, b.policy("p", runtime.Never, `exit 3`))
	b.wantExited(t, b.await(t, "p", "exited", exited), 3, 1)
}

// The first restart comes within a second. On a busy machine one of several must.
func testRestartQuicklyAtFirst(t *testing.T, b *bench) {
	const limit = time.Second
	var took []time.Duration
	for i := range 8 {
		id := fmt.Sprintf("p%d", i)
		b.start(t, b.script(id, `[ -e `+id+` ] && exec sleep 1000; : > `+id+`; exit 1`))
		st := b.await(t, id, "restarted", func(st runtime.Status) bool {
			return st.Phase == runtime.Running && st.Restarts == 1 && st.LastExit != nil
		})
		last := st.StartedAt.Sub(st.LastExit.At)
		if last <= limit {
			return
		}
		took = append(took, last)
	}
	t.Errorf("first restarts came after %s, want at most %s", took, limit)
}

// Only lower bounds of pauses are sure on a busy machine.
func testRestartBackoffOfSpec(t *testing.T, b *bench) {
	spec := b.script("p", `date +%s%N >> times; exit 1`)
	spec.Restart = runtime.Restart{Min: 300 * time.Millisecond, Max: 500 * time.Millisecond}
	b.start(t, spec)
	Eventually(t, "four runs", func() bool { return strings.Count(b.read(t, "times"), "\n") >= 4 })
	var times []time.Time
	for line := range strings.FieldsSeq(b.read(t, "times")) {
		ns, err := strconv.ParseInt(line, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		times = append(times, time.Unix(0, ns))
	}
	for i, least := range []time.Duration{300, 500, 500} {
		if gap := times[i+1].Sub(times[i]); gap < least*time.Millisecond {
			t.Errorf("restart %d came after %s, want at least %dms", i+1, gap, least)
		}
	}
}

func testExitedStart(t *testing.T, b *bench) {
	spec := b.policy("p", runtime.Never, `exit 3`)
	b.start(t, spec)
	b.await(t, "p", "exited", exited)
	b.start(t, spec)
	other := spec
	other.Revision++
	if err := b.Runtime.Start(t.Context(), other); !errors.Is(err, runtime.ErrExists) {
		t.Errorf("another spec: %v, want ErrExists", err)
	}
	st, _ := b.status(t)
	if st.Phase != runtime.Exited {
		t.Errorf("phase %s after the same spec again, want exited", st.Phase)
	}
	b.wantExited(t, st, 3, 1)
}

// A stop is what makes an exited process startable again.
func testExitedStop(t *testing.T, b *bench) {
	spec := b.policy("p", runtime.Never, `exit 3`)
	b.start(t, spec)
	b.await(t, "p", "exited", exited)
	for range 2 {
		b.stop(t, "p")
		if st, _ := b.status(t); st.Phase != runtime.Stopped || st.PID != 0 || st.LastExit == nil || st.LastExit.Code != 3 {
			t.Errorf("status %+v (exit %+v), want stopped after exit status 3", st, st.LastExit)
		}
	}
	b.wantRuns(t, "p", 1)
	b.start(t, spec)
	b.awaitPIDs(t, 2)
	st := b.await(t, "p", "exited again", exited)
	if st.Restarts != 0 {
		t.Errorf("%d restarts, want a new first run", st.Restarts)
	}
	b.wantRuns(t, "p", 2)
}

func testExitedRemove(t *testing.T, b *bench) {
	spec := b.policy("p", runtime.Never, `exit 3`)
	b.start(t, spec)
	b.await(t, "p", "exited", exited)
	for range 2 {
		if err := b.Runtime.Remove(t.Context(), "p"); err != nil {
			t.Errorf("remove: %v", err)
		}
	}
	if st, ok := b.status(t); ok {
		t.Errorf("a removed process is still listed: %+v", st)
	}
	spec.Revision++
	b.start(t, spec)
	b.awaitPIDs(t, 2)
	b.await(t, "p", "exited again", exited)
}

func testExitedEndsGrandchildren(t *testing.T, b *bench) {
	spec := b.script("p", `: > pids;`+family+`exit 0`)
	spec.Restart.Policy = runtime.OnFailure
	b.start(t, spec)
	b.await(t, "p", "exited", exited)
	wantGone(t, b.pids(t, "pids")...)
}

func testExitedSupervisorDies(t *testing.T, b *bench) {
	spec := b.policy("p", runtime.OnFailure, `exit 0`)
	b.start(t, spec)
	before := b.await(t, "p", "exited", exited)
	b.KillSupervisor(t)
	b.start(t, spec)
	st, _ := b.status(t)
	if st.Phase != runtime.Exited || st.LastExit == nil || !st.LastExit.At.Equal(before.LastExit.At) {
		t.Errorf("status %+v (exit %+v), want as before: %+v", st, st.LastExit, before.LastExit)
	}
	b.wantExited(t, st, 0, 1)
	b.stop(t, "p")
	if st, _ := b.status(t); st.Phase != runtime.Stopped {
		t.Errorf("phase %s after a stop, want stopped", st.Phase)
	}
}

// A run that ended in a way that nobody was told of was still the one run that never allows.
func testSupervisorDiesExitOfNever(t *testing.T, b *bench) {
	for _, id := range []string{"seen", "missed"} {
		spec := b.policy(id, runtime.Never, `: > ready-`+id+`; exec sleep 1000`)
		b.start(t, spec)
		Eventually(t, id+" is ready", func() bool { return b.exists("ready-" + id) })
		first := b.await(t, id, "running", func(st runtime.Status) bool { return st.Phase == runtime.Running })
		b.KillSupervisor(t)
		if id == "seen" {
			b.await(t, id, "taken over", func(st runtime.Status) bool { return st.PID == first.PID })
		}
		kill(t, first.PID)
		st := b.await(t, id, "exited", exited)
		if e := st.LastExit; e == nil || !e.Unknown || st.PID != 0 {
			t.Errorf("%s: pid %d, last exit %+v; want one that nobody was told of", id, st.PID, e)
		}
	}
	b.wantRuns(t, "p", 2)
}

// For a successor that was not told how a process ended, it failed.
func testSupervisorDiesExitOfOnFailure(t *testing.T, b *bench) {
	spec := b.policy("p", runtime.OnFailure, `: > ready; exec sleep 1000`)
	first := b.startReady(t, spec)
	b.KillSupervisor(t)
	kill(t, first.PID)
	b.awaitRestart(t, "p", first.PID)
	if pids := b.awaitPIDs(t, 2); slices.Contains(pids[1:], first.PID) {
		t.Errorf("runs %v, want another pid", pids)
	}
}
