package e2e

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// savedPlan: a plan is saved in a file that only its owner can read. Exactly the plan that was shown is carried out,
// with all variables. If anything on which it depends has changed, it is refused with the reason, and nothing is
// written. A saved plan is still carried out if only pods have moved meanwhile.
func savedPlan(e *env) {
	e.site(2, 1)
	w := web{replicas: 2, version: "1", update: "step: 2", env: map[string]string{"HELLO_KEY": "value-of-key"}}
	e.detached(w)
	e.awaitEnd()
	e.runs(map[string]int{"1": 2})

	w.version = "2"
	file, shown := e.savesPlan(w)
	if info, err := os.Stat(file); err != nil || info.Mode() != 0o600 {
		e.t.Errorf("the plan: %v, %v", info, err)
	}
	e.rcctl("", "node", "drain", "n1", "--wait", "--timeout", limit.String())
	e.rcctl("", "node", "undrain", "n1")
	e.runs(map[string]int{"1": 2})
	out := e.rcctl("", "deploy", "--plan", file, "--yes")
	if done := operationsIn(out); !slices.Equal(done, shown) || len(shown) == 0 ||
		!strings.Contains(out, "it does what it showed") {
		e.t.Errorf("the plan was shown as %q and carried out as %q:\n%s", shown, done, out)
	}
	e.runs(map[string]int{"2": 2})
	for _, pid := range e.processes() {
		if environ, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid)); err != nil ||
			!strings.Contains(string(environ), "HELLO_KEY=value-of-key") {
			e.t.Errorf("the environment of a pod: %q, %v", environ, err)
		}
	}
	e.released()
	e.refusesSaved(file, 4, "document: revision 1 by")

	w.version = "3"
	file, _ = e.savesPlan(w)
	e.rcctl("", "scale", "web", "3", "--yes")
	e.runs(map[string]int{"2": 3})
	e.refusesSaved(file, 4, "controller web-r2: generation")

	w.replicas = 3
	file, _ = e.savesPlan(w)
	e.changesFile(file, "value-of-key", "value-of-kex")
	e.refusesSaved(file, 2, "the file was changed since")

	file, _ = e.savesPlan(w)
	other := w
	other.version, other.update = "4", "strategy: canary"
	e.detached(other)
	e.refusesSaved(file, 4, "rollout: none -> ")
	e.rcctl("", "rollout", "abort", "web")
	e.released()
	e.refusesSaved(file, 4, "document: revision 2 by")
	e.deployed(w)
	e.released()

	w.version = "5"
	file, _ = e.savesPlan(w)
	snapshot := e.request(http.MethodGet, "/v1/snapshot", nil)
	epoch := e.epoch()
	e.rcctl("", "scale", "web", "2", "--yes")
	e.runs(map[string]int{"3": 2})
	e.put("/v1/snapshot", snapshot)
	e.within(limit, func() error {
		if e.epoch() == epoch {
			return errors.New("the farm has not renewed the epoch")
		}
		return nil
	})
	e.refusesSaved(file, 4, "epoch: "+epoch+" -> ")
}

func (e *env) savesPlan(w web) (file string, operations []string) {
	e.t.Helper()
	file = filepath.Join(e.dir, "web-"+w.version+".plan")
	out, err := e.tryRcctl(e.document(w), "plan", "-f", "-", "--out", file)
	if !strings.Contains(out, "saved in "+file) {
		e.t.Fatalf("%v\n%s", err, out)
	}
	return file, operationsIn(out)
}

func operationsIn(out string) []string {
	return regexp.MustCompile(`(?m)^ +(?:\+|-|~|-/\+) .*?(?:  \(forecast|$)`).FindAllString(out, -1)
}

// refusesSaved: rcctl must refuse a saved plan with this exit code and reason, and write nothing.
func (e *env) refusesSaved(file string, code int, reason string) {
	e.t.Helper()
	before := e.keysOfDeploys()
	got, out := e.exitCode("deploy", "--plan", file, "--yes")
	if got != code || !strings.Contains(out, reason) || !strings.Contains(out, "nothing was written") {
		e.t.Errorf("exit code %d, want %d and %q:\n%s", got, code, reason, out)
	}
	e.t.Logf("%s", out)
	after := e.keysOfDeploys()
	maps.DeleteFunc(after, func(key string, index uint64) bool { return before[key] == index })
	if len(after) > 0 {
		e.t.Errorf("written: %v", after)
	}
}

func (e *env) changesFile(file, from, to string) {
	e.t.Helper()
	text, err := os.ReadFile(file)
	if err == nil && !strings.Contains(string(text), from) {
		err = errors.New("there is no " + from)
	}
	if err == nil {
		err = os.WriteFile(file, []byte(strings.ReplaceAll(string(text), from, to)), 0o600)
	}
	if err != nil {
		e.t.Fatal(err)
	}
}

func (e *env) epoch() string {
	e.t.Helper()
	schema, err := e.store.EnsureSchema(e.t.Context())
	if err != nil {
		e.t.Fatal(err)
	}
	return schema.Value.Epoch
}
