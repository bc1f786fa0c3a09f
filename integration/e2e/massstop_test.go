package e2e

import (
	"errors"
	"fmt"
	"strings"

	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// massStopAllowed: a deploy, and then a scaling, stop so many pods that the breaker trips. The same command with
// --allow-mass-stop allows these stops. They happen after rcctl farm resume, as the runbook describes. If nothing has
// to change, or the stops are already allowed, a command with --allow-mass-stop answers "up to date" and writes
// nothing.
func massStopAllowed(e *env) {
	e.site(2, 1)
	const many = 14
	full := web{replicas: many, version: "1"}
	few := web{replicas: 2, version: "1"}
	e.deployed(full)
	allow := []string{"--yes", "--detach", "--allow-mass-stop"}
	e.writesNothing(e.document(full), append([]string{"deploy", "-f", "-"}, allow...)...)

	for _, tt := range []struct {
		left  int
		stdin string
		args  []string
	}{
		{2, e.document(few), []string{"deploy", "-f", "-"}},
		{1, "", []string{"scale", "web", "1"}},
	} {
		e.deployed(full)
		processes := e.processes()
		e.rcctl(tt.stdin, append(tt.args, "--yes", "--detach")...)
		id := e.rcID("web-r1")
		e.statusIs(id, func(st *rc.Status) bool { return st.Is(rc.BreakerTripped) })
		allowed := append(tt.args, allow...)
		if out := e.rcctl(tt.stdin, allowed...); !strings.Contains(out,
			"let the mass-stop breaker pass web-r1; what it withholds stops after rcctl farm resume") ||
			strings.Contains(out, "up to date") {
			e.t.Errorf("rcctl %s says\n%s", strings.Join(allowed, " "), out)
		}
		e.writesNothing(tt.stdin, allowed...)
		e.sameProcesses(processes, "with the breaker tripped, though the stops are allowed")
		e.rcctl("", "farm", "resume")
		e.within(limit, func() error { return e.converged(id, tt.left) })
		e.runs(map[string]int{"1": tt.left})
		e.writesNothing(tt.stdin, allowed...)
	}
}

// writesNothing needs the answer "up to date", and an unchanged controller and audit trail.
func (e *env) writesNothing(stdin string, args ...string) {
	e.t.Helper()
	look := func() string {
		e.t.Helper()
		id := e.rcID("web-r1")
		ctrl, err := e.store.RCs.Get(e.t.Context(), store.Consistent, id)
		acts, _, listErr := e.store.ListAudit(e.t.Context(), store.AuditFilter{RCID: id})
		if err := errors.Join(err, listErr); err != nil {
			e.t.Fatal(err)
		}
		asked := 0
		for _, a := range acts {
			if a.Who != "f1" {
				asked++
			}
		}
		return fmt.Sprintf("index %d of generation %d, %d acts", ctrl.Index, ctrl.Value.Generation, asked)
	}
	was := look()
	if out := e.rcctl(stdin, args...); !strings.Contains(out, "up to date") {
		e.t.Errorf("rcctl %s is not up to date:\n%s", strings.Join(args, " "), out)
	}
	if now := look(); now != was {
		e.t.Errorf("rcctl %s: was %s, is %s", strings.Join(args, " "), was, now)
	}
}
