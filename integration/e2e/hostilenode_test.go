package e2e

import (
	"fmt"
	"io"
	"math"
	"net/http"
	"strings"

	"github.com/rcfarm/rcfarm/pkg/store"
)

type hostile struct {
	*env
	node, token, session string            // token hides env.token, which rcctl uses
	rcs                  map[string]string // ids of controllers; none has a pod on the node
}

func (h *hostile) may(method, path, body string) string {
	h.t.Helper()
	req, err := http.NewRequestWithContext(h.t.Context(), method, "http://"+h.consul.Addr+path, strings.NewReader(body))
	if err != nil {
		h.t.Fatal(err)
	}
	req.Header.Set("X-Consul-Token", h.token)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		h.t.Fatal(err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		h.t.Fatalf("%s %s: status %d, %s %v", method, path, resp.StatusCode, answer, err)
	}
	return string(answer)
}

func (h *hostile) puts(key, text string) { h.t.Helper(); h.may(http.MethodPut, "/v1/kv/"+key, text) }

// says writes the node's record under the intruder's own session. more has further fields, as JSON.
func (h *hostile) says(more string) {
	h.t.Helper()
	key := h.store.Keys().Nodes.Key(h.node)
	h.may(http.MethodPut, "/v1/kv/"+key+"?acquire="+h.session,
		fmt.Sprintf(`{"name":%q,"address":"127.0.0.1","consul_node":"","capacity":{"slots":9},%s}`, h.node, more))
}

func (h *hostile) lists(edition string, orphans ...string) {
	h.t.Helper()
	h.puts(h.store.Keys().OrphanPages.Key(h.node, "0"),
		fmt.Sprintf(`{"node":%q,"page":0,"edition":%q,"nonce":"n","orphans":[%s]}`, h.node,
			edition, strings.Join(orphans, ",")))
	h.says(fmt.Sprintf(`"orphan_pages":{"edition":%q,"count":1,"orphans":%d}`, edition, len(orphans)))
}

func (h *hostile) orphan(rc, role string, index int64, digest string, more string) string {
	return fmt.Sprintf(
		`{"rc_id":%q,"role":%q,"index":%d,"pod_id":"hello","digest":%q,"revision":7,"reason":"orphaned"%s}`,
		h.rcs[rc], role, index, digest, more)
}

var hostileDeeds = []struct {
	name string
	does func(h *hostile)
}{
	{"a list of -1 orphans", func(h *hostile) { h.says(`"orphan_pages":{"edition":"e","count":1,"orphans":-1}`) }},
	{"a list on 2,000,000,000 pages", func(h *hostile) {
		h.says(fmt.Sprintf(`"orphan_pages":{"edition":"e","count":2000000000,"orphans":%d}`, math.MaxInt64))
	}},
	{"a regression to what is no epoch", func(h *hostile) { h.says(`"regressed":"zz"`) }},
	{"a regression of the far future", func(h *hostile) { h.says(`"regressed":"7zzzzzzzzzzzzzzzzzzzzzzzzz"`) }},
	{"orphans that cannot be", func(h *hostile) {
		digest := strings.Repeat("d", 64)
		h.lists("cannot-be", h.orphan("hello", "main", 0, "", ""), h.orphan("hello", "main", -1, digest, ""),
			h.orphan("hello", "", 0, digest, ""), h.orphan("hello", "../..", 5, digest, ""),
			h.orphan("hello", "main", math.MaxInt64, digest, ""),
			h.orphan("hello", "main", 6, digest, `,"ports":{"http":70000}`),
			h.orphan("hello", "main", 7, digest, `,"memory":-1`), `null`, `7`)
	}},
	{"pods of every controller, placed elsewhere", func(h *hostile) {
		digest := strings.Repeat("d", 64)
		h.lists("others", h.orphan("hello", "main", 0, digest, ""), h.orphan("other", "main", 0, digest, ""),
			h.orphan("hello", "main", 1, digest, fmt.Sprintf(`,"revision":%d`, math.MaxInt64)))
	}},
	{"pages of 500 KiB", func(h *hostile) {
		for n := range 8 {
			h.puts(h.store.Keys().OrphanPages.Key(h.node, fmt.Sprint(n)), strings.Repeat("x", 500<<10))
		}
		h.says(`"orphan_pages":{"edition":"e","count":8,"orphans":9}`)
	}},
	{"a record of another node", func(h *hostile) {
		h.puts(h.store.Keys().Nodes.Key(h.node), `{"name":"n1","capacity":{"slots":9}}`)
	}},
	{"text that is no record", func(h *hostile) {
		key := h.store.Keys().Nodes.Key(h.node)
		h.puts(key, `{`)
		h.puts(key, strings.Repeat("[", 100<<10))
	}},
	{"a hundred thousand labels", func(h *hostile) {
		labels := make([]string, 0, 30_000)
		for i := range 30_000 {
			labels = append(labels, fmt.Sprintf(`"l%d":"x"`, i))
		}
		h.says(`"labels":{` + strings.Join(labels, ",") + `}`)
	}},
	{"room without end", func(h *hostile) {
		h.says(fmt.Sprintf(`"port_range":{"min":1,"max":%d},"ports_in_use":[-1,70000],"ttl":"2562047h"`, math.MaxInt64))
	}},
	{"reports of pods that are elsewhere", func(h *hostile) {
		for _, id := range h.rcs {
			for i := range 3 {
				h.puts(h.store.Keys().Realities.Key(h.node, fmt.Sprintf("%s/main.%d", id, i)), fmt.Sprintf(
					`{"rc_id":%q,"role":"main","index":%d,"node":%q,"digest":"x","state":"stopped",`+
						`"revision":%d,"restarts":-1}`, id, i, h.node, math.MaxInt64))
			}
		}
	}},
	{"drops without end", func(h *hostile) {
		for _, id := range h.rcs {
			h.puts(h.store.Keys().Drops.Key(id, h.node), fmt.Sprint(math.MaxInt64))
			h.puts(h.store.Keys().Drops.Key(id, "n1"), fmt.Sprint(math.MaxInt64))
		}
	}},
	{"shares without end", func(h *hostile) {
		h.puts(h.store.Keys().Reservations.Key(h.node),
			fmt.Sprintf(`{"holders":{"x":{"cpu":%d,"memory":-1,"ports":[1,1,70000]},"y":{"memory":%d}}}`, math.MaxInt64,
				math.MaxInt64))
	}},
	{"word from the year 9999, and bells", func(h *hostile) {
		h.puts(h.store.Keys().HeardNodes.Key(h.node), `{"at":"9999-12-31T23:59:59-23:59","every_seconds":1e300}`)
		for _, id := range h.rcs {
			h.puts(h.store.Keys().Bells.Key(id), strings.Repeat("x", 100<<10))
		}
	}},
}

// hostileNode: an intruder with one node's token writes one bad record after the other. Each time the other nodes and
// all controllers continue to work, and no farm has to begin a new session.
func hostileNode(e *env) {
	agent := e.startGuarded()
	farm := e.tokensOf(1, "farm", "--agent", agent)[0].SecretID
	var farms []*daemon
	for _, id := range []string{"f1", "f2"} {
		farms = append(farms, e.farm(id, "", "--token-file", e.tokenFile("farm", farm)))
	}
	for n := 1; n <= 3; n++ {
		name := fmt.Sprintf("n%d", n)
		e.preparer(n, "--token-file",
			e.tokenFile(name, e.tokensOf(1, "preparer", "--node", name, "--agent", agent)[0].SecretID))
	}
	token := e.tokensOf(1, "preparer", "--node", "n9", "--agent", agent)[0].SecretID
	e.token = e.tokensOf(1, "operator")[0].SecretID
	other := e.hello(1, nil)
	other.Name, other.Port = "other", 8090
	e.applied(e.hello(2, nil))
	e.applied(other)
	e.deployed(web{replicas: 2, version: "1", update: "step: 1"})
	h := &hostile{env: e, node: "n9", token: token, rcs: map[string]string{}}
	all, _, err := e.store.RCs.List(e.t.Context(), store.Consistent)
	if err != nil || len(all) != 3 {
		e.t.Fatalf("%d controllers, %v", len(all), err)
	}
	for i := range all {
		h.rcs[all[i].Value.Name] = all[i].Value.ID
	}
	var session struct{ ID string }
	e.decode([]byte(h.may(http.MethodPut, "/v1/session/create",
		fmt.Sprintf(`{"Node":%q,"TTL":"600s","LockDelay":"0s"}`, agent))), &session)
	h.session = session.ID
	before := e.farmSessions()
	for i, deed := range hostileDeeds {
		e.t.Logf("the node's token writes %s", deed.name)
		deed.does(h)
		e.scaledTo("hello", 3-i%2)
		e.scaledTo("other", 1+i%2)
		e.listsNodes()
		if after := e.farmSessions(); fmt.Sprint(after) != fmt.Sprint(before) {
			e.t.Fatalf("%s: farms have begun again: %v, before %v", deed.name, after, before)
		}
	}
	for _, f := range farms {
		if text := f.logText(); strings.Contains(text, "panic") || strings.Contains(text, "goroutine ") {
			e.t.Errorf("%s panicked:\n%s", f.name, f.logTail(50))
		}
	}
	e.deployed(web{replicas: 2, version: "2", update: "step: 1"})
}

// listsNodes needs the other nodes in rcctl nodes, and, for an unreadable record, its name and the cure.
func (e *env) listsNodes() {
	e.t.Helper()
	out, err := e.tryRcctl("", "nodes")
	for _, name := range []string{"n1", "n2", "n3"} {
		if !strings.Contains(out, "\n"+name+" ") {
			e.t.Errorf("rcctl nodes does not show %s: %v", name, err)
		}
	}
	if err != nil && !(strings.Contains(out, "unreadable record "+e.store.Keys().Nodes.Key("n9")) &&
		strings.Contains(out, "next: ")) {
		e.t.Error(err)
	}
}

// Copies that only the hostile node reports do not count for scaledTo.
func (e *env) scaledTo(name string, n int) {
	e.t.Helper()
	e.rcctl("", "rc", "scale", name, fmt.Sprint(n))
	id := e.rcID(name)
	e.within(limit, func() error {
		st, err := e.store.Statuses.Get(e.t.Context(), store.Consistent, id)
		if err == nil && (st.Value.Desired != n || st.Value.Available != n) {
			err = fmt.Errorf("%s has %d pods available of %d, want %d: %v", name, st.Value.Available,
				st.Value.Desired, n, st.Value.Conditions)
		}
		return err
	})
}

func (e *env) farmSessions() map[string]string {
	e.t.Helper()
	recs, _, err := e.store.Farms.List(e.t.Context(), store.Consistent)
	if err != nil {
		e.t.Fatal(err)
	}
	sessions := map[string]string{}
	for _, r := range recs {
		sessions[r.Value.ID] = r.Session
	}
	return sessions
}
