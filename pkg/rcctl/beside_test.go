package rcctl

import (
	"bytes"
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
)

// apply reads a service only to warn that it has the name of a new rc. A token that may not read services is enough.
func TestApplyNeedsNoRightToReadServices(t *testing.T) {
	t.Parallel()
	const management = "21111111-2222-3333-4444-555555555555"
	server, err := consultest.Start(fmt.Sprintf(`{"primary_datacenter": "dc1", "acl": {"enabled": true,
		"default_policy": "deny", "tokens": {"initial_management": %q, "agent": %q}}}`, management, management))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Stop)
	put := func(path string, body any) (made struct{ SecretID string }) {
		t.Helper()
		text, err := json.Marshal(body)
		if err != nil {
			t.Fatal(err)
		}
		consultest.Eventually(t, time.Minute, func() error { // until the server has made its management token
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, "http://"+server.Addr+path,
				bytes.NewReader(text))
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
			return json.NewDecoder(resp.Body).Decode(&made)
		})
		return made
	}
	put("/v1/acl/policy", map[string]string{
		"Name": "rcs", "Rules": `key_prefix "x/" { policy = "write" } key_prefix "x/deployments/" { policy = "deny" }`,
	})
	token := put("/v1/acl/token", map[string]any{"Policies": []map[string]string{{"Name": "rcs"}}}).SecretID
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte(token), 0o600); err != nil {
		t.Fatal(err)
	}
	var out, errs bytes.Buffer
	args := []string{"rcctl", "--consul-addr", server.Addr, "--token-file", file, "--prefix", "x/", "apply", "-f", "-"}
	if code := Main(t.Context(), args, strings.NewReader(goodDocument), &out, &errs); code != exitDone {
		t.Errorf("exit code %d\n%s%s", code, &out, &errs)
	}
}
