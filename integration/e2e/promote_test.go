package e2e

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/rollout"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// canarySick: a canary runs beside all old pods. When the canary turns sick, it cannot be promoted. If it is sick for
// stage_timeout, the rollout is rolled back.
func canarySick(e *env) {
	e.site(2, 1)
	w := web{replicas: 2, version: "1", update: "step: 1"}
	e.deployed(w)
	hung := filepath.Join(e.dir, "hung")
	w.version, w.env = "2", map[string]string{"HELLO_HUNG": hung}
	w.update = "strategy: canary, canary: {pods: 1}, stage_timeout: 15s"
	e.detached(w)
	e.awaitState(rollout.WaitingForPromote)
	both := map[string]int{"1": 2, "2": 1}
	e.runs(both)

	hang := func() {
		if err := os.WriteFile(hung, nil, 0o600); err != nil {
			e.t.Fatal(err)
		}
		e.awaitRollout("is sick", func(r *rollout.Record) bool { return r != nil && r.Unfit() })
	}
	hang()
	out, err := e.tryRcctl("", "rollout", "promote", "web")
	if err == nil || !strings.Contains(err.Error(), "exit status 4") ||
		!strings.Contains(out, "its new pods are not available any more") {
		e.t.Errorf("promote of what is sick: %v", err)
	}
	e.mustSay([]string{"its new pods are not available any more", "promote --force"}, "rollout", "status", "web")
	if err := os.Remove(hung); err != nil {
		e.t.Fatal(err)
	}
	e.awaitRollout("has available pods again", func(r *rollout.Record) bool {
		return r != nil && r.State == rollout.WaitingForPromote && !r.Unfit()
	})
	e.runs(both)

	hang()
	e.awaitEnd()
	e.runs(map[string]int{"1": 2})
	e.mustSay([]string{"no progress for 15s: 0 of 1 pods of web-r2 are available"}, "history", "web", "-o", "json")
}

// rollbackWaits: a rollback needs a port that is taken. The rollback waits, reports the reason and raises an alert. It
// ends when the port is free. The service is scaled meanwhile. In the end the new number of pods of the former version
// runs.
func rollbackWaits(e *env) {
	const port = 21710
	e.site(3, 1)
	w := web{replicas: 2, version: "1", port: port, update: "order: stop-first, step: 1"}
	e.deployed(w)
	var taken []net.Listener
	take := func() { // the port of a node without an old pod
		e.within(limit, func() error {
			var err error
			for n := 1; n <= 3; n++ {
				var l net.Listener
				if l, err = net.Listen("tcp", net.JoinHostPort(e.address(n), strconv.Itoa(port))); err == nil {
					taken = append(taken, l)
					return nil
				}
			}
			return err
		})
	}
	release := func() {
		for _, l := range taken {
			_ = l.Close()
		}
	}
	e.t.Cleanup(release)
	take()
	w.version, w.port, w.env = "2", 0, map[string]string{"HELLO_SICK": "1"}
	w.update = "order: stop-first, step: 1, stage_timeout: 15s"
	e.detached(w)
	take() // as soon as an old pod has stopped
	r := e.awaitRollout("rolls back and is stuck", func(r *rollout.Record) bool {
		return r != nil && r.State == rollout.RollingBack && r.Stuck != ""
	})
	const why = "1 of 2 pods of web-r1 are available"
	if !strings.Contains(r.Stuck, why) {
		e.t.Errorf("it waits for %q", r.Stuck)
	}
	e.mustSay([]string{"it still waits: no progress for 15s: " + why}, "rollout", "status", "web")
	e.within(limit, func() error {
		st, err := e.store.Statuses.Get(e.t.Context(), store.Default, e.rcID("web-r1"))
		if err == nil && !st.Value.Is(rc.RolloutStuck) {
			err = fmt.Errorf("conditions %+v", st.Value.Conditions)
		}
		return err
	})
	out, err := e.tryRcctl("", "rollout", "status", "web", "-w")
	if err == nil || !strings.Contains(err.Error(), "exit status 5") ||
		!strings.Contains(out, "its rollback waits: no progress for 15s") {
		e.t.Errorf("following a stuck rollback: %v", err)
	}
	e.rcctl("", "scale", "web", "3", "--yes", "--detach")
	release()
	// Before a node lists a port as free, four looks in a row must miss it, and on a busy machine looks are rare. After
	// a restart the node looks at once.
	for _, d := range e.daemons {
		if filepath.Base(d.path) == "preparer" {
			d.kill()
			d.startAgain()
		}
	}
	e.awaitEnd()
	e.runs(map[string]int{"1": 3})
	e.mustSay([]string{"web-r1 has all pods again"}, "history", "web", "-o", "json")
}

// whyItFailed: when a rollout has failed, its pods are gone. rcctl still shows the answers of their checks, how their
// processes ended, and the end of their logs, even if an operator rolled the rollout back.
func whyItFailed(e *env) {
	e.site(1, 1)
	w := web{replicas: 1, version: "1", update: "step: 1"}
	e.deployed(w)
	w.version, w.env, w.update = "2", map[string]string{"HELLO_SICK": "1"},
		"step: 1, stage_timeout: 15s, on_timeout: pause"
	e.detached(w)
	e.awaitState(rollout.Paused)
	why := "main.0 on n1: unhealthy: "
	const answer = "sick as HELLO_SICK says"
	e.mustSay([]string{why, answer}, "rollout", "status", "web")
	e.rcctl("", "rollout", "rollback", "web")
	e.awaitEnd()
	const asked = "while 0 of 1 pods of web-r2 are available; "
	e.mustSay([]string{"why 2 failed: rolled back by", asked + why, answer}, "history", "web")

	w.update = "step: 1, stage_timeout: 15s"
	w.version = "3"
	e.fails(w, why, answer)
	e.mustSay([]string{"why 3 failed: no progress for 15s: 0 of 1 pods of web-r3 are available; " + why, answer},
		"history", "web")

	w.version, w.env = "4", map[string]string{"HELLO_FAIL": "1"}
	dead := []string{"main.0 on n1: ", "ended with exit status 3", "; its log ends: ", "failing as HELLO_FAIL says"}
	e.fails(w, dead...)
	e.mustSay(append(dead, "why 4 failed: "), "history", "web")
}
