package e2e

import (
	"encoding/json"
	"fmt"
	"strings"
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
	e.preparer(1, "--token", nodeToken)
	e.preparer(2, "--token", managementToken)
	e.farm("f1", "", "--token", farmToken)
	e.applied(e.hello(2, nil))
	id := e.rcID("hello")
	processes, placed := e.processes(), e.placements(id)

	for _, who := range []struct{ daemon, policy, name string }{{"f1", farmPolicy, "farm"}, {"n1", nodePolicy, "node"}} {
		e.aclPolicy(who.policy, who.name, blind+rest)
		e.rcctl("", "rc", "scale", "hello", "1") // a reason to look, and to stop one
		if who.name == "farm" {
			e.within(limit, func() error {
				if text := e.log(who.daemon); !strings.Contains(text, "ACL") && !strings.Contains(text, "Permission denied") {
					return fmt.Errorf("%s does not say that its token may not read", who.daemon)
				}
				return nil
			})
			e.sameProcesses(processes, "while the farm is blind")
			for key, rec := range e.placements(id) {
				if rec.Index != placed[key].Index {
					e.t.Errorf("%s was changed by a blind farm", key)
				}
			}
			e.rcctl("", "rc", "scale", "hello", "2")
		} else {
			e.rcctl("", "rc", "scale", "hello", "2")
			e.within(limit, func() error {
				if text := e.log(who.daemon); !strings.Contains(text, "ACL") && !strings.Contains(text, "Permission denied") {
					return fmt.Errorf("%s does not say that its token may not read", who.daemon)
				}
				return nil
			})
			for key, pid := range processes {
				if strings.HasSuffix(key, "@n1") && e.processes()[key] != pid {
					e.t.Errorf("%s was stopped by a blind preparer", key)
				}
			}
		}
		e.aclPolicy(who.policy, who.name, sees+rest)
		e.within(limit, func() error { return e.converged(id, 2) })
		processes, placed = e.processes(), e.placements(id)
	}
	e.applied(e.hello(1, nil))
	e.oneCopyEach()
}

// aclToken makes a policy and a token with it.
func (e *env) aclToken(name, rules string) (policyID, token string) {
	e.t.Helper()
	policyID = e.aclPolicy("", name, rules)
	var made struct{ SecretID string }
	e.decode(e.put("/v1/acl/token", e.encode(map[string]any{"Policies": []map[string]string{{"ID": policyID}}})), &made)
	return policyID, made.SecretID
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
