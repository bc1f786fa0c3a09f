package e2e

import (
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"time"

	"github.com/rcfarm/rcfarm/integration/cluster"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// promptly is how soon a wait must end that cannot succeed: a program that ends after 3 s has done so three times after 10.5 s. It
// leaves as much again for a busy machine.
const promptly = 30 * time.Second

// crashLoop: a program that ends after three seconds is told from one that works, without a check: by the wait, which fails with the
// end of its log, in status, pods and explain, and by one alert; nothing of that flaps while it is started again and again. A new version
// that ends after five seconds, with a check that passes, reaches one pod and no other.
func crashLoop(e *env) {
	e.startConsul("")
	first := e.preparer(1)
	e.preparer(2)
	e.farm("f1", "")
	e.applied(e.hello(2, map[string]string{"HELLO_VERSION": "1"})) // from here on nothing waits for the nodes
	e.notesCrash(first)
	e.badVersion()
}

// notes is a controller without a check, whose pods run a line of shell.
func (e *env) notes(script, more string) string {
	e.t.Helper()
	sleep, err := exec.LookPath("sleep")
	if err != nil {
		e.t.Fatal(err)
	}
	return fmt.Sprintf(`name: notes
replicas: 2
max_per_node: 1
pod:
  version: 1
  id: notes
%s  launchables:
  - name: web
    artifact: {kind: exec, path: /bin/sh}
    args: ["-c", %q]
    stop_grace: 1s
`, more, strings.ReplaceAll(script, "sleep", sleep))
}

// applyInVain applies what cannot converge, and returns what the wait said.
func (e *env) applyInVain(text string, wants ...string) {
	e.t.Helper()
	begun := time.Now()
	out, err := e.tryRcctl(text, "apply", "-f", "-", "--wait", "--timeout", "1h")
	took := time.Since(begun)
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 5 {
		e.t.Fatalf("want exit code 5, got %v\n%s", err, out)
	}
	e.t.Logf("the wait failed after %.1f s", took.Seconds())
	if took > promptly {
		e.t.Errorf("the wait failed after %s", took)
	}
	for _, want := range wants {
		if !strings.Contains(out, want) {
			e.t.Errorf("the wait does not say %q:\n%s", want, out)
		}
	}
}

// notesCrash is the part about a controller that never worked, until it is mended.
func (e *env) notesCrash(preparer *daemon) {
	e.t.Helper()
	e.applyInVain(e.notes("echo about to fail; sleep 3; exit 3", ""),
		"CrashLooping: ", "web ended with exit status 3", "  about to fail", "all of it: rcctl logs notes-main-", "rcctl rc explain notes")
	id := e.rcID("notes")
	e.within(limit, func() error { return e.crashing(id, 2, 0) })
	e.within(limit, func() error { return e.crashAlerts(1, 0) })
	if out := e.rcctl("", "pods", "--rc", "notes"); strings.Count(out, " crash-looping ") != 2 {
		e.t.Errorf("rcctl pods says\n%s", out)
	}
	if out := e.rcctl("", "rc", "explain", "notes"); !strings.Contains(out, "Next: Apply a manifest that works; what it wrote: rcctl logs notes-main-0") || strings.Contains(out, "min_available") {
		e.t.Errorf("rcctl rc explain says\n%s", out)
	}

	preparer.kill()
	preparer.startAgain()
	since := map[string]time.Time{}
	e.within(limit, func() error {
		recs, _, err := e.store.Realities.List(e.t.Context(), store.Default)
		if err != nil {
			return err
		}
		for _, rec := range recs {
			if rec.Value.RCID != id {
				continue
			}
			if was := since[rec.Value.Node]; rec.Value.State != pod.StateCrashLooping || !was.IsZero() && !rec.Value.Since.Equal(was) {
				e.t.Fatalf("it has flapped, from %s on: %+v", was, rec.Value)
			}
			since[rec.Value.Node] = rec.Value.Since
		}
		return e.crashing(id, 2, 5)
	})
	if err := e.crashAlerts(1, 0); err != nil {
		e.t.Error(err)
	}

	// Those of the manifest before crash-loop on until they are replaced, which is no reason to give up.
	e.rcctl(e.notes("exec sleep 100000", "  min_ready: 1s\n"), "apply", "-f", "-", "--wait", "--timeout", limit.String())
	e.within(limit, func() error { return e.crashAlerts(1, 1) })
}

// crashAlerts compares how often farms told of crash loops with what is wanted.
func (e *env) crashAlerts(raised, resolved int) error {
	const about = "condition=CrashLooping"
	if r, o := e.alerts("raised", about), e.alerts("resolved", about); r != raised || o != resolved {
		return fmt.Errorf("%d alerts raised and %d resolved, want %d and %d", r, o, raised, resolved)
	}
	return nil
}

// crashing reports whether so many pods of a controller crash-loop, as its status says too, and have been started again so many times.
// It fails the test where the status says that all is well.
func (e *env) crashing(id string, pods, restarts int) error {
	e.t.Helper()
	st, err := e.store.Statuses.Get(e.t.Context(), store.Default, id)
	if err != nil {
		return err
	}
	if st.Value.Is(rc.Converged) || st.Value.Available > 0 {
		e.t.Fatalf("all is well: %+v", st.Value)
	}
	if err := e.says(id, rc.CrashLooping, fmt.Sprintf("%d pods end again and again", pods)); err != nil {
		return err
	}
	recs, _, err := e.store.Realities.List(e.t.Context(), store.Default)
	if err != nil {
		return err
	}
	for _, rec := range recs {
		if rec.Value.RCID == id && rec.Value.Restarts < restarts {
			return fmt.Errorf("started again %d times, want %d", rec.Value.Restarts, restarts)
		}
	}
	return nil
}

// badVersion is the part about a version that fails later than its check says.
func (e *env) badVersion() {
	e.t.Helper()
	id := e.rcID("hello")
	before := e.processes()
	bad := e.hello(2, map[string]string{"HELLO_VERSION": "2", "HELLO_ENDS": "5s"})
	bad.MinReady = "10s"
	e.applyInVain(cluster.HelloSpec(bad), "Blocked: main.", "ending as HELLO_ENDS says", "rcctl logs hello-main-")
	// Blocked it stays, while the pod runs and while it waits.
	least := e.leastAvailable(id, func() error {
		if err := e.blocked(id, "did not become available at manifest"); err != nil {
			e.t.Fatal(err)
		}
		return e.says(id, rc.CrashLooping, "1 pod ends again and again soon after its start: main.")
	})
	kept := 0
	for key, pid := range e.processes() {
		if strings.HasPrefix(key, id+"/") && before[key] == pid {
			kept++
		}
	}
	if least < 1 || kept != 1 {
		e.t.Errorf("at least %d available, %d kept their process", least, kept)
	}
	if out := e.rcctl("", "rc", "explain", "hello"); !strings.Contains(out, "Next: Apply a manifest that works; what it wrote: rcctl logs hello-main-") || strings.Contains(out, "min_available") {
		e.t.Errorf("rcctl rc explain says\n%s", out)
	}
	e.applied(e.hello(2, map[string]string{"HELLO_VERSION": "3"}))
}
