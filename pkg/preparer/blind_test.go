package preparer_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"testing"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/consultest"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/store"
)

const managementToken = "6ba7b810-9dad-11d1-80b4-00c04fd430c8"

// A preparer whose token may not read intents keeps its lock and its pods, reports the pods, and logs the reason.
func TestTokenThatReadsNoIntentsStopsNothing(t *testing.T) {
	t.Parallel()
	server, err := consultest.Start(fmt.Sprintf(`{
		"primary_datacenter": "dc1",
		"acl": {
			"enabled": true, "default_policy": "deny", "tokens": {"initial_management": %[1]q, "agent": %[1]q}
		}
	}`, managementToken))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Stop)
	acl := aclAPI{t: t, addr: server.Addr}
	admin := acl.client(managementToken)
	consultest.Eventually(t, patience, func() error {
		_, err := admin.Commit(t.Context(), []consul.Op{consul.Set("ready", nil)})
		return err
	})
	b := newBenchAt(t, admin, "blind/")
	b.runAs(acl.client(acl.token("full", "")))
	a := b.start()
	digest := b.upload(b.sleeper("1"))
	b.write(intent(0, digest, pod.Running, 10))
	b.awaitReady(0, digest, 10)
	pid := b.pid(0)
	a.stop()

	b.runAs(acl.client(acl.token("blind", `key_prefix "blind/intent/" { policy = "deny" }`)))
	b.commit(consul.Delete(b.keys.Realities.Key(b.cfg.Node.Name, identity(0).String())))
	b.write(intent(0, digest, pod.Stopped, 11))
	b.start()
	b.awaitLog("intents cannot be read; pods keep running as they are: the ACL token lacks a read permission")
	b.awaitNode("the lock, and no epoch", func(n node.Node, session string) bool {
		return session != "" && n.Epoch == "" && len(n.Orphans) == 0
	})
	b.awaitReady(0, digest, 10)
	b.mustKeepPID(0, pid)

	acl.setPolicy("blind", "")
	b.awaitState(0, pod.StateStopped, 11, "")
	b.awaitServing()
	b.awaitLog("works again")
}

func (b *bench) runAs(c *consul.Client) {
	b.own, b.cfg.Store, b.cfg.Services = c, store.New(c, b.keys), c.Services
}

type aclAPI struct {
	t    *testing.T
	addr string
}

func (a aclAPI) client(token string) *consul.Client {
	a.t.Helper()
	c, err := consul.New(consul.Config{Address: a.addr, Token: token})
	if err != nil {
		a.t.Fatal(err)
	}
	a.t.Cleanup(c.Close)
	return c
}

func (a aclAPI) token(name, extra string) string {
	a.t.Helper()
	a.put("/v1/acl/policy", map[string]any{"Name": name, "Rules": policyRules(extra)}, nil)
	var made struct{ SecretID string }
	a.put("/v1/acl/token", map[string]any{"Policies": []map[string]string{{"Name": name}}}, &made)
	return made.SecretID
}

func (a aclAPI) setPolicy(name, extra string) {
	a.t.Helper()
	var policy struct{ ID string }
	a.call(http.MethodGet, "/v1/acl/policy/name/"+name, nil, &policy)
	a.put("/v1/acl/policy/"+policy.ID, map[string]any{"ID": policy.ID, "Name": name, "Rules": policyRules(extra)}, nil)
}

func policyRules(extra string) string {
	return `
		key_prefix "blind/" { policy = "write" }
		session_prefix "" { policy = "write" }
		service_prefix "" { policy = "write" }
		agent_prefix "" { policy = "read" }
		node_prefix "" { policy = "read" } ` + extra
}

func (a aclAPI) put(path string, in, out any) {
	a.t.Helper()
	a.call(http.MethodPut, path, in, out)
}

func (a aclAPI) call(method, path string, in, out any) {
	a.t.Helper()
	body, err := json.Marshal(in)
	if err != nil {
		a.t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(a.t.Context(), method, "http://"+a.addr+path, bytes.NewReader(body))
	if err != nil {
		a.t.Fatal(err)
	}
	req.Header.Set("X-Consul-Token", managementToken)
	req.Close = true
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		a.t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		a.t.Fatalf("%s %s: %s", method, path, resp.Status)
	}
	if out == nil {
		return
	}
	if err := json.NewDecoder(resp.Body).Decode(out); err != nil {
		a.t.Fatal(err)
	}
}
