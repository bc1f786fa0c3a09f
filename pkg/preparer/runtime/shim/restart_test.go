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

const hungReason = "its health check failed for 10s"

func ask(st runtime.Status) runtime.RestartRequest {
	return runtime.RestartRequest{ID: st.Spec.ID, PID: st.PID, StartedAt: st.StartedAt, Reason: hungReason}
}

func (b *bench) restart(ask runtime.RestartRequest) {
	b.Helper()
	if err := b.Runtime.Restart(b.Context(), ask); err != nil {
		b.Fatalf("restart %s: %v", ask.ID, err)
	}
}

func (b *bench) again(was runtime.Status) runtime.Status {
	b.Helper()
	return b.await(was.Spec.ID, "started again", func(st runtime.Status) bool {
		return st.Phase == runtime.Running && st.Restarts == was.Restarts+1
	})
}

// The run ends as at a stop, and the next run starts, even if the exit looks like a success. A request that is late,
// repeated, or about another run changes nothing.
func (b *bench) TestRestartOnRequest() {
	first := b.startReady(b.policy("p", runtime.OnFailure,
		`trap 'echo bye; exit 0' TERM; : > ready; while :; do sleep 0.01; done`))
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
	// The next supervisor accepts requests only when it attends to the process that it found, so the test repeats them.
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

// A stop has priority over a restart, before and after it.
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

// If a run is shorter than the request's Stable, it is a short run. The same length applies to the next run. A request
// without Stable changes nothing.
func TestRunsThatCountAsShort(t *testing.T) {
	t.Parallel()
	const delay, stable = 300 * time.Millisecond, 20 * time.Millisecond
	n := newNode(t, func(s *settings) { s.RestartDelay, s.MaxRestartDelay, s.StableAfter = delay, delay, stable })
	n.start(t, n.idler("a"))
	for i, step := range []struct {
		says time.Duration
		want int
	}{{time.Hour, 1}, {time.Hour, 2}, {time.Hour, 3}, {0, 1}, {0, 1}, {time.Hour, 1}} {
		st := n.await(t, "a", "runs",
			func(st runtime.Status) bool { return st.Phase == runtime.Running && st.Restarts == i })
		if i > 3 { // no request has set Stable for this run
			st = n.await(t, "a", "runs for long enough", func(st runtime.Status) bool { return st.ShortRuns == 0 })
		}
		seen := time.Now() // the supervisor measures from about this time
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

// A supervisor that does not know this request gives ErrTooOld.
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
	// It would run the command of a container outside of it.
	contained := runtime.Spec{Process: runtime.Process{ID: "a"}, Container: &runtime.Container{Config: []byte("{}")}}
	if err := c.Start(t.Context(), contained); !errors.Is(err, runtime.ErrTooOld) {
		t.Errorf("start of a container: %v, want ErrTooOld", err)
	}
}
