package registry_test

import (
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/rcfarm/rcfarm/pkg/imagetest"
	"github.com/rcfarm/rcfarm/pkg/internal/archive"
	"github.com/rcfarm/rcfarm/pkg/internal/oci/registry"
)

func TestResolveAsksWithHEAD(t *testing.T) {
	reg := imagetest.New(t)
	first := reg.Put("team/web", v1.MediaTypeImageManifest, []byte(`{}`))
	second := reg.Put("team/web", v1.MediaTypeImageIndex, []byte(`{ }`))
	repo := open(t, quick(reg), reg.Host+"/team/web:stable")
	for _, digest := range []string{first, second} { // the tag moves
		reg.Tag("team/web", "stable", digest)
		if got, err := repo.Resolve(t.Context()); err != nil || got != digest {
			t.Errorf("got %s, %v; want %s", got, err, digest)
		}
		if got := reg.Requests(); len(got) != 1 || got[0] != "HEAD /v2/team/web/manifests/stable" {
			t.Errorf("requests: %q", got)
		}
	}
	gone := open(t, quick(reg), reg.Host+"/team/web:gone")
	if _, err := gone.Resolve(t.Context()); !errors.Is(err, registry.ErrNotFound) {
		t.Error(err)
	}
}

func TestManifest(t *testing.T) {
	reg := imagetest.New(t)
	digest := reg.Put("web", v1.MediaTypeImageManifest, []byte(`{"a":1}`))
	long := reg.Put("web", v1.MediaTypeImageManifest, make([]byte, 2000))
	forged := reg.Put("web", v1.MediaTypeImageManifest, []byte(`{"b":1}`))
	reg.Replace("web", forged, []byte(`{"b":2}`))
	cfg := quick(reg)
	cfg.MaxManifestBytes = 1000
	repo := open(t, cfg, reg.Host+"/web:1")
	if data, err := repo.Manifest(t.Context(), digest); err != nil || string(data) != `{"a":1}` {
		t.Errorf("%q, %v", data, err)
	}
	if _, err := repo.Manifest(t.Context(), long); !errors.Is(err, archive.ErrTooLarge) {
		t.Error(err)
	}
	if _, err := repo.Manifest(t.Context(), forged); !errors.Is(err, registry.ErrDigest) {
		t.Error(err)
	}
	if _, err := repo.Manifest(t.Context(), imagetest.Digest(nil)); !errors.Is(err, registry.ErrNotFound) {
		t.Error(err)
	}
}

// A registry that asks for a pause gets it, and gets no more requests than allowed.
func TestRetryAfter(t *testing.T) {
	reg := imagetest.New(t)
	digest := reg.Put("web", v1.MediaTypeImageManifest, []byte(`{}`))
	reg.Put("web", "", blob)
	var busy atomic.Int32
	reg.Before(func(w http.ResponseWriter, _ *http.Request) bool {
		if busy.Add(-1) < 0 {
			return false
		}
		imagetest.Busy(w, time.Second)
		return true
	})
	cfg := quick(reg)
	cfg.MaxRetryWait = 300 * time.Millisecond
	repo := open(t, cfg, reg.Host+"/web:1")
	busy.Store(1)
	began := time.Now()
	if _, err := repo.Manifest(t.Context(), digest); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took < cfg.MaxRetryWait {
		t.Errorf("sent again after %s, want the longest pause", took)
	}
	busy.Store(1)
	f := newTarget(t, nil)
	if err := f.download(t.Context(), repo, blob); err != nil {
		t.Fatal(err)
	}
	f.wantContent(t, blob)

	cfg.MaxRetryWait = time.Millisecond
	repo = open(t, cfg, reg.Host+"/web:1")
	busy.Store(1000)
	reg.Requests()
	err := newTarget(t, nil).download(t.Context(), repo, blob)
	if err == nil || !strings.Contains(err.Error(), "429") {
		t.Errorf("got %v, want the registry's status", err)
	}
	if got := len(reg.Requests()); got != 4 {
		t.Errorf("%d requests, want 4", got)
	}
}

func TestCustomAuthorities(t *testing.T) {
	reg := imagetest.NewTLS(t)
	digest := reg.Put("web", v1.MediaTypeImageManifest, []byte(`{}`))
	cfg := quick(reg)
	cfg.Hosts = nil
	_, err := open(t, cfg, reg.Host+"/web:1").Manifest(t.Context(), digest)
	if err == nil || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("without the authority: %v", err)
	}
	if got := reg.Requests(); len(got) != 0 {
		t.Errorf("without the authority: %q", got)
	}
	ca := filepath.Join(t.TempDir(), "ca.pem")
	data := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: reg.Server.Certificate().Raw})
	if err := os.WriteFile(ca, data, 0o600); err != nil {
		t.Fatal(err)
	}
	cfg.Hosts = map[string]registry.Host{reg.Host: {CAFile: ca}}
	if _, err := open(t, cfg, reg.Host+"/web:1").Manifest(t.Context(), digest); err != nil {
		t.Error(err)
	}
}

// A registry without TLS is not asked unless the configuration says so.
func TestNoPlainHTTPByItself(t *testing.T) {
	reg := imagetest.New(t)
	digest := reg.Put("web", v1.MediaTypeImageManifest, []byte(`{}`))
	cfg := quick(reg)
	cfg.Hosts = nil
	if _, err := open(t, cfg, reg.Host+"/web:1").Manifest(t.Context(), digest); err == nil {
		t.Error("no error")
	}
	if got := reg.Requests(); len(got) != 0 {
		t.Errorf("requests: %q", got)
	}
}

// private makes a registry ask for a password, or for a token of its token server.
func private(reg *imagetest.Registry, bearer bool) {
	reg.Before(func(w http.ResponseWriter, r *http.Request) bool {
		user, password, _ := r.BasicAuth()
		known := user == "robot" && password == "swordfish"
		if r.URL.Path == "/token" {
			if !known || r.URL.Query().Get("scope") != "repository:web:pull" {
				w.WriteHeader(http.StatusUnauthorized)
			} else {
				_, _ = w.Write([]byte(`{"token":"issued"}`))
			}
			return true
		}
		challenge := `Basic realm="test"`
		if bearer {
			challenge = fmt.Sprintf(`Bearer realm="http://%s/token",service="test",scope="repository:web:pull"`, reg.Host)
			token := r.Header.Get("Authorization")
			known = token == "Bearer issued" || token == "Bearer given"
		}
		if known {
			return false
		}
		w.Header().Set("WWW-Authenticate", challenge)
		w.WriteHeader(http.StatusUnauthorized)
		return true
	})
}

func TestCredentials(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string, mode os.FileMode) string {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	write("docker-credential-farm", "#!/bin/sh\ncat >/dev/null\n"+
		`echo '{"ServerURL":"x","Username":"robot","Secret":"swordfish"}'`+"\n", 0o755)
	write("docker-credential-broken", "#!/bin/sh\necho no keys here; exit 1\n", 0o755)
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	for _, bearer := range []bool{false, true} {
		reg := imagetest.New(t)
		digest := reg.Put("web", v1.MediaTypeImageManifest, []byte(`{}`))
		reg.Put("web", "", blob)
		private(reg, bearer)
		plain := registry.Host{PlainHTTP: true}
		config := write("config.json", `{"auths":{"`+reg.Host+`":{"auth":"cm9ib3Q6c3dvcmRmaXNo"}}}`, 0o600)
		helper := write("helper.json", `{"credHelpers":{"`+reg.Host+`":"farm"}}`, 0o600)
		broken := write("broken.json", `{"credHelpers":{"`+reg.Host+`":"broken"}}`, 0o600)
		empty := write("empty.json", `{}`, 0o600)
		tests := []struct {
			name, config string
			host         registry.Host
			want         string // empty: it succeeds
		}{
			{"config.json", config, plain, ""},
			{"helper", helper, plain, ""},
			{
				"password file", empty,
				registry.Host{PlainHTTP: true, User: "robot", TokenFile: write("pw", "swordfish\n", 0o600)},
				"",
			},
			{"no credentials", empty, plain, registry.ErrDenied.Error()},
			{"broken helper", broken, plain, "no keys here"},
			{
				"wrong password", "",
				registry.Host{PlainHTTP: true, User: "robot", TokenFile: write("bad", "x", 0o600)},
				registry.ErrDenied.Error(),
			},
		}
		if bearer {
			tests = append(tests, struct {
				name, config string
				host         registry.Host
				want         string
			}{"token file", "", registry.Host{PlainHTTP: true, TokenFile: write("token", "given", 0o600)}, ""})
		}
		for _, tt := range tests {
			t.Run(fmt.Sprintf("%s bearer=%v", tt.name, bearer), func(t *testing.T) {
				cfg := quick(reg)
				cfg.DockerConfig, cfg.Hosts = tt.config, map[string]registry.Host{reg.Host: tt.host}
				repo := open(t, cfg, reg.Host+"/web:1")
				_, err := repo.Manifest(t.Context(), digest)
				if err == nil {
					err = newTarget(t, nil).download(t.Context(), repo, blob)
				}
				if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
					t.Errorf("got %v, want %q", err, tt.want)
				}
			})
		}
	}
}

// Storage that a registry redirects to gets no credentials.
func TestCredentialsStayWithTheRegistry(t *testing.T) {
	storage := imagetest.New(t)
	digest := storage.Put("web", "", blob)
	var leaked atomic.Bool
	storage.Before(func(_ http.ResponseWriter, r *http.Request) bool {
		leaked.Store(leaked.Load() || r.Header.Get("Authorization") != "")
		return false
	})
	redirecting := imagetest.New(t)
	redirecting.Before(func(w http.ResponseWriter, r *http.Request) bool {
		if _, _, ok := r.BasicAuth(); !ok {
			w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
			w.WriteHeader(http.StatusUnauthorized)
			return true
		}
		to := url.URL{Scheme: "http", Host: storage.Host, Path: "/v2/web/blobs/" + digest}
		http.Redirect(w, r, to.String(), http.StatusTemporaryRedirect)
		return true
	})
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("swordfish"), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg := quick(redirecting)
	cfg.Hosts = map[string]registry.Host{
		redirecting.Host: {PlainHTTP: true, User: "robot", TokenFile: token}, storage.Host: {PlainHTTP: true},
	}
	f := newTarget(t, blob[:5])
	if err := f.download(t.Context(), open(t, cfg, redirecting.Host+"/web:1"), blob); err != nil {
		t.Fatal(err)
	}
	f.wantContent(t, blob)
	if leaked.Load() {
		t.Error("the storage got the credentials")
	}
	if got := storage.Requests(); len(got) != 1 || !strings.HasSuffix(got[0], "bytes=5-299999") {
		t.Errorf("the storage got %q", got)
	}
}

func TestMissingFilesAreErrors(t *testing.T) {
	reg := imagetest.New(t)
	gone := filepath.Join(t.TempDir(), "gone")
	for _, cfg := range []registry.Config{
		{DockerConfig: gone},
		{Hosts: map[string]registry.Host{reg.Host: {TokenFile: gone}}},
		{Hosts: map[string]registry.Host{reg.Host: {CAFile: gone}}},
	} {
		if _, err := registry.New(cfg).Open(mustParse(t, reg.Host+"/web:1")); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%+v: %v", cfg, err)
		}
	}
}
