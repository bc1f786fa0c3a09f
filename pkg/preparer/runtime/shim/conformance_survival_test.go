package shim_test

import (
	"slices"
	"strings"
	"time"

	"github.com/rcfarm/rcfarm/pkg/preparer/runtime"
)

func (b *bench) TestSecondClient() {
	first := b.startReady(b.script("p", idle))
	b.Runtime = b.node.dial(b.T)
	if st, _ := b.status(); st.PID != first.PID || st.Phase != runtime.Running {
		b.Errorf("second client sees phase %s, pid %d; want running, pid %d", st.Phase, st.PID, first.PID)
	}
	b.stop("p")
	b.wantGone(first.PID)
}

func (b *bench) TestClientDies() {
	spec := b.script("p", idle)
	startFromDyingClient(b.T, b.node.settings, spec)
	st := b.await("p", "running", func(st runtime.Status) bool { return st.Phase == runtime.Running })
	Eventually(b, "the script has begun", func() bool { return b.exists("ready") })
	b.start(spec)
	if pids := b.pids("pid"); !slices.Equal(pids, []int{st.PID}) || !Alive(st.PID) {
		b.Errorf("pids %v, want only %d, alive", pids, st.PID)
	}
}

func (b *bench) TestSupervisorDies() {
	spec := b.script("p", idle)
	first := b.startReady(spec)
	_, cursor, err := b.Runtime.Watch(b.Context(), 0)
	if err != nil {
		b.Fatal(err)
	}
	b.node.killSupervisor(b.T)
	if !Alive(first.PID) {
		b.Fatal("the process died with its supervisor")
	}
	// With the dead supervisor's cursor, the next one must answer at once.
	list, _, err := b.Runtime.Watch(b.Context(), cursor)
	if err != nil || len(list) != 1 {
		b.Fatalf("watch with an old cursor: %v, %v", list, err)
	}
	if st := list[0]; st.PID != first.PID || st.Phase != runtime.Running || st.Restarts != 0 ||
		!st.StartedAt.Equal(first.StartedAt) {
		b.Errorf("taken over as %+v, want the run of pid %d", st, first.PID)
	}
	b.start(spec)
	if pids := b.pids("pid"); len(pids) != 1 {
		b.Errorf("runs %v, want one", pids)
	}
}

func (b *bench) TestSupervisorDiesStopAdopted() {
	spec := b.script("p", `: > pids; trap 'echo bye; exit 0' TERM;`+family+`while :; do sleep 0.01; done`)
	spec.StopGrace = leaderGrace
	st := b.startReady(spec)
	b.node.killSupervisor(b.T)
	b.stop("p")
	b.wantGone(append(b.pids("pids"), st.PID)...)
	b.wantLog("p.log", strings.HasSuffix, "bye\n")
	b.wantStopped("-1 unknown")
}

func (b *bench) TestSupervisorDiesExitOfAdopted() {
	first := b.startReady(b.script("p", idle))
	b.node.killSupervisor(b.T)
	b.await("p", "running", func(st runtime.Status) bool { return st.Phase == runtime.Running && st.PID == first.PID })
	b.kill(first.PID)
	b.awaitRestart("p", first.PID)
}

func (b *bench) TestSupervisorDiesExitMissed() {
	first := b.startReady(b.script("p", `
echo $$ >> pid
[ -e second ] && exec sleep 1000
: > second; : > pids;`+family+`while :; do sleep 0.01; done`))
	left := b.pids("pids")
	b.node.killSupervisor(b.T)
	b.kill(first.PID)
	b.awaitRestart("p", first.PID)
	b.wantGone(left...)
	if pids := b.awaitPIDs(2); len(pids) != 2 {
		b.Errorf("runs %v, want two", pids)
	}
}

func (b *bench) awaitRestart(id string, was int) {
	b.Helper()
	st := b.await(id, "restarted", func(st runtime.Status) bool { return st.Phase == runtime.Running && st.PID != was })
	b.wantEnd(st, "-1 unknown")
	b.failIf(st.Restarts != 1, "%d restarts, want 1", st.Restarts)
}

// A stop is carried out even if the supervisor dies during the stop and another client asks.
func (b *bench) TestSupervisorDiesDuringStop() {
	spec := b.script("p", `trap ': > asked' TERM; : > ready; while :; do sleep 0.01; done`)
	spec.StopGrace = time.Second
	st := b.startReady(spec)
	other := b.node.dial(b.T)
	stopped := make(chan error, 1)
	go func() { stopped <- other.Stop(b.Context(), "p") }()
	Eventually(b, "the process was asked to end", func() bool { return b.exists("asked") })
	b.node.killSupervisor(b.T)
	b.await("p", "stopped", func(st runtime.Status) bool { return st.Phase == runtime.Stopped })
	b.wantGone(st.PID)
	if err := <-stopped; err != nil {
		b.Errorf("the call that was under way: %v", err)
	}
}

func (b *bench) TestSupervisorDiesStoppedStays() {
	b.startReady(b.script("p", idle))
	b.stop("p")
	b.node.killSupervisor(b.T)
	b.wantStopped("-1 SIGTERM")
	if runs := b.pids("pid"); len(runs) != 1 {
		b.Errorf("runs %v, want one", runs)
	}
}
