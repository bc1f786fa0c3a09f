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

// tokens is a server that notes which token each request bore.
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

func (s *tokens) take() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	seen := s.seen
	s.seen = nil
	return seen
}

func putToken(t *testing.T, file, text string) {
	t.Helper()
	if err := errors.Join(os.WriteFile(file+".new", []byte(text), 0o600), os.Rename(file+".new", file)); err != nil {
		t.Fatal(err)
	}
}

// Each request bears the token that the file holds then. Nothing is sent before there is one: Consul would take it for anonymous. A file
// that has gone bad leaves the last good token in use, and is told once.
func TestTokenFile(t *testing.T) {
	t.Parallel()
	s, file := startTokens(t), filepath.Join(t.TempDir(), "token")
	var told []string
	c := clientOf(t, consul.Config{Address: s.URL, TokenFile: file, Token: "not this", OnTokenFile: func(err error) { told = append(told, err.Error()) }})
	list := func() error { _, err := c.Keys(t.Context(), "x/"); return err }
	for _, text := range []string{"", " \n", "two words\n", "a\x01b"} {
		if text != "" {
			putToken(t, file, text)
		}
		if err := list(); err == nil || !strings.Contains(err.Error(), file) || len(s.take()) != 0 || c.CheckToken() == nil {
			t.Errorf("with %q in the file: %v", text, err)
		}
	}
	if len(told) != 0 {
		t.Errorf("told %v although no token was used before", told)
	}
	putToken(t, file, "first\n")
	before := c.TokenID()
	if err := errors.Join(list(), list(), c.CheckToken()); err != nil || !slices.Equal(s.take(), []string{"first", "first"}) {
		t.Errorf("%v", err)
	}
	putToken(t, file, "second") // as long as the other with its line end
	if err := list(); err != nil || !slices.Equal(s.take(), []string{"second"}) || c.TokenID() == before {
		t.Errorf("%v", err)
	}
	id := c.TokenID()
	putToken(t, file, "")
	if err := errors.Join(list(), list(), os.Remove(file), list(), list()); err != nil || !slices.Equal(s.take(), []string{"second", "second", "second", "second"}) || c.TokenID() != id {
		t.Errorf("%v", err)
	}
	if len(told) != 2 || !strings.Contains(told[0], "holds 0 words") || !strings.Contains(told[1], "no such file") {
		t.Errorf("told %q", told)
	}
}

// The environment counts as it does for Consul's own programs, and a file there that is not there yet keeps nobody from starting.
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
