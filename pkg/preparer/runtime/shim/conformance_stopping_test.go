package shim_test

import (
	"context"
	"errors"
	"os"
	"strings"
	"time"

	"github.com/rcfarm/rcfarm/pkg/internal/exectest"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime/stub"
)

func (b *bench) TestStopWithinGrace() {
	st := b.startReady(b.script("p", `trap 'echo bye; exit 0' TERM; : > ready; while :; do sleep 0.01; done`))
	b.stop("p")
	b.wantGone(st.PID)
	b.wantLog("p.log", strings.HasSuffix, "bye\n")
	b.wantStopped("0")
	b.stop("p") // a second stop does nothing
}

func (b *bench) TestStopKillsAfterGrace() {
	spec := b.script("p", `trap '' TERM; : > ready; while :; do sleep 0.01; done`)
	spec.StopGrace = 300 * time.Millisecond
	st := b.startReady(spec)
	began := time.Now()
	b.stop("p")
	if took := time.Since(began); took < spec.StopGrace {
		b.Errorf("stopped after %s, before its grace of %s", took, spec.StopGrace)
	}
	b.wantGone(st.PID)
	b.wantStopped("-1 SIGKILL")
}

// leaderGrace lets a leader end on a busy machine, and can be waited for if another process ignores the signal.
const leaderGrace = 4 * time.Second

func (b *bench) TestStopSignal() {
	spec := b.script("p",
		`trap 'echo term; exit 1' TERM; trap 'echo int; exit 0' INT; : > ready; while :; do sleep 0.01; done`)
	spec.StopSignal = "SIGINT"
	b.startReady(spec)
	b.node.killSupervisor(b.T) // the next supervisor knows the signal too
	b.stop("p")
	b.wantLog("p.log", whole, "int\n") // only SIGINT was sent
}

// Two grandchildren in the leader's group, and one in its own, which job control makes.
const family = `
sh -c 'trap "" TERM; echo $$ >> pids; while :; do sleep 0.01; done' &
sh -c 'echo $$ >> pids; exec sleep 1000' &
bash -c 'set -m; sh -c "trap \"\" TERM; echo \$\$ >> pids; while :; do sleep 0.01; done" & wait' &
while [ $(wc -l < pids) -lt 3 ]; do sleep 0.01; done
: > ready
`

func (b *bench) TestStopEndsGrandchildren() {
	spec := b.script("p", `: > pids; trap 'exit 0' TERM;`+family+`while :; do sleep 0.01; done`)
	spec.StopGrace = leaderGrace
	st := b.startReady(spec)
	b.stop("p")
	b.wantGone(append(b.pids("pids"), st.PID)...)
	b.wantStopped("0") // the exit of the leader
}

// After a leader's quick end, the others have the whole grace.
func (b *bench) TestStopGivesLeftoversTheGrace() {
	b.startReady(b.script("p", `
sh -c 'trap "sleep 0.3; echo drained > drained; exit 0" TERM; : > ready; while :; do sleep 0.01; done' &
trap 'exit 0' TERM
while :; do sleep 0.01; done`))
	b.stop("p")
	b.failIf(!b.exists("drained"), "a grandchild was killed within the grace")
}

func (b *bench) TestStopDuringBackoff() {
	const delay = 3 * time.Second // so long that the stop ends earlier, even on a busy machine
	spec := b.script("p", `echo $$ >> pid; exit 1`)
	spec.Restart = runtime.Restart{Min: delay, Max: delay}
	b.start(spec)
	b.await("p", "waiting for its next start", func(st runtime.Status) bool { return st.Phase == runtime.Backoff })
	b.stop("p")
	b.wantStopped("1")
	// By the time another process has waited as long, the first would have started again.
	other := b.script("other", `[ -e first ] && : > ready && exec sleep 1000; : > first; exit 1`)
	other.Restart = spec.Restart
	b.startReady(other)
	if now := len(b.pids("pid")); now != 1 {
		b.Errorf("%d runs after the stop", now-1)
	}
}

func (b *bench) TestStopUnknown() {
	b.stop("nobody")
	if err := b.Runtime.Remove(b.Context(), "nobody"); err != nil {
		b.Errorf("remove: %v", err)
	}
}

func (b *bench) TestCrashEndsGrandchildren() {
	b.startReady(b.script("p", `
[ -e second ] && exec sleep 1000
: > second; : > pids;`+family+`exit 1`))
	b.await("p", "restarted", func(st runtime.Status) bool { return st.Restarts == 1 && st.Phase == runtime.Running })
	b.wantGone(b.pids("pids")...)
}

// A pod can stop its process's or command's stub, after the change of the user. Its stop is confirmed, and both are
// gone.
func (b *bench) TestStopBeforeItIsTheProgram() {
	b.startReady(b.script("p", idle))
	program := exectest.Program(b)
	ended := make(chan error, 1)
	go func() {
		_, err := b.Runtime.Exec(context.WithoutCancel(b.Context()), "p", []string{program, "1000"}, runtime.Streams{})
		ended <- err
	}()
	command, guard := exectest.Stop(b, b.dir, stub.Arg)
	b.stop("p")
	b.wantGone(command, guard)
	if err := <-ended; !errors.Is(err, context.Canceled) {
		b.Errorf("the command ended with %v", err)
	}
	held := b.script("held", "")
	held.Dir = b.path("held-in")
	if err := os.Mkdir(held.Dir, 0o755); err != nil {
		b.Fatal(err)
	}
	held.Command = []string{exectest.Program(b), "1000"}
	b.start(held)
	pid, _ := exectest.Stop(b, held.Dir, stub.Arg)
	began := time.Now()
	b.stop("held")
	b.wantGone(pid)
	if took := time.Since(began); took >= stub.Timeout { // it must not wait until the stub's time is over
		b.Errorf("stopped after %s", took)
	}
}
