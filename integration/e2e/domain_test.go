package e2e

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"strings"

	"github.com/rcfarm/rcfarm/pkg/rollout"
)

// domain: the domain of host names belongs to the cluster, so no command can forget it. A new domain does not change
// pods by itself, in a rollout under way, or with a scaling. The next deploy of the same document uses the new domain,
// and the plan shows this. A rollback restores the host name of that time.
func domain(e *env) {
	e.site(2, 1)
	e.within(limit, func() error { // the leader raises the gate first
		_, err := e.tryRcctl("", "domain", "set", "old.example")
		return err
	})
	w := web{replicas: 2, version: "1", update: "step: 2"}
	e.deployed(w)
	e.released()
	e.hosts("web.old.example", 2)
	before := e.processes()
	out, err := e.tryRcctl(e.document(w), "deploy", "-f", "-", "--yes")
	if err != nil || !strings.Contains(out, "up to date") {
		e.t.Errorf("the same document, %v: %s", err, out)
	}

	e.rcctl("", "domain", "set", "new.example")
	w.replicas = 3
	e.rcctl("", "scale", "web", "3", "--yes")
	e.runs(map[string]int{"1": 3})
	e.released()
	now := e.processes()
	maps.DeleteFunc(now, func(name string, _ int) bool { return before[name] == 0 })
	if !maps.Equal(now, before) {
		e.t.Errorf("a scaling under another domain: %v ran, and now %v", before, now)
	}
	e.hosts("web.old.example", 3)

	out, err = e.tryRcctl(e.document(w), "plan", "-f", "-")
	for _, want := range []string{
		`"web.old.example" -> "web.new.example"  (it follows the cluster's domain: `,
		"warning: the document has not changed; its pods change because the cluster's domain is new.example now",
	} {
		if err == nil || !strings.Contains(out, want) {
			e.t.Errorf("the plan does not say %q: %v, %s", want, err, out)
		}
	}
	e.rcctl(e.document(w), "deploy", "-f", "-", "--yes")
	e.released()
	e.hosts("web.new.example", 3)

	w.version, w.update = "2", "step: 1, delay: 1s"
	e.detached(w)
	e.awaitRollout("has begun", func(r *rollout.Record) bool { return r != nil })
	e.rcctl("", "domain", "set", "last.example")
	e.runs(map[string]int{"2": 3})
	e.released()
	e.hosts("web.new.example", 3)

	out = e.rcctl("", "rollback", "web", "--to", "1", "--yes")
	const want = "this restores its host name web.old.example, too: the domain is last.example"
	if !strings.Contains(out, want) {
		e.t.Errorf("going back does not say %q: %s", want, out)
	}
	e.runs(map[string]int{"1": 3})
	e.released()
	e.hosts("web.old.example", 3)
}

func (e *env) hosts(want string, pods int) {
	e.t.Helper()
	e.within(limit, func() error {
		var found []struct {
			Service struct{ Meta map[string]string }
		}
		if err := json.Unmarshal(e.request(http.MethodGet, "/v1/health/service/web", nil), &found); err != nil {
			return err
		}
		hosts := map[string]int{}
		for _, f := range found {
			hosts[f.Service.Meta["host"]]++
		}
		if !maps.Equal(hosts, map[string]int{want: pods}) {
			return fmt.Errorf("the host names in Consul are %v, want %d of %s", hosts, pods, want)
		}
		return nil
	})
}
