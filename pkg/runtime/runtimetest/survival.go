package runtimetest

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/runtime"
)

// survivalTests are about clients and supervisors that die.
func survivalTests() []test {
	return []test{
		{"SecondClient", testSecondClient},
		{"ClientDies", testClientDies},
		{"SupervisorDies", testSupervisorDies},
		{"SupervisorDiesStopAdopted", testSupervisorDiesStopAdopted},
		{"SupervisorDiesExitOfAdopted", testSupervisorDiesExitOfAdopted},
		{"SupervisorDiesExitMissed", testSupervisorDiesExitMissed},
		{"SupervisorDiesDuringStop", testSupervisorDiesDuringStop},
		{"SupervisorDiesStoppedStays", testSupervisorDiesStoppedStays},
	}
}

func testSecondClient(t *testing.T, b *bench) {
	first := b.startReady(t, b.script("p", idle))
	b.Runtime = b.Reopen(t)
	if st, _ := b.status(t); st.PID != first.PID || st.Phase != runtime.Running {
		t.Errorf("second client sees phase %s, pid %d; want running, pid %d", st.Phase, st.PID, first.PID)
	}
	b.stop(t, "p")
	wantGone(t, first.PID)
}

func testClientDies(t *testing.T, b *bench) {
	spec := b.script("p", idle)
	b.StartFromDyingClient(t, spec)
	st := b.await(t, "p", "running", func(st runtime.Status) bool { return st.Phase == runtime.Running })
	Eventually(t, "the script has begun", func() bool { return b.exists("ready") })
	b.start(t, spec)
	if pids := b.pids(t, "pid"); !slices.Equal(pids, []int{st.PID}) || !Alive(st.PID) {
		t.Errorf("pids %v, want only %d, alive", pids, st.PID)
	}
}

func testSupervisorDies(t *testing.T, b *bench) {
	spec := b.script("p", idle)
	first := b.startReady(t, spec)
	_, cursor, err := b.Runtime.Watch(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	b.KillSupervisor(t)
	if !Alive(first.PID) {
		t.Fatal("the process died with its supervisor")
	}
	// The cursor comes from the dead supervisor: its successor must answer, not wait for a change.
	list, _, err := b.Runtime.Watch(t.Context(), cursor)
	if err != nil || len(list) != 1 {
		t.Fatalf("watch with an old cursor: %v, %v", list, err)
	}
	if st := list[0]; st.PID != first.PID || st.Phase != runtime.Running || st.Restarts != 0 || !st.StartedAt.Equal(first.StartedAt) {
		t.Errorf("taken over as %+v, want the run of pid %d", st, first.PID)
	}
	b.start(t, spec)
	if pids := b.pids(t, "pid"); len(pids) != 1 {
		t.Errorf("runs %v, want one", pids)
	}
}

func testSupervisorDiesStopAdopted(t *testing.T, b *bench) {
	spec := b.script("p", `: > pids; trap 'echo bye; exit 0' TERM;`+family+`while :; do sleep 0.01; done`)
	spec.StopGrace = leaderGrace
	st := b.startReady(t, spec)
	b.KillSupervisor(t)
	b.stop(t, "p")
	wantGone(t, append(b.pids(t, "pids"), st.PID)...)
	if log := b.read(t, "p.log"); !strings.HasSuffix(log, "bye\n") {
		t.Errorf("log %q, want the farewell", log)
	}
	if got, _ := b.status(t); got.Phase != runtime.Stopped || got.LastExit == nil || !got.LastExit.Unknown {
		t.Errorf("status %+v, want stopped with an exit that nobody was told", got)
	}
}

func testSupervisorDiesExitOfAdopted(t *testing.T, b *bench) {
	first := b.startReady(t, b.script("p", idle))
	b.KillSupervisor(t)
	b.await(t, "p", "running", func(st runtime.Status) bool { return st.Phase == runtime.Running && st.PID == first.PID })
	kill(t, first.PID)
	b.awaitRestart(t, "p", first.PID)
}

func testSupervisorDiesExitMissed(t *testing.T, b *bench) {
	first := b.startReady(t, b.script("p", `
echo $$ >> pid
[ -e second ] && exec sleep 1000
: > second; : > pids;`+family+`while :; do sleep 0.01; done`))
	left := b.pids(t, "pids")
	b.KillSupervisor(t)
	kill(t, first.PID)
	b.awaitRestart(t, "p", first.PID)
	wantGone(t, left...)
	if pids := b.awaitPIDs(t, 2); len(pids) != 2 {
		t.Errorf("runs %v, want two", pids)
	}
}

func (b *bench) awaitRestart(t *testing.T, id string, was int) {
	t.Helper()
	st := b.await(t, id, "restarted", func(st runtime.Status) bool { return st.Phase == runtime.Running && st.PID != was })
	if e := st.LastExit; e == nil || !e.Unknown || e.Code != -1 || e.Signal != "" {
		t.Errorf("last exit %+v, want unknown with code -1", e)
	}
	if st.Restarts != 1 {
		t.Errorf("%d restarts, want 1", st.Restarts)
	}
}

// A stop that was asked for is carried out, also when whoever asked and whoever was asked are both gone.
func testSupervisorDiesDuringStop(t *testing.T, b *bench) {
	spec := b.script("p", `trap ': > asked' TERM; : > ready; while :; do sleep 0.01; done`)
	spec.StopGrace = time.Second
	st := b.startReady(t, spec)
	other := b.Reopen(t)
	stopped := make(chan error, 1)
	go func() { stopped <- other.Stop(t.Context(), "p") }()
	Eventually(t, "the process was asked to end", func() bool { return b.exists("asked") })
	b.KillSupervisor(t)
	b.await(t, "p", "stopped", func(st runtime.Status) bool { return st.Phase == runtime.Stopped })
	wantGone(t, st.PID)
	if err := <-stopped; err != nil {
		t.Errorf("the call that was under way: %v", err)
	}
}

func testSupervisorDiesStoppedStays(t *testing.T, b *bench) {
	b.startReady(t, b.script("p", idle))
	b.stop(t, "p")
	b.KillSupervisor(t)
	if st, ok := b.status(t); !ok || st.Phase != runtime.Stopped || st.PID != 0 {
		t.Errorf("status %+v, want stopped", st)
	}
	if runs := b.pids(t, "pid"); len(runs) != 1 {
		t.Errorf("runs %v, want one", runs)
	}
}
