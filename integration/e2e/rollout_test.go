package e2e

import (
	"slices"
	"strings"
)

// rollOut: a service goes to a new revision in stages, and its callers see no failed call. Deploying the same document
// again changes nothing, and a plan of this document shows no change. A plan of a new version shows changes.
func rollOut(e *env) {
	e.site(2, 2)
	w := web{replicas: 4, version: "1", update: "step: 2"}
	e.deployed(w)
	calls := e.callService("web")
	if out, err := e.tryRcctl(e.document(w), "plan", "-f", "-"); err != nil {
		e.t.Errorf("plan of the same document: %v\n%s", err, out)
	}
	w.version = "2"
	if out, err := e.tryRcctl(e.document(w), "plan", "-f", "-"); err == nil ||
		!strings.Contains(err.Error(), "exit status 6") {
		e.t.Errorf("plan of a new version: %v\n%s", err, out)
	}
	e.deployed(w)
	calls.awaitVersion("2")
	calls.end()
	e.mustSay([]string{"2 *", "1  ", "done"}, "history", "web")
	e.oneCopyEach()
}

// rollBack: if the pods of a revision turn sick and do not recover, the farm rolls the revision back. An operator can
// roll back a revision that is in effect. In both cases no call fails.
func rollBack(e *env) {
	e.site(2, 1)
	w := web{replicas: 3, version: "1", update: "step: 1"}
	e.deployed(w)
	calls := e.callService("web")
	sick := w
	sick.version, sick.update, sick.env = "2", "step: 1, stage_timeout: 3s", map[string]string{"HELLO_SICK": "1"}
	e.fails(sick, "no progress for 3s", "web-r1 has all pods again")
	e.runs(map[string]int{"1": 3})
	if calls.answers()["2"] > 0 {
		e.t.Error("a sick pod was called")
	}
	w.version = "3"
	e.deployed(w)
	calls.awaitVersion("3")
	e.rcctl("", "rollback", "web", "--yes")
	e.runs(map[string]int{"1": 3})
	calls.awaitVersion("1")
	calls.end()
}

// preDeploy: a program runs once before the first stage. If the program fails, no stage begins, and the end of the
// program's log is reported.
func preDeploy(e *env) {
	e.site(2, 1)
	w := web{replicas: 2, version: "1", fields: "pre_deploy: {env: {HELLO_EXIT: \"0\"}}\n"}
	e.deployed(w)
	w.version, w.fields = "2", "pre_deploy: {env: {HELLO_EXIT: \"7\"}}\n"
	e.fails(w, "exit code 7; its log ends: ending with status 7 as HELLO_EXIT says")
	e.runs(map[string]int{"1": 2})
}

// preDeployStatic: if the first rollout failed before it had pods, the next deployment runs its pre_deploy before its
// first pod, although pods of the service are static.
func preDeployStatic(e *env) {
	e.site(2, 1)
	w := web{replicas: 2, version: "1", fields: "strategy: static\npre_deploy: {env: {HELLO_EXIT: \"7\"}}\n"}
	e.fails(w, "exit", "7")
	e.fails(w, "exit", "7")
	e.runs(map[string]int{})
	w.fields = "strategy: static\npre_deploy: {env: {HELLO_EXIT: \"0\"}}\n"
	e.deployed(w)
	e.mustSay([]string{"3 *", "2  ", "1  ", "done", "failed"}, "history", "web")
}

// hopeless: a revision that can never work fails its stage long before any timeout.
func hopeless(e *env) {
	e.site(2, 1)
	w := web{replicas: 2, version: "1", update: "step: 1, stage_timeout: 1h"}
	e.deployed(w)
	before := e.pids("1")
	ends, refused := w, w
	ends.version, ends.env = "2", map[string]string{"HELLO_FAIL": "1"}
	e.fails(ends, "again and again")
	refused.version, refused.sha256 = "3", strings.Repeat("0", 64)
	e.fails(refused, "another digest")
	if now := e.pids("1"); !slices.Equal(now, before) {
		e.t.Errorf("processes %v, before %v", now, before)
	}
}
