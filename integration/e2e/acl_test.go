package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/rcfarm/rcfarm/pkg/consul"
)

const managementToken = "5d9b1a3e-6d0c-4b60-9a5f-3f1f6c1b0a01"

// blindToken: the farm's, then a preparer's token loses read permission. Nothing is stopped or moved, both say why, and
// both go on when they get it back.
func blindToken(e *env) {
	e.startConsul(fmt.Sprintf(`{"acl": {"enabled": true, "default_policy": "deny",
		"tokens": {"initial_management": %q, "agent": %q}}}`, managementToken, managementToken))
	e.connect(managementToken)
	const sees = `key_prefix "rcfarm/" { policy = "write" }`
	const blind = `key_prefix "rcfarm/" { policy = "deny" }`
	const rest = `
		session_prefix "" { policy = "write" }
		service_prefix "" { policy = "write" }
		agent_prefix "" { policy = "read" }
		node_prefix "" { policy = "read" }`
	farmPolicy, farmToken := e.aclToken("farm", sees+rest)
	nodePolicy, nodeToken := e.aclToken("node", sees+rest)
	e.preparer(1, "--token-file", e.tokenFile("node", nodeToken))
	e.preparer(2, "--token-file", e.tokenFile("management", managementToken))
	e.farm("f1", "", "--token-file", e.tokenFile("farm", farmToken))
	e.applied(e.hello(2, nil))
	id := e.rcID("hello")
	processes, placed := e.processes(), e.placements(id)

	// The farm. A reason to look, and to stop one of two: it cannot see it.
	e.aclPolicy(farmPolicy, "farm", blind+rest)
	e.rcctl("", "rc", "scale", "hello", "1")
	e.saysBlind("f1")
	e.sameProcesses(processes, "while the farm is blind")
	for key, rec := range e.placements(id) {
		if rec.Index != placed[key].Index {
			e.t.Errorf("%s was changed by a blind farm", key)
		}
	}
	e.rcctl("", "rc", "scale", "hello", "2")
	e.aclPolicy(farmPolicy, "farm", sees+rest)
	e.within(limit, func() error { return e.converged(id, 2) })
	e.sameProcesses(processes, "after the farm can see again")

	// A preparer. Consul answers a query that waits already with the rights of its start; a new marker value ends it.
	e.aclPolicy(nodePolicy, "node", blind+rest)
	if _, err := e.client.Commit(e.t.Context(), []consul.Op{consul.Set(e.store.Keys().Intents.Below("n1"), []byte("wake"))}); err != nil {
		e.t.Fatal(err)
	}
	e.saysBlind("n1")
	e.rcctl("", "rc", "scale", "hello", "0")
	e.within(limit, func() error {
		for key := range e.processes() {
			if strings.HasSuffix(key, "@n2") {
				return fmt.Errorf("%s still runs", key)
			}
		}
		return nil
	})
	for key, pid := range processes {
		if strings.HasSuffix(key, "@n1") && e.processes()[key] != pid {
			e.t.Errorf("%s was stopped by a blind preparer", key)
		}
	}
	e.aclPolicy(nodePolicy, "node", sees+rest)
	e.within(limit, func() error { return e.converged(id, 0) })
	e.sameProcesses(map[string]int{}, "after the preparer can see again")
	e.applied(e.hello(1, nil))
	e.oneCopyEach()
}

// saysBlind waits until a daemon's log says that its token may not read.
func (e *env) saysBlind(daemon string) {
	e.t.Helper()
	e.within(limit, func() error {
		if text := e.log(daemon); !strings.Contains(text, "ACL") && !strings.Contains(text, "Permission denied") {
			return fmt.Errorf("%s does not say that its token may not read", daemon)
		}
		return nil
	})
}

// aclToken makes a policy and a token with it.
func (e *env) aclToken(name, rules string) (policyID, token string) {
	e.t.Helper()
	policyID = e.aclPolicy("", name, rules)
	var made struct{ SecretID string }
	e.decode(e.put("/v1/acl/token", e.encode(map[string]any{"Policies": []map[string]string{{"ID": policyID}}})), &made)
	return policyID, made.SecretID
}

// tokenFile puts a token into a file, as whoever changes it would: whole.
func (e *env) tokenFile(name, token string) string {
	e.t.Helper()
	file := filepath.Join(e.dir, name+".token")
	if err := errors.Join(os.WriteFile(file+".new", []byte(token+"\n"), 0o600), os.Rename(file+".new", file)); err != nil {
		e.t.Fatal(err)
	}
	return file
}

// aclPolicy makes a policy, or with an id changes it.
func (e *env) aclPolicy(id, name, rules string) string {
	e.t.Helper()
	path := "/v1/acl/policy"
	if id != "" {
		path += "/" + id
	}
	var made struct{ ID string }
	e.decode(e.put(path, e.encode(map[string]string{"Name": name, "Rules": rules})), &made)
	return made.ID
}

func (e *env) encode(v any) []byte {
	data, err := json.Marshal(v)
	if err != nil {
		e.t.Fatal(err)
	}
	return data
}

func (e *env) decode(data []byte, v any) {
	if err := json.Unmarshal(data, v); err != nil {
		e.t.Fatalf("%v in %s", err, data)
	}
}
