package e2e

import (
	"fmt"
	"net/http"
	"strings"
)

// noHealth: a pod without a health check is found while its process runs, and its preparer too. It is not found in a
// crash loop; a restart of the preparer takes it out as little as one with a check; when nothing of the preparer is
// there for longer, only the one with a check is found.
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

// heardSinceRestart returns an error unless a preparer that was started again holds its node and has had its services
// looked at.
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
