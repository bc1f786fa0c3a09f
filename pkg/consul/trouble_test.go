package consul_test

import (
	"errors"
	"net"
	"testing"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/consultest"
)

// TokenTrouble distinguishes a missing token, an unknown token, and a token that lacks a right.
func testTokenTrouble(t *testing.T, g guarded) {
	guest := g.token(t, `key_prefix "open/" { policy = "read" }`)
	for name, tt := range map[string]struct {
		token string
		want  consul.TokenTrouble
	}{
		"none":      {"", consul.TokenMissing},
		"unknown":   {"99999999-2222-3333-4444-555555555555", consul.TokenUnknown},
		"powerless": {guest, consul.TokenLacks},
	} {
		c := clientOf(t, consul.Config{Address: g.addr, Token: tt.token})
		_, listed := c.List(t.Context(), "hidden/", consul.Default)
		_, read := c.Get(t.Context(), "hidden/a", consul.Default)
		_, many := c.GetMany(t.Context(), []string{"hidden/a"}, consul.Default)
		_, written := c.Commit(t.Context(), []consul.Op{consul.Set("hidden/a", nil)})
		for what, err := range map[string]error{"list": listed, "read": read, "read many": many, "write": written} {
			if got, _ := c.TokenTrouble(err); got != tt.want {
				t.Errorf("%s: %s: %d, want %d: %v", name, what, got, tt.want, err)
			}
		}
	}
	c := clientOf(t, consul.Config{Address: g.addr, Token: guest})
	for _, err := range []error{nil, consul.ErrNotFound, errors.New("odd")} {
		if got, _ := c.TokenTrouble(err); got != consul.TokenFine {
			t.Errorf("%v: %d", err, got)
		}
	}
}

// An error without an answer names Consul, and wraps the first error.
func TestAway(t *testing.T) {
	t.Parallel()
	c := clientOf(t, consul.Config{Address: "127.0.0.1:1"})
	_, err := c.Get(t.Context(), "a", consul.Default)
	var away *consul.AwayError
	var network *net.OpError
	if !errors.As(err, &away) || away.Address != "127.0.0.1:1" || !errors.As(err, &network) || away.Timeout() {
		t.Errorf("%v: %+v", err, away)
	}
	proxy := consultest.StartProxy(t, consultest.Shared(t).Addr)
	answered := clientOf(t, consul.Config{Address: proxy.Addr})
	if _, err := answered.Get(t.Context(), "no/such", consul.Default); errors.As(err, &away) {
		t.Errorf("an answer: %v", err)
	}
}
