package runtimetest

import (
	"strings"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/runtime"
)

// stoppingTests are about being asked to end.
func stoppingTests() []test {
	return []test{
		{"StopWithinGrace", testStopWithinGrace},
		{"StopKillsAfterGrace", testStopKillsAfterGrace},
		{"StopSignal", testStopSignal},
		{"StopGivesLeftoversTheGrace", testStopGivesLeftoversTheGrace},
		{"StopEndsGrandchildren", testStopEndsGrandchildren},
		{"StopDuringBackoff", testStopDuringBackoff},
		{"StopUnknown", testStopUnknown},
		{"CrashEndsGrandchildren", testCrashEndsGrandchildren},
	}
}

func testStopWithinGrace(t *testing.T, b *bench) {
	st := b.startReady(t, b.script("p", `trap 'echo bye; exit 0' TERM; : > ready; while :; do sleep 0.01; done`))
	b.stop(t, "p")
	wantGone(t, st.PID)
	if log := b.read(t, "p.log"); !strings.HasSuffix(log, "bye\n") {
		t.Errorf("log %q, want the farewell", log)
	}
	got, _ := b.status(t)
	if got.Phase != runtime.Stopped || got.PID != 0 || got.LastExit == nil || got.LastExit.Code != 0 {
		t.Errorf("status %+v (exit %+v), want stopped with exit status 0", got, got.LastExit)
	}
	b.stop(t, "p") // again: nothing to do
}

func testStopKillsAfterGrace(t *testing.T, b *bench) {
	spec := b.script("p", `trap '' TERM; : > ready; while :; do sleep 0.01; done`)
	spec.StopGrace = 300 * time.Millisecond
	st := b.startReady(t, spec)
	began := time.Now()
	b.stop(t, "p")
	if took := time.Since(began); took < spec.StopGrace {
		t.Errorf("stopped after %s, before its grace of %s", took, spec.StopGrace)
	}
	wantGone(t, st.PID)
	got, _ := b.status(t)
	if got.Phase != runtime.Stopped || got.LastExit == nil || got.LastExit.Signal != "SIGKILL" {
		t.Errorf("status %+v (exit %+v), want stopped by SIGKILL", got, got.LastExit)
	}
}

// leaderGrace is spent whole where somebody ignores the stop. A leader that does not needs some of it on a busy machine.
const leaderGrace = 4 * time.Second

func testStopSignal(t *testing.T, b *bench) {
	spec := b.script("p", `trap 'echo term; exit 1' TERM; trap 'echo int; exit 0' INT; : > ready; while :; do sleep 0.01; done`)
	spec.StopSignal = "SIGINT"
	b.startReady(t, spec)
	b.KillSupervisor(t) // a successor knows it too
	b.stop(t, "p")
	if log := b.read(t, "p.log"); log != "int\n" {
		t.Errorf("log %q, want the answer to SIGINT alone", log)
	}
}

// Grandchildren in the group of the leader, and one in a group of its own, which job control makes.
const family = `
sh -c 'trap "" TERM; echo $$ >> pids; while :; do sleep 0.01; done' &
sh -c 'echo $$ >> pids; exec sleep 1000' &
bash -c 'set -m; sh -c "trap \"\" TERM; echo \$\$ >> pids; while :; do sleep 0.01; done" & wait' &
while [ $(wc -l < pids) -lt 3 ]; do sleep 0.01; done
: > ready
`

func testStopEndsGrandchildren(t *testing.T, b *bench) {
	spec := b.script("p", `: > pids; trap 'exit 0' TERM;`+family+`while :; do sleep 0.01; done`)
	spec.StopGrace = leaderGrace
	st := b.startReady(t, spec)
	b.stop(t, "p")
	wantGone(t, append(b.pids(t, "pids"), st.PID)...)
	got, _ := b.status(t)
	if got.LastExit == nil || got.LastExit.Code != 0 {
		t.Errorf("last exit %+v, want the leader's own", got.LastExit)
	}
}

// A leader that ends at once does not take the grace away from those that still work.
func testStopGivesLeftoversTheGrace(t *testing.T, b *bench) {
	b.startReady(t, b.script("p", `
sh -c 'trap "sleep 0.3; echo drained > drained; exit 0" TERM; : > ready; while :; do sleep 0.01; done' &
trap 'exit 0' TERM
while :; do sleep 0.01; done`))
	b.stop(t, "p")
	if !b.exists("drained") {
		t.Error("a grandchild was killed within the grace")
	}
}

func testStopDuringBackoff(t *testing.T, b *bench) {
	b.start(t, b.script("p", `echo $$ >> pid; exit 1`))
	b.awaitPIDs(t, 3)
	b.stop(t, "p")
	runs := len(b.pids(t, "pid"))
	if st, _ := b.status(t); st.Phase != runtime.Stopped || st.PID != 0 {
		t.Errorf("phase %s, pid %d; want stopped", st.Phase, st.PID)
	}
	// Another process starting shows that the runtime has been at work since.
	b.startReady(t, b.script("other", `: > ready; exec sleep 1000`))
	if now := len(b.pids(t, "pid")); now != runs {
		t.Errorf("%d runs after the stop", now-runs)
	}
}

func testStopUnknown(t *testing.T, b *bench) {
	b.stop(t, "nobody")
	if err := b.Runtime.Remove(t.Context(), "nobody"); err != nil {
		t.Errorf("remove: %v", err)
	}
}

func testCrashEndsGrandchildren(t *testing.T, b *bench) {
	b.startReady(t, b.script("p", `
[ -e second ] && exec sleep 1000
: > second; : > pids;`+family+`exit 1`))
	b.await(t, "p", "restarted", func(st runtime.Status) bool { return st.Restarts == 1 && st.Phase == runtime.Running })
	wantGone(t, b.pids(t, "pids")...)
}
