package e2e

import (
	"fmt"
	"net/http"
	"strings"
)

// noHealth: a pod without a health check is found in Consul while its process and its preparer run. It is not found
// while it is in a crash loop. A restart of the preparer deregisters neither this pod nor a pod with a check. When the
// preparer is away for longer, only the pod with a check is found.
func noHealth(e *env) {
	e.startConsul("")
	p := e.preparer(1)
	e.farm("f1", "")
	e.applied(e.hello(1, nil))
	plain := func(command string) string {
		return fmt.Sprintf(`name: plain
replicas: 1
pod:
  version: 1
  id: plain
  min_ready: 0s
  launchables:
    - {name: main, artifact: {kind: exec, path: /bin/sh}, args: [-c, %q], restart: {backoff_max: 1s}}
`, command)
	}
	found := func(want int) {
		e.t.Helper()
		e.within(limit, func() error { return e.passing("plain", want) })
	}
	e.applyText(plain("exec sleep 100000"), "--wait", "--timeout", limit.String())
	found(1)
	p.kill()
	p.startAgain()
	e.within(limit, func() error { return e.heardSinceRestart(p) })
	for _, service := range []string{"plain", "hello"} {
		if err := e.passing(service, 1); err != nil {
			e.t.Error(err)
		}
	}
	p.kill()
	found(0)
	if err := e.passing("hello", 1); err != nil {
		e.t.Error(err)
	}
	p.startAgain()
	found(1)
	e.applyText(plain("exit 3"))
	found(0)
}

func (e *env) heardSinceRestart(p *daemon) error {
	if n := strings.Count(p.logText(), "session taken"); n < 2 {
		return fmt.Errorf("%d sessions were taken, want 2", n)
	}
	var checks map[string]struct{ Status string }
	e.decode(e.request(http.MethodGet, "/v1/agent/checks", nil), &checks)
	if status := checks["rcfarm-node-n1-health"].Status; status != "passing" {
		return fmt.Errorf("the node's own service is %q", status)
	}
	return nil
}
