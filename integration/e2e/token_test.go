package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/rcfarm/rcfarm/pkg/inspect"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// startGuarded starts a Consul that denies by default, and returns its agent's name.
func (e *env) startGuarded() (agent string) {
	e.t.Helper()
	e.startConsul(fmt.Sprintf(`{"acl": {"enabled": true, "default_policy": "deny",
		"tokens": {"initial_management": %q, "agent": %q}}}`, managementToken, managementToken))
	e.connect(managementToken)
	e.within(limit, func() (err error) { agent, err = e.client.AgentNode(e.t.Context()); return err })
	return agent
}

type bearer struct{ SecretID, AccessorID string }

func (e *env) tokensOf(n int, role string, flags ...string) []bearer {
	e.t.Helper()
	name := strings.Join(append([]string{role}, flags...), "")
	e.aclPolicy("", strings.ReplaceAll(name, "--", "-"),
		e.rcctl("", append([]string{"acl", "policy", role}, flags...)...))
	made := make([]bearer, n)
	for i := range made {
		e.decode(e.put("/v1/acl/token",
			e.encode(map[string]any{"Policies": []map[string]string{{"Name": strings.ReplaceAll(name, "--", "-")}}})),
			&made[i])
	}
	return made
}

func (e *env) revoke(b bearer) {
	e.t.Helper()
	e.request(http.MethodDelete, "/v1/acl/token/"+b.AccessorID, nil)
}

func (e *env) refusedTo(token, method, path, body string) {
	e.t.Helper()
	req, err := http.NewRequestWithContext(e.t.Context(), method, "http://"+e.consul.Addr+path, strings.NewReader(body))
	if err != nil {
		e.t.Fatal(err)
	}
	req.Header.Set("X-Consul-Token", token)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		e.t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusForbidden {
		e.t.Errorf("%s %s: status %d, want it refused", method, path, resp.StatusCode)
	}
}

// aclPolicies: Consul denies by default. A farm, a preparer, an operator and a reader do their work with the policies
// that rcctl prints, and are refused everything else.
func aclPolicies(e *env) {
	agent := e.startGuarded()
	farm := e.tokensOf(1, "farm", "--agent", agent)[0].SecretID
	n1 := e.tokensOf(1, "preparer", "--node", "n1", "--agent", agent)[0].SecretID
	n2 := e.tokensOf(1, "preparer", "--node", "n2", "--agent", agent)[0].SecretID
	operator, reader := e.tokensOf(1, "operator")[0].SecretID, e.tokensOf(1, "reader")[0].SecretID
	f := e.farm("f1", "", "--token-file", e.tokenFile("farm", farm))
	p1 := e.preparer(1, "--token-file", e.tokenFile("n1", n1))
	p2 := e.preparer(2, "--token-file", e.tokenFile("n2", n2))

	e.token = operator
	e.applied(e.hello(2, nil))
	id := e.rcID("hello")
	e.within(limit, func() error { return e.heard("farms", "f1") })
	e.within(limit, func() error { return errors.Join(e.heard("nodes", "n1"), e.heard("nodes", "n2")) })
	e.rcctl("", "label", "node", "n1", "disk=ssd")
	e.rcctl("", "rc", "scale", "hello", "1", "--wait", "--timeout", limit.String())
	for _, node := range []string{"n1", "n2"} { // both nodes take a pod and lose it
		e.rcctl("", "node", "drain", node, "--wait", "--timeout", limit.String())
		e.rcctl("", "node", "undrain", node)
	}
	e.rcctl("", "rc", "scale", "hello", "2", "--wait", "--timeout", limit.String())
	e.rcctl("", "node", "sweep", "n1", "--dry-run")
	e.rcctl("", "farm", "resume")
	e.token = reader
	for _, line := range []string{
		"rc list", "rc get hello", "rc status hello", "rc explain hello", "pods", "nodes",
		"farms", "farms -o wide", "audit",
	} {
		if out, err := e.tryRcctl("", strings.Fields(line)...); err != nil || !strings.Contains(line, "audit") &&
			!strings.Contains(out, "n1") && !strings.Contains(out, "f1") && !strings.Contains(out, "hello") {
			e.t.Errorf("a reader: %v\n%s", err, out)
		}
	}
	for _, line := range []string{
		"rc scale hello 1", "node cordon n1",
		"rc delete hello", "node sweep n1", "farm resume",
	} {
		if out, err := e.tryRcctl("", strings.Fields(line)...); err == nil && !strings.Contains(out, "nothing") {
			e.t.Errorf("a reader may do %s: %s", line, out)
		}
	}
	e.token = managementToken
	for _, node := range []string{"n1", "n2"} {
		e.within(limit, func() error { return e.doorsAre(node, "closed") })
	}
	e.refusedAll(agent, map[string]string{"farm": farm, "n1": n1, "operator": operator, "reader": reader})
	e.oneCopyEach()

	e.restartWith(p1, "rack=a", "rack=z")
	found, _, err := e.store.ReservationsOf(e.t.Context(), []string{"n1"})
	if err != nil || found["n1"].Value.Labels.Own != node.LabelVersion(map[string]string{"rack": "z"}) {
		e.t.Errorf("reservation %+v, %v; its preparer was started with other labels", found["n1"].Value, err)
	}

	// Requests without a token, for example of pods, get rights, and the node reports it after its next check.
	e.put("/v1/acl/token/00000000-0000-0000-0000-000000000002", e.encode(map[string]any{
		"Policies": []map[string]string{{"ID": e.aclPolicy("", "anonymous",
			`key_prefix "rcfarm/" { policy = "write" }`)}},
	}))
	p1.kill()
	p1.startAgain()
	e.within(limit, func() error { return e.doorsAre("n1", "open") })

	e.token = operator
	e.rcctl("", "rc", "delete", "hello", "--force", "--wait", "--timeout", limit.String())
	if left := e.placements(id); len(left) > 0 {
		e.t.Errorf("placements are left: %v", left)
	}
	for _, d := range []*daemon{f, p1, p2} {
		if text := d.logText(); strings.Contains(text, "Permission denied") ||
			strings.Contains(text, "filtered by ACLs") || strings.Contains(text, "lacks a") {
			e.t.Errorf("%s was refused something that it needs", d.name)
		}
	}
}

func (e *env) doorsAre(name, want string) error {
	if v := e.nodeView(name); v.Anonymous != want || v.Shut {
		return fmt.Errorf("node %s says %q, shut: %t; want %q", name, v.Anonymous, v.Shut, want)
	}
	return nil
}

// refusedAll tries with each token what only others may do.
func (e *env) refusedAll(agent string, tokens map[string]string) {
	e.t.Helper()
	keys := e.store.Keys()
	e.put("/v1/catalog/register", []byte(`{"Node": "elsewhere", "Address": "127.9.9.9"}`))
	var session struct{ ID string }
	e.decode(e.put("/v1/session/create", []byte(`{"Node": "elsewhere", "NodeChecks": [], "Name": "another's"}`)),
		&session)
	service := func(name string) string { return fmt.Sprintf(`{"ID": "x", "Name": %q}`, name) }
	for who, token := range tokens {
		e.refusedTo(token, http.MethodPut, "/v1/session/destroy/"+session.ID, "")
		e.refusedTo(token, http.MethodPut, "/v1/session/create", `{"Node": "elsewhere", "NodeChecks": []}`)
		e.refusedTo(token, http.MethodPut, "/v1/kv/elsewhere", "x")
		e.refusedTo(token, http.MethodGet, "/v1/kv/elsewhere", "")
		e.refusedTo(token, http.MethodGet, "/v1/acl/tokens", "")
		e.refusedTo(token, http.MethodPut, "/v1/agent/leave", "")
		if who != "n1" {
			e.refusedTo(token, http.MethodPut, "/v1/agent/service/register", service("web"))
		}
	}
	for _, who := range []string{"operator", "reader"} {
		e.refusedTo(tokens[who], http.MethodPut, "/v1/session/create", fmt.Sprintf(`{"Node": %q}`, agent))
		e.refusedTo(tokens[who], http.MethodPut, "/v1/agent/service/register", service("rcfarm-farm"))
	}
	for _, name := range []string{"rcfarm-farm", "rcfarm-other"} {
		e.refusedTo(tokens["n1"], http.MethodPut, "/v1/agent/service/register", service(name))
	}
	writes := []string{
		keys.Intents.Below("n1") + "rc/main.0", keys.Intents.Below("n2"), keys.Realities.Below("n2") + "rc/main.0",
		keys.Realities.Below("n10") + "rc/main.0", keys.OrphanPages.Key("n2", strconv.Itoa(0)),
		keys.Nodes.Key("n2"), keys.HeardNodes.Key("n2"), keys.HeardFarms.Key("f1"), keys.RCs.Key("rc"),
		keys.Names.Key("hello"), keys.Locks.Key("rc"), keys.Pods.Below("rc") + "main.0",
		keys.Reservations.Key("n2"), keys.Reservations.Key("n10"),
		keys.NodeOps.Key("n1"), keys.Requests.Below("rc") + "x", keys.Farms.Key("f1"), keys.Statuses.Key("rc"),
		keys.Breaker.Key(), keys.Schema.Key(), keys.Settings.Key(), keys.Synced.Key(),
		keys.Manifests.Key("d"), keys.Audits.Key("a"),
	}
	for _, key := range writes {
		e.refusedTo(tokens["n1"], http.MethodPut, "/v1/kv/"+key, "x")
		e.refusedTo(tokens["n1"], http.MethodDelete, "/v1/kv/"+key, "")
		e.refusedTo(tokens["reader"], http.MethodPut, "/v1/kv/"+key, "x")
	}
	for _, key := range []string{
		keys.Intents.Below("n2") + "rc/main.0", keys.Realities.Below("n2") + "rc/main.0",
		keys.Nodes.Key("n2"), keys.RCs.Key("rc"), keys.Pods.Below("rc") + "main.0", keys.Breaker.Key(),
	} {
		e.refusedTo(tokens["n1"], http.MethodGet, "/v1/kv/"+key, "")
	}
}

func (e *env) heard(kind, name string) error {
	farms, nodes, err := e.store.HeardOf(e.t.Context())
	if err != nil {
		return err
	}
	if h, has := map[string]map[string]store.Heard{"farms": farms, "nodes": nodes}[kind][name]; !has ||
		h.Silent(time.Now()) {
		return fmt.Errorf("%s of %s were heard: %+v", name, kind, h)
	}
	return nil
}

// Bounds of docs/runbook.md, longer for a busy machine.
const (
	farmRefused = 20*time.Second + limit/4
	nodeRefused = 2*time.Minute + limit/4
)

// tokenRotation: the token files of a farm and a preparer change, and the first tokens are deleted. Sessions and pods
// are kept, and the pods' health still reaches Consul. Then Consul refuses the new tokens, too: another farm takes
// over. The node is first silent and then not alive, but its pod continues to run.
func tokenRotation(e *env) {
	agent := e.startGuarded()
	farm := e.tokensOf(2, "farm", "--agent", agent)
	node := e.tokensOf(2, "preparer", "--node", "n1", "--agent", agent)
	farmFile, nodeFile := e.tokenFile("farm", farm[0].SecretID), e.tokenFile("node", node[0].SecretID)
	p := e.preparer(1, "--token-file", nodeFile)
	f := e.farm("f1", "", "--token-file", farmFile)
	e.applied(e.hello(1, nil))
	id := e.rcID("hello")
	pods, sessions := e.processes(), e.sessions(id)
	e.argumentsHide(farm[0].SecretID, node[0].SecretID)

	e.tokenFile("farm", farm[1].SecretID)
	e.tokenFile("node", node[1].SecretID)
	e.within(limit, func() error { return says(f, `"registered with another token"`) })
	e.within(limit, func() error { return says(p, `"registered with another token"`) })
	e.within(limit, func() error { return says(p, "services registered with another token") })
	e.revoke(farm[0])
	e.revoke(node[0])
	gone := time.Now()
	e.within(limit, func() error {
		return errors.Join(e.heardSince("farms", "f1", gone), e.heardSince("nodes", "n1", gone))
	})
	if now := e.sessions(id); !slices.Equal(now, sessions) {
		e.t.Errorf("the sessions were %v, now %v", sessions, now)
	}
	e.sameProcesses(pods, "after the tokens were changed")
	for _, pid := range pods { // the agent sends the pod's health to the servers with the new token
		e.stop(pid)
		e.within(limit, func() error { return e.passing("hello", 0) })
		if err := syscall.Kill(pid, syscall.SIGCONT); err != nil {
			e.t.Fatal(err)
		}
		e.within(limit, func() error { return e.passing("hello", 1) })
	}
	e.within(limit, func() error { return e.converged(id, 1) })

	e.farm("f2", "", "--token-file", e.tokenFile("management", managementToken))
	e.within(limit, func() error { return e.heard("farms", "f2") })
	e.revoke(farm[1])
	refused := time.Now()
	e.rcctl("", "rc", "scale", "hello", "0", "--wait", "--timeout", limit.String())
	if took := time.Since(refused); took > farmRefused {
		e.t.Errorf("the controller was worked on %s after its farm's token was refused", took)
	} else {
		e.t.Logf("the controller was worked on after %s", took.Round(time.Second))
	}
	e.rcctl("", "rc", "scale", "hello", "1", "--wait", "--timeout", limit.String())

	// rcctl shows the node as silent before it shows it as dead.
	pods = e.processes()
	e.within(limit, func() error { return e.heard("nodes", "n1") })
	e.revoke(node[1])
	refused = time.Now()
	silent := false
	e.within(nodeRefused+limit, func() error {
		v := e.nodeView("n1")
		silent = silent || v.Alive && v.Silent
		if v.Alive {
			return errors.New("n1 is alive")
		}
		return nil
	})
	took := time.Since(refused)
	e.t.Logf("the node was not alive any more after %s", took.Round(time.Second))
	if took > nodeRefused || !silent {
		e.t.Errorf("after %s; said to be silent before: %t", took, silent)
	}
	if err := says(p, "ACL not found"); err != nil {
		e.t.Error(err)
	}
	e.sameProcesses(pods, "while the preparer's token is refused")
	e.tokenFile("node", managementToken)
	e.within(limit, func() error {
		if !e.nodeView("n1").Alive {
			return errors.New("n1 is not alive again")
		}
		return e.converged(id, 1)
	})
	e.sameProcesses(pods, "with a good token again")
}

func (e *env) sessions(rcID string) []string {
	e.t.Helper()
	keys := e.store.Keys()
	var all []string
	for _, key := range []string{keys.Nodes.Key("n1"), keys.Farms.Key("f1"), keys.Locks.Key(rcID)} {
		var found []struct{ Session string }
		e.decode(e.request(http.MethodGet, "/v1/kv/"+key, nil), &found)
		if len(found) != 1 || found[0].Session == "" {
			e.t.Fatalf("%s is held by %+v", key, found)
		}
		all = append(all, found[0].Session)
	}
	return all
}

func (e *env) argumentsHide(tokens ...string) {
	e.t.Helper()
	var shown [][]byte
	for _, d := range e.daemons {
		data, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", d.current().cmd.Process.Pid))
		if err != nil {
			e.t.Fatal(err)
		}
		shown = append(shown, data)
		if status, body, err := d.asked("/debug/pprof/cmdline"); err != nil || status != http.StatusNotFound {
			e.t.Errorf("%s shows its arguments: %d %s %v", d.name, status, body, err)
		}
	}
	for _, pid := range e.processes() {
		data, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
		if err != nil {
			e.t.Fatal(err)
		}
		shown = append(shown, data)
	}
	for _, token := range tokens {
		for _, data := range shown {
			if bytes.Contains(data, []byte(token)) {
				e.t.Errorf("a token stands in %q", data)
			}
		}
	}
}

func says(d *daemon, text string) error {
	if !strings.Contains(d.logText(), text) {
		return fmt.Errorf("%s does not say %s", d.name, text)
	}
	return nil
}

func (e *env) heardSince(kind, name string, moment time.Time) error {
	farms, nodes, err := e.store.HeardOf(e.t.Context())
	if err == nil && !map[string]map[string]store.Heard{"farms": farms, "nodes": nodes}[kind][name].At.After(moment) {
		err = fmt.Errorf("%s of %s was not heard since", name, kind)
	}
	return err
}

func (e *env) passing(service string, n int) error {
	var found []json.RawMessage
	e.decode(e.request(http.MethodGet, "/v1/health/service/"+service+"?passing", nil), &found)
	if len(found) != n {
		return fmt.Errorf("%d instances of %s pass, want %d", len(found), service, n)
	}
	return nil
}

func (e *env) nodeView(name string) inspect.NodeView {
	e.t.Helper()
	var views []inspect.NodeView
	// rcctl may print notes after the JSON.
	if err := json.NewDecoder(strings.NewReader(e.rcctl("", "nodes", "-o", "json"))).Decode(&views); err != nil {
		e.t.Fatal(err)
	}
	for _, v := range views {
		if v.Name == name {
			return v
		}
	}
	e.t.Fatalf("no node %s in %+v", name, views)
	return inspect.NodeView{}
}
