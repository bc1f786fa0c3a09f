//go:build blindfarm

package e2e

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/rcfarm/rcfarm/pkg/inspect"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// This scenario takes 22 minutes, so only `make blind` runs it.
func init() { scenarios = map[string]func(*env){"blind-farm": blindFarm} }

// Consul keeps deletions for 15 minutes.
const (
	stoppedFor = 17 * time.Minute
	cutFor     = 20 * time.Minute
)

// blindFarm: a farm is stopped, and another farm and a preparer are without Consul, until Consul has forgotten what was
// deleted meanwhile. Then Consul has fewer records, and returns a lower index for their keys than the last index that
// these daemons saw. No daemon may conclude from this that the store went back in time.
func blindFarm(e *env) {
	e.startConsul(`{"limits": {"http_max_conns_per_client": 1000}}`) // all daemons are on one machine
	farmsConsul, nodesConsul := newProxy(e.t, e.consul.Addr), newProxy(e.t, e.consul.Addr)
	stopped := e.farm("f1", "")
	cut := e.farm("f2", farmsConsul.addr)
	witness := e.farm("f3", "")
	e.preparer(1)
	e.preparer(2)
	away := e.preparerAt(3, nodesConsul.addr)
	e.applied(e.hello(3, nil))
	e.deployed(web{replicas: 2, version: "1"})
	last := e.hello(2, nil)
	// not on n3, which cannot confirm that its pods have stopped
	last.Name, last.Port, last.Selector = "last", 8090, "rack in (a,b)"
	e.applied(last)
	schema, err := e.store.EnsureSchema(e.t.Context())
	if err != nil {
		e.t.Fatal(err)
	}
	seen := e.index("rcs/", 0)

	stopped.signal(syscall.SIGSTOP)
	farmsConsul.away(true)
	nodesConsul.away(true)
	began := time.Now()
	e.rcctl("", "rc", "delete", "last", "--force", "--wait", "--timeout", limit.String())
	deleted := e.index("rcs/", 0)
	e.within(cutFor, func() error {
		if index := e.index("rcs/", deleted); index >= seen {
			return fmt.Errorf("the index of rcs/ is %d, not below %d: Consul has not forgotten the deletion", index,
				seen)
		}
		return nil
	})
	e.t.Logf("Consul has forgotten the deletion after %s", time.Since(began).Round(time.Second))
	after := func(d time.Duration) {
		e.t.Helper()
		e.within(d+limit, func() error {
			if left := d - time.Since(began); left > 0 {
				return fmt.Errorf("%s are left", left)
			}
			return nil
		})
	}
	after(stoppedFor)
	stopped.signal(syscall.SIGCONT)
	e.members("f1", "f3")
	e.scaledTo("hello", 2)
	after(cutFor)
	farmsConsul.away(false)
	nodesConsul.away(false)
	e.members("f1", "f2", "f3")
	e.within(limit, func() error { return e.nodeIs("n3", "yes", inspect.Alive) })

	e.deployed(web{replicas: 2, version: "2"})
	e.scaledTo("hello", 3)
	now, err := e.store.EnsureSchema(e.t.Context())
	if err != nil || now.Value.Epoch != schema.Value.Epoch || now.Value.WentBack {
		e.t.Errorf("schema %+v, %v; before %+v", now.Value, err, schema.Value)
	}
	for name, n := range e.nodes() {
		if n.Value.WentBack != "" {
			e.t.Errorf("%s says that the store went back from %s", name, n.Value.WentBack)
		}
	}
	acts, _, err := e.store.ListAudit(e.t.Context(), store.AuditFilter{})
	if err != nil {
		e.t.Fatal(err)
	}
	for _, a := range acts {
		if text := fmt.Sprint(a); strings.Contains(text, "went back") {
			e.t.Errorf("the audit log says %s", text)
		}
	}
	for _, d := range []interface{ logText() string }{stopped, cut, witness, away} {
		if strings.Contains(d.logText(), "went back in time") {
			e.t.Error("a daemon says that the store went back in time")
		}
	}
}

// index returns the index of all keys below a part of the prefix. While it is equal to other, index waits up to ten
// seconds.
func (e *env) index(part string, other int) int {
	e.t.Helper()
	url := fmt.Sprintf("http://%s/v1/kv/%s%s?keys&wait=10s&index=%d", e.consul.Addr, store.DefaultPrefix, part, other)
	req, err := http.NewRequestWithContext(e.t.Context(), http.MethodGet, url, nil)
	if err != nil {
		e.t.Fatal(err)
	}
	resp, err := (&http.Client{Timeout: limit}).Do(req)
	if err != nil {
		e.t.Fatal(err)
	}
	defer resp.Body.Close()
	index, err := strconv.Atoi(resp.Header.Get("X-Consul-Index"))
	if err != nil {
		e.t.Fatalf("%s: status %s, %v", url, resp.Status, err)
	}
	return index
}
