package e2e

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
	"time"

	"github.com/rcfarm/rcfarm/integration/cluster"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// hungSupervisor: a supervisor is stopped, and one pod dies. Log, metric, node record and realities report it within 30
// s, the dead pod is not available any more, a stop reports what it waits for, and nothing is ended. When the
// supervisor continues, all reports return to normal by themselves.
func hungSupervisor(e *env) {
	e.startConsul("")
	n1 := e.preparer(1)
	e.farm("f1", "")
	web, doomed := e.hello(1, nil), e.hello(1, nil)
	doomed.Name, doomed.Port = "doomed", 8081
	spare := e.hello(1, nil)
	spare.Name, spare.Port = "spare", 8082
	for _, one := range []cluster.Hello{web, doomed, spare} {
		e.applied(one)
	}
	e.remember("hello", "doomed", "spare")
	runs := e.pidOf("hello", 0)
	says := func(silent bool) error {
		if n := e.nodes()["n1"].Value; n.SupervisorSilent != silent || n.EnforcesStopAfter == silent {
			return fmt.Errorf("the node's record says %+v", n)
		}
		want := "rcfarm_preparer_supervisor_answers 1"
		if silent {
			want = "rcfarm_preparer_supervisor_answers 0"
		}
		if _, body, err := n1.asked("/metrics"); err != nil || !strings.Contains(body, want) {
			return fmt.Errorf("the metrics do not say %q: %w", want, err)
		}
		return nil
	}
	e.within(limit, func() error { return says(false) })

	dead := e.pidOf("doomed", 0)
	pid := e.supervisors(1)[0]
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		e.t.Fatal(err)
	}
	defer func() { _ = syscall.Kill(pid, syscall.SIGCONT) }()
	hung := time.Now()
	if err := syscall.Kill(dead, syscall.SIGKILL); err != nil {
		e.t.Fatal(err)
	}
	e.rcctl("", "rc", "delete", "spare", "--force", "--allow-mass-stop")
	e.within(limit, func() error { return says(true) })
	e.within(limit, func() error {
		return errors.Join(e.said("doomed", pod.StateFailed, false), e.said("hello", pod.StateReady, true),
			e.said("spare", pod.StateStopping, false))
	})
	if took := time.Since(hung); took > 30*time.Second {
		e.t.Errorf("reported only after %s", took)
	} else {
		e.t.Logf("reported everywhere after %s", took.Round(100*time.Millisecond))
	}
	if log := n1.logText(); !strings.Contains(log, "nothing can be started or stopped on this node") {
		e.t.Error("the log does not say so")
	}

	if err := syscall.Kill(pid, syscall.SIGCONT); err != nil {
		e.t.Fatal(err)
	}
	e.within(limit, func() error { return says(false) })
	for _, name := range []string{"hello", "doomed"} {
		e.within(limit, func() error { return e.converged(e.rcIDs[name], 1) })
	}
	e.within(limit, func() error {
		recs, _, err := e.store.Realities.List(e.t.Context(), store.Default)
		for _, rec := range recs {
			if strings.Contains(rec.Value.Message, "does not answer") ||
				rec.Value.RCID == e.rcIDs["spare"] && rec.Value.State != pod.StateStopped {
				err = fmt.Errorf("reality %+v", rec.Value)
			}
		}
		return err
	})
	if now := e.pidOf("hello", 0); now != runs {
		e.t.Errorf("process %d is now %d", runs, now)
	}
}

func (e *env) said(name string, state pod.State, available bool) error {
	recs, _, err := e.store.Realities.List(e.t.Context(), store.Default)
	if err != nil {
		return err
	}
	for _, rec := range recs {
		if r := rec.Value; r.RCID == e.rcIDs[name] && r.State == state && r.Available == available &&
			strings.Contains(r.Message, "supervisor does not answer") {
			return nil
		}
	}
	return fmt.Errorf("pod of %s is not %s", name, state)
}
