package shim_test

import (
	"errors"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/preparer/runtime"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime/shim"
)

// The tests of this file are about runs that end because somebody asked for the next.

const hungReason = "its health check failed for 10s"

// ask returns what asks for the end of a run.
func ask(st runtime.Status) runtime.RestartRequest {
	return runtime.RestartRequest{ID: st.Spec.ID, PID: st.PID, StartedAt: st.StartedAt, Reason: hungReason}
}

func (b *bench) restart(ask runtime.RestartRequest) {
	b.Helper()
	if err := b.Runtime.Restart(b.Context(), ask); err != nil {
		b.Fatalf("restart %s: %v", ask.ID, err)
	}
}

// again waits for the run that follows one.
func (b *bench) again(was runtime.Status) runtime.Status {
	b.Helper()
	return b.await(was.Spec.ID, "started again", func(st runtime.Status) bool {
		return st.Phase == runtime.Running && st.Restarts == was.Restarts+1
	})
}

// A run ends as at a stop, and is followed by the next also where its end looks well. A request that comes late, twice,
// or about another run changes nothing.
func (b *bench) TestRestartOnRequest() {
	first := b.startReady(b.policy("p", runtime.OnFailure, `trap 'echo bye; exit 0' TERM; : > ready; while :; do sleep 0.01; done`))
	b.restart(ask(first))
	second := b.again(first)
	b.wantGone(first.PID)
	b.wantLog("p.log", strings.Contains, "bye\n")
	b.wantEnd(second, "0")
	b.failIf(second.LastExit.Reason != hungReason, "the reason is %q", second.LastExit.Reason)
	b.failIf(second.ShortRuns != 1, "%d short runs, want 1", second.ShortRuns)
	for _, late := range []func(*runtime.RestartRequest){
		func(r *runtime.RestartRequest) { *r = ask(first) },
		func(r *runtime.RestartRequest) { r.PID = first.PID },
		func(r *runtime.RestartRequest) { r.StartedAt = first.StartedAt },
		func(r *runtime.RestartRequest) { r.ID = "other" },
	} {
		r := ask(second)
		late(&r)
		b.restart(r)
	}
	b.wantRuns("p", 2)
	// A successor takes requests about what it has found running, as soon as it attends to that. Until then it drops them,
	// so they are repeated.
	b.node.killSupervisor(b.T)
	third := b.node.await(b.T, second.Spec.ID, "started again", func(st runtime.Status) bool {
		if st.Restarts == second.Restarts {
			b.restart(ask(second))
		}
		return st.Phase == runtime.Running && st.Restarts == second.Restarts+1
	})
	if third.LastExit.Reason != hungReason {
		b.Errorf("the reason is %q", third.LastExit.Reason)
	}
}

func (b *bench) TestRestartKillsAfterGrace() {
	spec := b.script("p", `trap '' TERM; : > ready; while :; do sleep 0.01; done`)
	spec.StopGrace = 100 * time.Millisecond
	first := b.startReady(spec)
	b.restart(ask(first))
	b.restart(ask(first))
	b.wantEnd(b.again(first), "-1 SIGKILL")
	b.wantGone(first.PID)
}

// A stop takes precedence, whenever it comes.
func (b *bench) TestStopDuringARestart() {
	spec := b.script("p", `echo $$ >> pid; trap ': > asked' TERM; : > ready; while :; do sleep 0.01; done`)
	spec.StopGrace = time.Second
	first := b.startReady(spec)
	b.restart(ask(first))
	Eventually(b, "it is asked to end", func() bool { return b.exists("asked") })
	b.stop("p")
	b.wantStopped("-1 SIGKILL")
	b.restart(ask(first))
	b.wantStopped("-1 SIGKILL")
	b.wantRuns("p", 1)
}

func (b *bench) TestRestartOfNever() {
	first := b.startReady(b.policy("p", runtime.Never, `: > ready; exec sleep 1000`))
	if err := b.Runtime.Restart(b.Context(), ask(first)); !errors.Is(err, runtime.ErrInvalid) {
		b.Errorf("restart: %v, want ErrInvalid", err)
	}
	b.wantRuns("p", 1)
}

// A run that is shorter than the request says is a short one, and the next is judged by the same length. After a
// request that says nothing all is as ever.
func TestRunsThatCountAsShort(t *testing.T) {
	t.Parallel()
	const delay, stable = 300 * time.Millisecond, 20 * time.Millisecond
	n := newNode(t, func(s *settings) { s.RestartDelay, s.MaxRestartDelay, s.StableAfter = delay, delay, stable })
	n.start(t, n.idler("a"))
	for i, step := range []struct {
		says time.Duration
		want int
	}{{time.Hour, 1}, {time.Hour, 2}, {time.Hour, 3}, {0, 1}, {0, 1}, {time.Hour, 1}} {
		st := n.await(t, "a", "runs", func(st runtime.Status) bool { return st.Phase == runtime.Running && st.Restarts == i })
		if i > 3 { // nothing is said any more of this run
			st = n.await(t, "a", "runs for long enough", func(st runtime.Status) bool { return st.ShortRuns == 0 })
		}
		seen := time.Now() // the supervisor counts from about then
		Eventually(t, "it has run for long enough", func() bool { return time.Since(seen) > 20*stable })
		r := ask(st)
		r.Stable = step.says
		if err := n.Restart(t.Context(), r); err != nil {
			t.Fatal(err)
		}
		st = n.await(t, "a", "ended", func(st runtime.Status) bool { return st.Phase == runtime.Backoff })
		if st.ShortRuns != step.want {
			t.Errorf("after run %d there were %d short ones in a row, want %d", i, st.ShortRuns, step.want)
		}
	}
}

// A supervisor from before there were such requests says that it knows none.
func TestRestartByAnOlderSupervisor(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	listener, err := net.Listen("unix", filepath.Join(dir, "shim.sock"))
	if err != nil {
		t.Fatal(err)
	}
	older := &http.Server{Handler: http.NotFoundHandler(), ReadHeaderTimeout: Timeout}
	served := make(chan error, 1)
	go func() { served <- older.Serve(listener) }()
	t.Cleanup(func() {
		_ = older.Close()
		<-served
	})
	c, err := shim.Dial(shim.ClientConfig{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.Restart(t.Context(), runtime.RestartRequest{ID: "a"}); !errors.Is(err, runtime.ErrTooOld) {
		t.Errorf("restart: %v, want ErrTooOld", err)
	}
}
