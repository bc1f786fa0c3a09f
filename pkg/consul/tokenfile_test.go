package consul_test

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/rcfarm/rcfarm/pkg/consul"
)

type tokens struct {
	*httptest.Server
	mu   sync.Mutex
	seen []string
}

func startTokens(t *testing.T) *tokens {
	t.Helper()
	s := &tokens{}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.seen = append(s.seen, r.Header.Get("X-Consul-Token"))
		w.Header().Set("X-Consul-Index", "1")
		_, _ = w.Write([]byte("[]"))
	}))
	t.Cleanup(s.Close)
	return s
}

func (t *tokens) take() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	seen := t.seen
	t.seen = nil
	return seen
}

func putToken(t *testing.T, file, text string) {
	t.Helper()
	if err := errors.Join(os.WriteFile(file+".new", []byte(text), 0o600), os.Rename(file+".new", file)); err != nil {
		t.Fatal(err)
	}
}

// Each request has the present token of the file. Without a token nothing is sent, because Consul would take the
// request for an anonymous one. If the file cannot be read any more, the last token is still used, and this is reported
// once.
func TestTokenFile(t *testing.T) {
	t.Parallel()
	s, file := startTokens(t), filepath.Join(t.TempDir(), "token")
	var reported []string
	c := clientOf(t, consul.Config{
		Address: s.URL, TokenFile: file, Token: "not this",
		OnTokenFile: func(err error) { reported = append(reported, err.Error()) },
	})
	list := func() error { _, err := c.Keys(t.Context(), "x/"); return err }
	for _, text := range []string{"", " \n", "two words\n", "a\x01b"} {
		if text != "" {
			putToken(t, file, text)
		}
		if err := list(); err == nil || !strings.Contains(err.Error(), file) || len(s.take()) != 0 ||
			c.CheckToken() == nil {
			t.Errorf("with %q in the file: %v", text, err)
		}
	}
	if len(reported) != 0 {
		t.Errorf("reported %v although no token was used before", reported)
	}
	putToken(t, file, "first\n")
	before := c.TokenID()
	if err := errors.Join(list(), list(), c.CheckToken()); err != nil ||
		!slices.Equal(s.take(), []string{"first", "first"}) {
		t.Errorf("%v", err)
	}
	putToken(t, file, "second") // the length of the file does not change
	if err := list(); err != nil || !slices.Equal(s.take(), []string{"second"}) || c.TokenID() == before {
		t.Errorf("%v", err)
	}
	id := c.TokenID()
	putToken(t, file, "")
	if err := errors.Join(list(), list(), os.Remove(file), list(), list()); err != nil ||
		!slices.Equal(s.take(), []string{"second", "second", "second", "second"}) || c.TokenID() != id {
		t.Errorf("%v", err)
	}
	if len(reported) != 2 || !strings.Contains(reported[0], "holds 0 words") ||
		!strings.Contains(reported[1], "no such file") {
		t.Errorf("reported %q", reported)
	}
}

// The environment variables work as for Consul's own programs. New returns a client even if their token file does not
// exist yet.
func TestTokenOfTheEnvironment(t *testing.T) {
	s, file := startTokens(t), filepath.Join(t.TempDir(), "token")
	t.Setenv("CONSUL_HTTP_TOKEN", "word")
	for want, cfg := range map[string]consul.Config{"word": {}, "given": {Token: "given"}} {
		cfg.Address = s.URL
		if _, err := clientOf(t, cfg).Keys(t.Context(), "x/"); err != nil || !slices.Equal(s.take(), []string{want}) {
			t.Errorf("want %s: %v", want, err)
		}
	}
	t.Setenv("CONSUL_HTTP_TOKEN_FILE", file)
	c := clientOf(t, consul.Config{Address: s.URL})
	if _, err := c.Keys(t.Context(), "x/"); err == nil || len(s.take()) != 0 {
		t.Errorf("without the file: %v", err)
	}
	putToken(t, file, "filed")
	if _, err := c.Keys(t.Context(), "x/"); err != nil || !slices.Equal(s.take(), []string{"filed"}) {
		t.Errorf("%v", err)
	}
}
