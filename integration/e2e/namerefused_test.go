package e2e

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"

	"github.com/rcfarm/rcfarm/pkg/consultest"
)

func aboutPods(r *http.Request) bool {
	body, err := io.ReadAll(r.Body)
	r.Body = io.NopCloser(bytes.NewReader(body))
	text := r.URL.Path + string(body)
	return err != nil || strings.Contains(text, "rcfarm-pod-") || strings.Contains(text, "rcfarm-node-")
}

// nameRefused: a second preparer is started on a node, with the node's name and another data directory. The second
// preparer is refused, and writes nothing about the services of the pods on the node.
func nameRefused(e *env) {
	e.startConsul("")
	e.preparer(1)
	e.farm("f1", "")
	e.applied(e.hello(1, nil))
	processes := e.processes()
	var looks, writes atomic.Int64
	proxy := consultest.StartProxy(e.t, e.consul.Addr)
	proxy.Set(func(r *http.Request) consultest.Verdict {
		switch {
		case r.URL.Path == "/v1/agent/services":
			looks.Add(1)
		case strings.HasPrefix(r.URL.Path, "/v1/agent/") && r.Method != http.MethodGet && aboutPods(r):
			writes.Add(1)
			e.t.Logf("the refused preparer asks for %s %s", r.Method, r.URL.Path)
		}
		return consultest.Forward
	})
	second := e.start("n1-twin", "preparer",
		append(e.common("n1-twin", proxy.Addr), "--node", "n1", "--address", e.address(1))...)
	e.refusedTimes(second, 1)
	since := looks.Load()
	e.within(limit, func() error {
		if now := looks.Load(); now < since+3 {
			return fmt.Errorf("the second preparer has looked at the services %d times since it was refused", now-since)
		}
		return nil
	})
	if n := writes.Load(); n != 0 {
		e.t.Errorf("the second preparer wrote %d times to the agent", n)
	}
	if err := e.passing("hello", 1); err != nil {
		e.t.Error(err)
	}
	e.sameProcesses(processes, "another preparer was refused the name")
}
