package rcctl

import (
	"bytes"
	"crypto/x509"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/consultest"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/preparer/nodeapi"
)

// hintRow is a command that fails, with texts that its output must contain and texts that it must not contain.
type hintRow struct {
	name  string
	args  string
	stdin string
	code  int
	wants []string
	never []string
}

func (h hintRow) check(t *testing.T, addr, prefix string) {
	t.Helper()
	code, out, errs := runAt(t.Context(), addr, prefix, h.stdin, strings.Fields(h.args)...)
	if code != h.code {
		t.Errorf("rcctl %s: exit code %d, want %d\n%s%s", h.args, code, h.code, out, errs)
	}
	for _, want := range h.wants {
		if !strings.Contains(errs, want) {
			t.Errorf("rcctl %s: no %q in\n%s", h.args, want, errs)
		}
	}
	for _, never := range h.never {
		if strings.Contains(errs, never) {
			t.Errorf("rcctl %s: %q in\n%s", h.args, never, errs)
		}
	}
}

const consulHint = "is a Consul agent running there?"

// Only an error that Consul caused blames Consul.
func TestHintsBlameTheSystemThatFailed(t *testing.T) {
	_, prefix := testConn(t)
	served := httptest.NewTLSServer(http.NotFoundHandler())
	t.Cleanup(served.Close)
	plain := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(plain.Close)
	addr := consultest.Shared(t).Addr
	const pin = "correct its url or ref, or write its digest into the document"
	for _, row := range []hintRow{
		{
			name: "artifact host unknown", stdin: unpinned("https://files.invalid/a.tar.gz"),
			wants: []string{"digest of artifact https://files.invalid/a.tar.gz", pin},
		},
		{
			name: "artifact server away", stdin: unpinned("https://127.0.0.1:1/a.tar.gz"),
			wants: []string{"connection refused", pin},
		},
		{
			name: "artifact server not believed", stdin: unpinned(served.URL + "/a.tar.gz"),
			wants: []string{"certificate", pin},
		},
		{
			name:  "artifact server without TLS",
			stdin: unpinned(strings.Replace(plain.URL, "http:", "https:", 1) + "/a.tar.gz"), wants: []string{pin},
		},
		{name: "artifact file missing", stdin: unpinned("file:///nowhere/a.tar"), wants: []string{"no such file", pin}},
	} {
		row.args, row.code, row.never = "plan -f -", exitError, []string{consulHint}
		t.Run(row.name, func(t *testing.T) { row.check(t, addr, prefix) })
	}
	t.Run("consul away", func(t *testing.T) {
		hintRow{args: "rc list", code: exitError, wants: []string{"connection refused", consulHint}}.check(t,
			"127.0.0.1:1", prefix)
	})
	t.Run("consul host unknown", func(t *testing.T) {
		hintRow{args: "rc list", code: exitError, wants: []string{"files.invalid", consulHint}}.check(t,
			"files.invalid:8500", prefix)
	})
	t.Run("consul not believed", func(t *testing.T) {
		hintRow{
			args: "rc list", code: exitError, wants: []string{"certificate", "CONSUL_CACERT"},
			never: []string{consulHint},
		}.check(t, served.URL, prefix)
	})
	t.Run("consul without TLS", func(t *testing.T) {
		hintRow{args: "rc list", code: exitError, wants: []string{"http://"}, never: []string{consulHint}}.check(t,
			strings.Replace(plain.URL, "http:", "https:", 1), prefix)
	})
	leaderless := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "No cluster leader", http.StatusInternalServerError)
	}))
	t.Cleanup(leaderless.Close)
	t.Run("consul without a leader", func(t *testing.T) {
		hintRow{
			args: "rc list", code: exitError, wants: []string{"consul operator raft list-peers"},
			never: []string{consulHint},
		}.check(t, leaderless.Listener.Addr().String(), prefix)
	})
}

// unpinned is the document of a service whose artifact has no digest.
func unpinned(artifact string) string {
	return fmt.Sprintf(`{"name": "lazy", "replicas": 1, "pod": {"version": 1, "id": "lazy", "launchables": [{"name": "a", "artifact": {"kind": "tar", "url": %q}}]}}`, artifact)
}

// rcctl distinguishes a missing token, a token that Consul does not know, and a token without the rights.
func TestHintsAboutTokens(t *testing.T) {
	const management = "11111111-2222-3333-4444-555555555555"
	server, err := consultest.Start(fmt.Sprintf(`{"primary_datacenter": "dc1", "acl": {"enabled": true,
		"default_policy": "deny", "tokens": {"initial_management": %q, "agent": %q}}}`, management, management))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Stop)
	ask := func(method, path, body string) (string, error) {
		req, err := http.NewRequestWithContext(t.Context(), method, "http://"+server.Addr+"/v1/"+path,
			strings.NewReader(body))
		if err != nil {
			return "", err
		}
		req.Header.Set("X-Consul-Token", management)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return "", err
		}
		defer resp.Body.Close()
		var text bytes.Buffer
		if _, err := text.ReadFrom(resp.Body); err != nil {
			return "", err
		}
		if resp.StatusCode != http.StatusOK {
			return "", fmt.Errorf("%s: %s %s", path, resp.Status, &text)
		}
		return text.String(), nil
	}
	const powerless = "66666666-2222-3333-4444-555555555555"
	consultest.Eventually(t, time.Minute, func() error {
		_, err := ask(http.MethodPut, "acl/token", `{"SecretID": "`+powerless+`", "Description": "guest"}`)
		return err
	})
	dir := t.TempDir()
	file := func(name, token string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(token+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	unknown, guest := file("unknown", "77777777-2222-3333-4444-555555555555"), file("guest", powerless)
	const (
		none    = "none was given"
		strange = "Consul does not know the token in the file "
		lacks   = "lacks a permission"
	)
	document := strings.Replace(serviceDocument, "ARG", "a", 1)
	for _, args := range []string{
		"rc list", "rc get web", "nodes", "rollout status web", "plan -f -", "apply -f -",
		"scale web 1 --yes", "node drain n1", "audit",
	} {
		stdin := document
		if args == "apply -f -" {
			stdin = goodDocument
		}
		t.Run(args, func(t *testing.T) {
			row := hintRow{
				args: args, stdin: stdin, code: exitError, wants: []string{none, "--token-file"},
				never: []string{strange, lacks, "the token may not"},
			}
			row.check(t, server.Addr, "x/")
			row.args, row.wants, row.never = args+" --token-file "+
				unknown, []string{strange + unknown}, []string{none, lacks}
			row.check(t, server.Addr, "x/")
			row.args, row.wants, row.never = args+" --token-file "+
				guest, []string{
				"the token in the file " + guest + " " + lacks,
				"rcctl acl policy",
			}, []string{none, strange}
			row.check(t, server.Addr, "x/")
		})
	}
	t.Run("environment", func(t *testing.T) {
		t.Setenv("CONSUL_HTTP_TOKEN", powerless)
		hintRow{args: "rc list", code: exitError, wants: []string{"the token in CONSUL_HTTP_TOKEN " + lacks}}.check(t,
			server.Addr, "x/")
	})
}

// An error between rcctl and a preparer names the preparer, and the flag that corrects it.
func TestHintsAboutPreparers(t *testing.T) {
	t.Parallel()
	secure := httptest.NewTLSServer(http.NotFoundHandler())
	t.Cleanup(secure.Close)
	plain := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(plain.Close)
	believed := x509.NewCertPool()
	believed.AddCert(secure.Certificate())
	for _, tt := range []struct {
		name, url, node string
		roots           *x509.CertPool
		wants           []string
	}{
		{
			"wrong authority", secure.URL, "example.com",
			x509.NewCertPool(),
			[]string{
				"the certificate of the preparer of node example.com", "unknown authority", "--node-ca",
				"RCFARM_NODE_CA",
			},
		},
		{
			"other name", secure.URL, "n1", believed,
			[]string{"the certificate of the preparer of node n1", "not n1", "--api-tls-cert"},
		},
		{
			"without TLS", strings.Replace(plain.URL, "http:", "https:", 1), "n1",
			believed,
			[]string{"node n1", "without TLS", "--api-tls-cert"},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			target, err := nodeapi.ParseTarget(tt.url)
			if err != nil {
				t.Fatal(err)
			}
			client := nodeapi.NewClient(tt.node, target, "", tt.roots)
			defer client.Close()
			_, err = client.Logs(t.Context(), pod.Identity{RCID: "x", Role: "main"}, nodeapi.LogOptions{})
			var errs bytes.Buffer
			std := &stdio{err: &errs}
			if code := std.report(nodeError(client, err)); code != exitError {
				t.Errorf("exit code %d", code)
			}
			for _, want := range tt.wants {
				if !strings.Contains(errs.String(), want) {
					t.Errorf("no %q in\n%s", want, errs.String())
				}
			}
		})
	}
}

// If a word is not a command, the error is about the word, not about the flags after the word.
func TestHintsAboutCommands(t *testing.T) {
	_, prefix := testConn(t)
	addr := consultest.Shared(t).Addr
	const undefined = "not defined"
	for _, row := range []hintRow{
		{args: "deplyo -f x", wants: []string{`rcctl: "deplyo" is no command; did you mean deploy?`}},
		{args: "deplyo", wants: []string{`rcctl: "deplyo" is no command; did you mean deploy?`, "allowed: acl, apply"}},
		{args: "deplyo --help", wants: []string{`"deplyo" is no command`}},
		{args: "help deplyo", wants: []string{`"deplyo" is no command`}},
		{args: "rc lits -o json", wants: []string{`rcctl rc: "lits" is no command; did you mean list?`}},
		{args: "rollout statsu web -w", wants: []string{`rcctl rollout: "statsu" is no command; did you mean status?`}},
		{
			args:  "service show web --output json",
			wants: []string{`rcctl service: "show" is no command; allowed: delete, list or schema`},
		},
		{
			args:  "rc list --ouptut json",
			wants: []string{`rcctl rc list: --ouptut: unknown flag; did you mean --output?`, "allowed: --consul-addr"},
		},
		{args: "rc list -q", wants: []string{`rcctl rc list: -q: unknown flag; allowed: --consul-addr`}},
		{args: "apply --force -f -", wants: []string{`rcctl apply: --force: unknown flag; allowed: `, "--file"}},
		{args: "rc -o json", wants: []string{`rcctl rc: -o: unknown flag; allowed: `}},
	} {
		row.code, row.never = exitUsage, []string{undefined}
		t.Run(row.args, func(t *testing.T) { row.check(t, addr, prefix) })
	}
}

// An error about a service that never existed does not claim that its rollout ended.
func TestHintsAboutRolloutsOfUnknownServices(t *testing.T) {
	s, prefix := testConn(t)
	addr := consultest.Shared(t).Addr
	verbs := []string{"status", "status -w", "pause", "resume", "promote", "abort", "rollback"}
	for _, verb := range verbs {
		hintRow{
			args: "rollout " + verb +
				" never", code: exitNotFound,
			wants: []string{`no service has the name "never"; rcctl service list shows all`},
			never: []string{"rollout under way"},
		}.check(t, addr, prefix)
	}
	if code, out, errs := run(t, prefix, strings.Replace(serviceDocument, "ARG", "a", 1), "deploy", "-f", "-", "--yes",
		"--detach"); code != exitDone {
		t.Fatalf("%d: %s%s", code, out, errs)
	}
	endRollout(t, s, "done", 2)
	for _, verb := range verbs {
		hintRow{
			args: "rollout " + verb +
				" web", code: exitNotFound,
			wants: []string{"service web has no rollout under way; rcctl history web"},
		}.check(t, addr, prefix)
	}
}
