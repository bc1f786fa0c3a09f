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

// promptly is how soon a hopeless wait must end. A program that ends after 3 s has ended three times after 10.5 s; the
// rest is for a busy machine.
const promptly = 30 * time.Second

// crashLoop: a program without a check ends after three seconds. The wait fails and prints the end of the program's
// log. Status, pods and explain show the crash loop, and there is one alert. These reports do not change while the
// program is started again and again. If a new version ends after five seconds, although its check passes, only one pod
// gets it.
func crashLoop(e *env) {
	e.startConsul("")
	first := e.preparer(1)
	e.preparer(2)
	e.farm("f1", "")
	e.applied(e.hello(2, map[string]string{"HELLO_VERSION": "1"})) // after this, no step waits for the nodes
	e.notesCrash(first)
	e.badVersion()
}

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

// applyInVain applies a document that cannot converge. The wait must fail soon.
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

func (e *env) notesCrash(preparer *daemon) {
	e.t.Helper()
	e.applyInVain(e.notes("echo about to fail; sleep 3; exit 3", ""),
		"CrashLooping: ", "web ended with exit status 3", "  about to fail", "all of it: rcctl logs notes-main-",
		"rcctl rc explain notes")
	id := e.rcID("notes")
	e.within(limit, func() error { return e.crashing(id, 2, 0) })
	e.within(limit, func() error { return e.crashAlerts(1, 0) })
	if out := e.rcctl("", "pods", "--rc", "notes"); strings.Count(out, " crash-looping ") != 2 {
		e.t.Errorf("rcctl pods says\n%s", out)
	}
	const next = "Next: Apply a manifest that works; its log: rcctl logs notes-main-0"
	if out := e.rcctl("", "rc", "explain", "notes"); !strings.Contains(out, next) ||
		strings.Contains(out, "min_available") {
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
			if was := since[rec.Value.Node]; rec.Value.State != pod.StateCrashLooping ||
				!was.IsZero() && !rec.Value.Since.Equal(was) {
				e.t.Fatalf("it has flapped, from %s on: %+v", was, rec.Value)
			}
			since[rec.Value.Node] = rec.Value.Since
		}
		return e.crashing(id, 2, 5)
	})
	if err := e.crashAlerts(1, 0); err != nil {
		e.t.Error(err)
	}

	// Pods of the former manifest crash-loop until they are replaced. The wait must not fail because of this.
	e.rcctl(e.notes("exec sleep 100000", "  min_ready: 1s\n"), "apply", "-f", "-", "--wait", "--timeout",
		limit.String())
	e.within(limit, func() error { return e.crashAlerts(1, 1) })
}

func (e *env) crashAlerts(raised, resolved int) error {
	const about = "condition=CrashLooping"
	if r, o := e.alerts("raised", about), e.alerts("resolved", about); r != raised || o != resolved {
		return fmt.Errorf("%d alerts raised and %d resolved, want %d and %d", r, o, raised, resolved)
	}
	return nil
}

// crashing also fails the test if the status is converged or has available pods.
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

func (e *env) badVersion() {
	e.t.Helper()
	id := e.rcID("hello")
	before := e.processes()
	bad := e.hello(2, map[string]string{"HELLO_VERSION": "2", "HELLO_ENDS": "5s"})
	bad.MinReady = "10s"
	e.applyInVain(cluster.HelloSpec(bad), "Blocked: main.", "ending as HELLO_ENDS says", "rcctl logs hello-main-")
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
	const next = "Next: Apply a manifest that works; its log: rcctl logs hello-main-"
	if out := e.rcctl("", "rc", "explain", "hello"); !strings.Contains(out, next) ||
		strings.Contains(out, "min_available") {
		e.t.Errorf("rcctl rc explain says\n%s", out)
	}
	e.applied(e.hello(2, map[string]string{"HELLO_VERSION": "3"}))
}
