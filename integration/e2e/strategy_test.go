package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/rcfarm/rcfarm/pkg/rollout"
)

// canary: the new revision has only one pod until an operator promotes it.
func canary(e *env) {
	e.site(2, 1)
	w := web{replicas: 3, version: "1", update: "step: 3"}
	e.deployed(w)
	w.version, w.update = "2", "strategy: canary, canary: {pods: 1}"
	e.detached(w)
	e.awaitState(rollout.WaitingForPromote)
	if got := e.versions(); got["2"] != 1 {
		e.t.Errorf("versions %v while the canary waits", got)
	}
	e.rcctl("", "rollout", "promote", "web")
	e.awaitEnd()
	e.runs(map[string]int{"2": 3})
}

// blueGreen: the pods of the new revision are standbys. They are healthy, but no client calls them until the new
// revision takes the name over. The switch of the name restarts no pod, and no call fails. If another revision replaces
// a standby revision, its pods use the capacity of the standby pods.
func blueGreen(e *env) {
	e.site(2, 1)
	w := web{replicas: 3, version: "1", update: "step: 3"}
	e.deployed(w)
	calls := e.callService("web")
	for _, version := range []string{"2", "3"} {
		w.version, w.update = version, "strategy: blue-green, keep_old: 1s"
		e.detached(w)
		e.awaitState(rollout.WaitingForPromote)
		e.runs(map[string]int{"1": 3, version: 3})
		e.within(limit, func() error { return e.passing("web-standby", 3) })
	}
	if got := calls.answers(); len(got) > 1 {
		e.t.Errorf("calls answered by versions %v while others than 1 stood by", got)
	}
	green := e.pids("3")
	e.rcctl("", "rollout", "promote", "web")
	e.awaitEnd()
	e.runs(map[string]int{"3": 3})
	calls.awaitVersion("3")
	calls.end()
	e.within(limit, func() error { return e.passing("web-standby", 0) })
	if now := e.pids("3"); !slices.Equal(now, green) {
		e.t.Errorf("processes %v, while they stood by %v", now, green)
	}
}

// inPlace: pods are upgraded where they are, under the same identities.
func inPlace(e *env) {
	e.site(2, 1)
	w := web{replicas: 3, version: "1", update: "step: 3"}
	e.deployed(w)
	before := e.processes()
	w.version, w.update = "2", "strategy: in-place, step: 1"
	e.deployed(w)
	after := e.processes()
	for key, pid := range before {
		if after[key] == 0 || after[key] == pid {
			e.t.Errorf("%s was not upgraded in place: pid %d, before %d", key, after[key], pid)
		}
	}
}

// turnedBack: an operator can roll back a revision that waits for promote, and a revision that has already taken the
// name over. No call fails, clients do not call standby pods, and no pod is restarted when it becomes a standby or a
// usual pod.
func turnedBack(e *env) {
	e.site(2, 1)
	w := web{replicas: 3, version: "1", update: "step: 3"}
	e.deployed(w)
	calls := e.callService("web")
	back := func(version, update string, promoted func()) {
		w.version, w.update = version, update
		e.detached(w)
		e.awaitState(rollout.WaitingForPromote)
		promoted()
		e.rcctl("", "rollout", "rollback", "web")
		e.awaitEnd()
		e.runs(map[string]int{"1": 3})
	}
	back("2", "strategy: canary, step: 3", func() {})
	blue := e.pids("1")
	back("3", "strategy: blue-green", func() {})
	back("4", "strategy: blue-green, keep_old: 1h", func() {
		e.rcctl("", "rollout", "promote", "web")
		e.awaitRollout("keeps the old pods", func(r *rollout.Record) bool {
			return r != nil && r.Phase == rollout.Keeping
		})
		calls.awaitVersion("4")
		e.within(limit, func() error { return e.passing("web-standby", 3) })
	})
	calls.awaitVersion("1")
	if now := e.pids("1"); !slices.Equal(now, blue) {
		e.t.Errorf("processes %v, before the others stood by %v", now, blue)
	}
	calls.end()
	if n := calls.answers()["3"]; n > 0 {
		e.t.Errorf("%d calls of pods that stood by", n)
	}
}

// backInPlace: in an upgrade in place, the first pod does not recover from being sick. This pod gets the old version
// again on its node, and the other pods are not changed.
func backInPlace(e *env) {
	e.site(2, 1)
	w := web{replicas: 3, version: "1", update: "step: 3"}
	e.deployed(w)
	calls := e.callService("web")
	before := e.processes()
	w.version, w.update, w.env = "2", "strategy: in-place, step: 1, stage_timeout: 8s",
		map[string]string{"HELLO_SICK": "1"}
	e.fails(w, "no progress for 8s", "has all pods again")
	e.runs(map[string]int{"1": 3})
	calls.end()
	other := 0
	for key, pid := range e.processes() {
		if before[key] == 0 {
			e.t.Errorf("%s was not there before", key)
		}
		if before[key] != pid {
			other++
		}
	}
	if other != 1 || calls.answers()["2"] > 0 {
		e.t.Errorf("%d pods have another process, want 1; answers by versions %v, want none of 2", other,
			calls.answers())
	}
}

// gates: if a webhook does not agree to a stage, the rollout waits before this stage. With --skip-gates, webhooks are
// not asked.
func gates(e *env) {
	e.site(2, 1)
	var agrees atomic.Bool
	var asked atomic.Int64
	hook := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body) // a body that was cut off is not valid JSON
		if !json.Valid(body) || r.Method != http.MethodPost {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		if asked.Add(1); !agrees.Load() {
			http.Error(w, "not on a Friday", http.StatusServiceUnavailable)
		}
	}))
	e.t.Cleanup(hook.Close)
	w := web{
		replicas: 2, version: "1",
		update: fmt.Sprintf("step: 1, gates: {before_stage: [{url: %q, retries: 100}]}", hook.URL),
	}
	e.deployed(w, "--skip-gates")
	if n := asked.Load(); n > 0 {
		e.t.Errorf("asked %d times with --skip-gates", n)
	}
	w.version = "2"
	e.detached(w)
	e.awaitRollout("was refused", func(r *rollout.Record) bool {
		return r != nil && r.Gate != nil && strings.Contains(r.Gate.Error, "503")
	})
	e.runs(map[string]int{"1": 2})
	agrees.Store(true)
	e.awaitEnd()
	e.runs(map[string]int{"2": 2})
}
