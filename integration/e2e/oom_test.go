package e2e

import (
	"fmt"
	"strings"

	"github.com/rcfarm/rcfarm/pkg/pod"
)

// oomTold: a pod is killed at its memory limit. Its report, rcctl, the log and a metric show that. If the machine
// cannot enforce the limit, the pod kills itself, and none of these names memory as the reason.
func oomTold(e *env) {
	e.startConsul("")
	n1 := e.preparer(1)
	e.farm("f1", "")
	e.gateOpen() // before the version gate allows it, reports do not have the reason
	const limit32M = 32 << 20
	// The script doubles a text until it is killed. ulimit protects the machine if the limit does not work.
	script, want := "ulimit -v 1000000; x=0123456789abcdef; while :; do x=$x$x; done",
		fmt.Sprintf("at its memory limit of %d bytes", limit32M)
	log := n1.logText()
	enforced := !strings.Contains(log, "memory limit: ") && !strings.Contains(log, "cgroup: ")
	if !enforced {
		script, want = "kill -KILL $$", "ended by SIGKILL"
	}
	e.applyText(fmt.Sprintf(`name: hungry
replicas: 1
pod:
  version: 1
  id: hungry
  launchables:
  - name: main
    artifact: {kind: exec, path: /bin/sh}
    args: [-c, '%s']
    resources: {memory: 32Mi}
    restart: {backoff_min: 1s, backoff_max: 1s}
`, script))
	e.remember("hungry")
	e.within(limit, func() error {
		return e.isNow("hungry", func(r *pod.Reality) bool {
			return r.LastExit != nil && r.LastExit.OutOfMemory == enforced &&
				strings.Contains(r.LastExit.String(), want)
		})
	})
	e.podsSay(want)
	e.within(limit, func() error {
		_, body, err := n1.asked("/metrics")
		if counted := !strings.Contains(body, "rcfarm_preparer_out_of_memory_total 0\n"); err == nil &&
			counted != enforced {
			err = fmt.Errorf("ends for want of memory are counted: %t; want %t", counted, enforced)
		}
		return err
	})
	if log = n1.logText(); !strings.Contains(log, want) {
		e.t.Errorf("the log does not say %q", want)
	}
	e.t.Logf("the machine enforces memory limits: %t", enforced)
}
