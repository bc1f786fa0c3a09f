package e2e

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// hungProcess: a pod whose health check gets no answer is restarted again and again, reports why, and is ready again
// once its check passes. A pod without restart_after continues to run. If the agent or the preparer is stopped for
// longer than restart_after while the check fails, and the program works again before the agent or the preparer
// continues, no pod is restarted.
func hungProcess(e *env) {
	const after = 10 * time.Second
	e.startConsul("")
	n1 := e.preparer(1)
	e.farm("f1", "")
	hung := filepath.Join(e.dir, "hung")
	web := e.hello(1, map[string]string{"HELLO_HUNG": hung})
	web.RestartAfter, web.HealthTimeout = after.String(), 2*time.Second
	stays := e.hello(1, web.Env)
	stays.Name, stays.Port, stays.HealthTimeout = "stays", 8081, web.HealthTimeout
	e.gateOpen()
	e.applied(web)
	e.applied(stays)
	e.remember("hello", "stays")
	runs := e.processes()
	hang := func() {
		e.t.Helper()
		if err := os.WriteFile(hung, nil, 0o600); err != nil {
			e.t.Fatal(err)
		}
		for _, name := range []string{"hello", "stays"} {
			e.within(limit, func() error {
				return e.isNow(name, func(r *pod.Reality) bool { return r.State == pod.StateUnhealthy })
			})
		}
	}
	heal := func() {
		e.t.Helper()
		if err := os.Remove(hung); err != nil {
			e.t.Fatal(err)
		}
	}
	ready := func(r *pod.Reality) bool { return r.State == pod.StateReady }

	for who, pid := range map[string]int{"agent": e.consul.Proc.Pid, "preparer": n1.current().cmd.Process.Pid} {
		hang()
		e.stop(pid)
		<-time.After(after + 2*time.Second)
		heal()
		if err := syscall.Kill(pid, syscall.SIGCONT); err != nil {
			e.t.Fatal(err)
		}
		for _, name := range []string{"hello", "stays"} {
			e.within(limit, func() error { return e.isNow(name, ready) })
		}
		e.sameProcesses(runs, "after the "+who+" went on")
	}

	hang()
	reason := "its health check failed for " + after.String()
	e.within(limit, func() error {
		return e.isNow("hello", func(r *pod.Reality) bool {
			return r.Restarts > 0 && r.LastExit != nil && r.LastExit.Reason == reason
		})
	})
	if text := e.rcctl("", "pods", "-o", "json"); !strings.Contains(text, reason) {
		e.t.Errorf("rcctl pods does not say why:\n%s", text)
	}
	e.within(limit, func() error {
		return e.isNow("hello", func(r *pod.Reality) bool {
			return r.Restarts > 1 && r.LastExit != nil && r.LastExit.Reason == reason
		})
	})
	if _, body, err := n1.asked("/metrics"); err != nil || strings.Contains(body, "rcfarm_preparer_hung_total 0") {
		e.t.Errorf("the metrics count none: %v", err)
	}
	if log := n1.logText(); !strings.Contains(log, reason) {
		e.t.Error("the log does not say why")
	}
	heal()
	e.within(limit, func() error { return errors.Join(e.isNow("hello", ready), e.isNow("stays", ready)) })
	now := e.processes()
	for key, pid := range runs {
		if same := now[key] == pid; same != strings.HasPrefix(key, e.rcIDs["stays"]) {
			e.t.Errorf("%s had pid %d, now %d", key, pid, now[key])
		}
	}
}

func (e *env) isNow(name string, ok func(*pod.Reality) bool) error {
	recs, _, err := e.store.Realities.List(e.t.Context(), store.Default)
	for i := range recs {
		if r := &recs[i].Value; r.RCID == e.rcIDs[name] && !ok(r) {
			err = errors.Join(err, fmt.Errorf("reality %+v, last exit %+v", *r, r.LastExit))
		} else if r.RCID == e.rcIDs[name] {
			return err
		}
	}
	return errors.Join(err, fmt.Errorf("no report of %s is as wanted", name))
}
