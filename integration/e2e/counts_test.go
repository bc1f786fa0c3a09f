package e2e

import (
	"fmt"
	"strings"

	"github.com/rcfarm/rcfarm/pkg/rollout"
)

func (e *env) changes(w web, flags ...string) string {
	e.t.Helper()
	out, err := e.tryRcctl(e.document(w), append([]string{"plan", "-f", "-"}, flags...)...)
	if err == nil || !strings.Contains(err.Error(), "exit status 6") {
		e.t.Errorf("plan: %v\n%s", err, out)
	}
	return out
}

// rollbackKeepsCounts: going back to an earlier version keeps the number of pods. A plan names the pods that a lower
// number stops. If the lower number comes with a new version, no old pod stops before a new pod runs.
func rollbackKeepsCounts(e *env) {
	e.site(2, 1)
	w := web{replicas: 2, version: "1", update: "step: 1"}
	e.deployed(w)
	w.version = "2"
	e.deployed(w)
	e.rcctl("", "scale", "web", "4", "--yes")
	e.runs(map[string]int{"2": 4})
	e.rcctl("", "rollback", "web", "--yes")
	e.runs(map[string]int{"1": 4})

	w.version = "1"
	if out := e.changes(w); !strings.Contains(out, "stop 2 pods of web-r3") {
		e.t.Errorf("the plan of 2 in place of 4 pods says\n%s", out)
	}
	if out, err := e.tryRcctl(e.document(w), "plan", "-f", "-", "--keep-counts"); err != nil {
		e.t.Errorf("the plan that keeps the counts: %v\n%s", err, out)
	}

	w.version, w.replicas = "3", 1
	e.detached(w)
	e.within(limit, func() error {
		if now := e.versions(); now["3"] == 0 && now["1"] < 4 {
			e.t.Fatalf("the old pods stop before a new one runs: %v", now)
		}
		if r := e.rollout(); r != nil {
			return fmt.Errorf("the rollout goes on: %+v", r)
		}
		return nil
	})
	e.runs(map[string]int{"3": 1})
}

// scaledInMidCourse: a service is scaled during a rollout, and then the rollout goes back. The new number is kept, and
// a plan compares with it.
func scaledInMidCourse(e *env) {
	e.site(2, 1)
	w := web{replicas: 3, version: "1", update: "step: 1"}
	e.deployed(w)
	sick := w
	sick.version, sick.update, sick.env = "2", "step: 1, stage_timeout: 10s", map[string]string{"HELLO_SICK": "1"}
	e.detached(sick)
	e.awaitRollout("moves", func(r *rollout.Record) bool { return r != nil && r.Phase == rollout.Moving })
	e.rcctl("", "scale", "web", "5", "--yes", "--detach")
	e.awaitEnd()
	e.runs(map[string]int{"1": 5})
	out := e.changes(w)
	for _, want := range []string{"count: 5 -> 3", "stop 2 pods of web-r1"} {
		if !strings.Contains(out, want) {
			e.t.Errorf("the plan of 3 pods does not say %q:\n%s", want, out)
		}
	}
	w.replicas = 5
	if out, err := e.tryRcctl(e.document(w), "plan", "-f", "-"); err != nil {
		e.t.Errorf("the plan of what runs: %v\n%s", err, out)
	}
}
