package shim_test

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rcfarm/rcfarm/pkg/preparer/runtime"
)

func (b *bench) policy(id string, policy runtime.RestartPolicy, script string) runtime.Spec {
	spec := b.script(id, `echo $$ >> pid; `+script)
	spec.Restart.Policy = policy
	return spec
}

func exited(st runtime.Status) bool { return st.Phase == runtime.Exited }

func (b *bench) wantExited(st runtime.Status, code, runs int) {
	b.Helper()
	b.wantEnd(st, strconv.Itoa(code))
	b.failIf(st.PID != 0 || st.Restarts != runs-1, "pid %d after %d restarts; want none after %d", st.PID,
		st.Restarts, runs-1)
	b.wantRuns(st.Spec.ID, runs)
}

// wantRuns: the process did not run again while another was started and stopped.
func (b *bench) wantRuns(id string, runs int) {
	b.Helper()
	other := b.script(fmt.Sprintf("%s-other-%d", id, runs), `exec sleep 1000`)
	b.start(other)
	b.await(other.ID, "running", func(st runtime.Status) bool { return st.Phase == runtime.Running })
	b.stop(other.ID)
	if err := b.Runtime.Remove(b.Context(), other.ID); err != nil {
		b.Error(err)
	}
	if got := b.pids("pid"); len(got) != runs {
		b.Errorf("runs %v, want %d", got, runs)
	}
}

func (b *bench) TestRestartAlways() {
	b.start(b.policy("p", runtime.Always, `exit 0`))
	b.awaitPIDs(3)
	st := b.await("p", "restarted", func(st runtime.Status) bool { return st.Restarts >= 2 && st.LastExit != nil })
	b.wantEnd(st, "0")
	b.failIf(st.Phase == runtime.Exited, "phase %s, want restarts after exit status 0", st.Phase)
}

func (b *bench) TestRestartOnFailure() {
	b.start(b.policy("p", runtime.OnFailure, `case $(wc -l < pid) in 1) exit 3;; 2) kill -USR1 $$;; esac; exit 0`))
	b.wantExited(b.await("p", "exited", exited), 0, 3)
}

func (b *bench) TestRestartNever() {
	b.start(b.policy("p", runtime.Never, `exit 3`))
	b.wantExited(b.await("p", "exited", exited), 3, 1)
}

// The first restart comes within a second. On a busy machine, one of eight is enough.
func (b *bench) TestRestartQuicklyAtFirst() {
	const limit = time.Second
	var took []time.Duration
	for i := range 8 {
		id := fmt.Sprintf("p%d", i)
		b.start(b.script(id, `[ -e `+id+` ] && exec sleep 1000; : > `+id+`; exit 1`))
		st := b.await(id, "restarted", func(st runtime.Status) bool {
			return st.Phase == runtime.Running && st.Restarts == 1 && st.LastExit != nil
		})
		last := st.StartedAt.Sub(st.LastExit.At)
		if last <= limit {
			return
		}
		took = append(took, last)
	}
	b.Errorf("first restarts came after %s, want at most %s", took, limit)
}

// The pauses are at least as long as the spec asks. On a busy machine they are longer.
func (b *bench) TestRestartBackoffOfSpec() {
	spec := b.script("p", `date +%s%N >> times; exit 1`)
	spec.Restart = runtime.Restart{Min: 300 * time.Millisecond, Max: 500 * time.Millisecond}
	b.start(spec)
	Eventually(b, "four runs", func() bool { return strings.Count(b.read("times"), "\n") >= 4 })
	var times []time.Time
	for line := range strings.FieldsSeq(b.read("times")) {
		ns, err := strconv.ParseInt(line, 10, 64)
		if err != nil {
			b.Fatal(err)
		}
		times = append(times, time.Unix(0, ns))
	}
	for i, least := range []time.Duration{300, 500, 500} {
		if gap := times[i+1].Sub(times[i]); gap < least*time.Millisecond {
			b.Errorf("restart %d came after %s, want at least %dms", i+1, gap, least)
		}
	}
}

func (b *bench) TestExitedStart() {
	spec := b.policy("p", runtime.Never, `exit 3`)
	b.start(spec)
	b.await("p", "exited", exited)
	b.start(spec)
	b.wantOther(spec)
	st, _ := b.status()
	b.failIf(st.Phase != runtime.Exited, "phase %s after the same spec again, want exited", st.Phase)
	b.wantExited(st, 3, 1)
}

func (b *bench) TestExitedStop() {
	spec := b.policy("p", runtime.Never, `exit 3`)
	b.start(spec)
	b.await("p", "exited", exited)
	for range 2 {
		b.stop("p")
		b.wantStopped("3")
	}
	b.wantRuns("p", 1)
	b.start(spec)
	b.awaitPIDs(2)
	st := b.await("p", "exited again", exited)
	b.failIf(st.Restarts != 0, "%d restarts, want a new first run", st.Restarts)
	b.wantRuns("p", 2)
}

func (b *bench) TestExitedRemove() {
	spec := b.policy("p", runtime.Never, `exit 3`)
	b.start(spec)
	b.await("p", "exited", exited)
	b.removeTwice()
	spec.Revision++
	b.start(spec)
	b.awaitPIDs(2)
	b.await("p", "exited again", exited)
}

func (b *bench) TestExitedEndsGrandchildren() {
	spec := b.script("p", `: > pids;`+family+`exit 0`)
	spec.Restart.Policy = runtime.OnFailure
	b.start(spec)
	b.await("p", "exited", exited)
	b.wantGone(b.pids("pids")...)
}

func (b *bench) TestExitedSupervisorDies() {
	spec := b.policy("p", runtime.OnFailure, `exit 0`)
	b.start(spec)
	before := b.await("p", "exited", exited)
	b.node.killSupervisor(b.T)
	b.start(spec)
	st, _ := b.status()
	if st.Phase != runtime.Exited || st.LastExit == nil || !st.LastExit.At.Equal(before.LastExit.At) {
		b.Errorf("status %+v (exit %+v), want as before: %+v", st, st.LastExit, before.LastExit)
	}
	b.wantExited(st, 0, 1)
	b.stop("p")
	b.wantStopped("0")
}

// With the policy never, a process is not started again, even if the supervisor did not see its end.
func (b *bench) TestSupervisorDiesExitOfNever() {
	for _, id := range []string{"seen", "missed"} {
		spec := b.policy(id, runtime.Never, `: > ready-`+id+`; exec sleep 1000`)
		b.start(spec)
		Eventually(b, id+" is ready", func() bool { return b.exists("ready-" + id) })
		first := b.await(id, "running", func(st runtime.Status) bool { return st.Phase == runtime.Running })
		b.node.killSupervisor(b.T)
		if id == "seen" {
			b.await(id, "taken over", func(st runtime.Status) bool { return st.PID == first.PID })
		}
		b.kill(first.PID)
		st := b.await(id, "exited", exited)
		b.wantEnd(st, "-1 unknown")
		b.failIf(st.PID != 0, "%s: pid %d, want none", id, st.PID)
	}
	b.wantRuns("p", 2)
}

// If the next supervisor did not see how a process ended, it treats the end as a failure.
func (b *bench) TestSupervisorDiesExitOfOnFailure() {
	spec := b.policy("p", runtime.OnFailure, `: > ready; exec sleep 1000`)
	first := b.startReady(spec)
	b.node.killSupervisor(b.T)
	b.kill(first.PID)
	b.awaitRestart("p", first.PID)
	if pids := b.awaitPIDs(2); slices.Contains(pids[1:], first.PID) {
		b.Errorf("runs %v, want another pid", pids)
	}
}
