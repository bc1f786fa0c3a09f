package rcctl

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/consultest"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// A reader sees that a machine is lost because its Consul agent has failed, although no record has this yet. If the
// token may not read agents, the node's ALIVE is no, and there is no error.
func TestReaderSeesLostNodes(t *testing.T) {
	const management = "6ba7b810-9dad-11d1-80b4-00c04fd430c9"
	server, err := consultest.Start(fmt.Sprintf(`{"primary_datacenter": "dc1", "acl": {"enabled": true, "default_policy": "deny",
		"tokens": {"initial_management": %q, "agent": %q}}}`, management, management))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Stop)
	put := func(path, body string) (made struct{ ID, SecretID string }) {
		t.Helper()
		consultest.Eventually(t, time.Minute, func() error { // until the server has made its management token
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, "http://"+server.Addr+path,
				strings.NewReader(body))
			if err != nil {
				return err
			}
			req.Header.Set("X-Consul-Token", management)
			resp, err := http.DefaultClient.Do(req)
			if err != nil {
				return err
			}
			defer resp.Body.Close()
			if resp.StatusCode != http.StatusOK {
				return errors.New(resp.Status)
			}
			_ = json.NewDecoder(resp.Body).Decode(&made) // some answer with true
			return nil
		})
		return made
	}
	keys, err := store.NewKeys("rcfarm/")
	if err != nil {
		t.Fatal(err)
	}
	put("/v1/kv/"+keys.Nodes.Key("n1"), `{"name": "n1", "address": "127.0.0.1", "consul_node": "dead"}`)
	put("/v1/catalog/register",
		`{"Node": "dead", "Address": "127.0.0.1", "Check": {"CheckID": "serfHealth", "Name": "Serf Health Status", "Status": "critical"}}`)
	var rules bytes.Buffer
	if code := Main(t.Context(), []string{"rcctl", "acl", "policy", "reader"}, nil, &rules, &rules); code != exitDone {
		t.Fatal(rules.String())
	}
	for name, tt := range map[string]struct{ rules, alive, state string }{
		"reader":     {rules.String(), "lost", "lost"},
		"keys-alone": {`key_prefix "rcfarm/" { policy = "read" }`, "no", "away"},
		"without-checks": {
			`key_prefix "rcfarm/" { policy = "read" } node_prefix "other" { policy = "read" }`, "no",
			"away",
		},
	} {
		policy, err := json.Marshal(map[string]string{"Name": name, "Rules": tt.rules})
		if err != nil {
			t.Fatal(err)
		}
		put("/v1/acl/policy", string(policy))
		token := put("/v1/acl/token", fmt.Sprintf(`{"Policies": [{"Name": %q}]}`, name)).SecretID
		file := filepath.Join(t.TempDir(), "token")
		if err := os.WriteFile(file, []byte(token), 0o600); err != nil {
			t.Fatal(err)
		}
		with := func(args ...string) string {
			var out, errs bytes.Buffer
			all := append([]string{"rcctl", "--consul-addr", server.Addr, "--token-file", file}, args...)
			if code := Main(context.Background(), all, nil, &out, &errs); code != exitDone ||
				strings.Contains(errs.String(), "ACL") {
				t.Errorf("%s: %v: exit code %d\n%s", name, args, code, errs.String())
			}
			return out.String()
		}
		if table := strings.Fields(with("nodes")); len(table) < 14 || table[12] != "n1" || table[13] != tt.alive {
			t.Errorf("%s: want %s:\n%q", name, tt.alive, table)
		}
		if text := with("nodes", "-o", "json"); !strings.Contains(text, `"state": "`+tt.state+`"`) {
			t.Errorf("%s: want %s:\n%s", name, tt.state, text)
		}
	}
}
