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

// blindToken: first the farm's token and then a preparer's token lose the permission to read. Nothing is stopped or
// moved. Both daemons report the reason, and continue their work when their tokens have the permission again.
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

	// It should stop one of two pods, but it cannot read the controller's new record.
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

	// A waiting query keeps the rights that it had when it was sent. A new value of the marker key ends it.
	e.aclPolicy(nodePolicy, "node", blind+rest)
	if _, err := e.client.Commit(e.t.Context(),
		[]consul.Op{consul.Set(e.store.Keys().Intents.Below("n1"), []byte("wake"))}); err != nil {
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

func (e *env) saysBlind(daemon string) {
	e.t.Helper()
	e.within(limit, func() error {
		if text := e.log(daemon); !strings.Contains(text, "ACL") && !strings.Contains(text, "Permission denied") {
			return fmt.Errorf("%s does not say that its token may not read", daemon)
		}
		return nil
	})
}

func (e *env) aclToken(name, rules string) (policyID, token string) {
	e.t.Helper()
	policyID = e.aclPolicy("", name, rules)
	var made struct{ SecretID string }
	e.decode(e.put("/v1/acl/token", e.encode(map[string]any{"Policies": []map[string]string{{"ID": policyID}}})), &made)
	return policyID, made.SecretID
}

func (e *env) tokenFile(name, token string) string {
	e.t.Helper()
	file := filepath.Join(e.dir, name+".token")
	if err := errors.Join(os.WriteFile(file+".new", []byte(token+"\n"), 0o600),
		os.Rename(file+".new", file)); err != nil {
		e.t.Fatal(err)
	}
	return file
}

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
