package consul_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/consultest"
)

const managementToken = "6ba7b810-9dad-11d1-80b4-00c04fd430c8"

type guarded struct {
	addr string
	raw  *api.Client // has all rights
}

func startGuarded(t *testing.T) guarded {
	t.Helper()
	server, err := consultest.Start(fmt.Sprintf(`{"primary_datacenter": "dc1", "acl": {"enabled": true,
		"default_policy": "deny", "tokens": {"initial_management": %q, "agent": %q}}}`,
		managementToken, managementToken))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Stop)
	g := guarded{addr: server.Addr, raw: rawAPI(t, server.Addr, managementToken)}
	consultest.Eventually(t, patience, func() error {
		_, err := g.raw.KV().Put(&api.KVPair{Key: "ready"}, nil)
		return err
	})
	return g
}

func (g guarded) client(t *testing.T, rules string) *consul.Client {
	t.Helper()
	return clientOf(t, consul.Config{Address: g.addr, Token: g.token(t, rules)})
}

func (g guarded) token(t *testing.T, rules string) string {
	t.Helper()
	secret, _ := g.tokenWith(t, rules)
	return secret
}

// tokenWith returns a token with only these rules, and the accessor id for its deletion.
func (g guarded) tokenWith(t *testing.T, rules string) (secret, accessor string) {
	t.Helper()
	name := strings.ReplaceAll(t.Name(), "/", "-")
	policy, _, err := g.raw.ACL().PolicyCreate(
		&api.ACLPolicy{Name: fmt.Sprintf("%s-%d", name, time.Now().UnixNano()), Rules: rules}, nil)
	if err != nil {
		t.Fatal(err)
	}
	token, _, err := g.raw.ACL().TokenCreate(&api.ACLToken{Policies: []*api.ACLLink{{ID: policy.ID}}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return token.SecretID, token.AccessorID
}

func TestACL(t *testing.T) {
	t.Parallel()
	g := startGuarded(t)
	admin := clientOf(t, consul.Config{Address: g.addr, Token: managementToken})
	for _, key := range []string{"open/a", "hidden/a", "x/node1/a", "x/node10/a", "exact", "exact/below"} {
		put(t, admin, key, "v")
	}
	lock := rawSession(t, g.raw, nil)
	t.Run("hidden", func(t *testing.T) { testHidden(t, g) })
	t.Run("anonymous", func(t *testing.T) { testAnonymous(t, g) })
	t.Run("rules", func(t *testing.T) { testRuleKinds(t, g) })
	t.Run("lock", func(t *testing.T) { testLockRights(t, g, lock) })
	t.Run("watch", func(t *testing.T) { testWatchFiltered(t, g) })
	t.Run("catalog", func(t *testing.T) {
		_, err := g.client(t, `key_prefix "open/" { policy = "read" }`).Catalog.Passing(t.Context(),
			"consul", "version", "1")
		if !errors.Is(err, consul.ErrFiltered) {
			t.Errorf("Passing: %v, want ErrFiltered", err)
		}
	})
	t.Run("session", func(t *testing.T) { testSessionRights(t, g) })
	t.Run("trouble", func(t *testing.T) { testTokenTrouble(t, g) })
}

// If a token may not read some keys, Consul's client returns an empty answer, and our client ErrFiltered.
func testHidden(t *testing.T, g guarded) {
	rules := `key_prefix "open/" { policy = "read" }`
	c, raw := g.client(t, rules), rawAPI(t, g.addr, g.token(t, rules))
	ctx := t.Context()

	pairs, meta, err := raw.KV().List("hidden/", nil)
	if err != nil || len(pairs) != 0 || !meta.ResultsFilteredByACLs {
		t.Errorf("fact: a list without permission gave %v %+v %v, want an empty answer with the flag", pairs, meta, err)
	}
	ok, resp, err := rawTxn(t, raw, api.KVTxnOp{Verb: api.KVGetOrEmpty, Key: "open/a"},
		api.KVTxnOp{Verb: api.KVGetOrEmpty, Key: "hidden/a"})
	t.Logf("fact: get-or-empty without permission: ok=%v %+v %v", ok, resp, err)
	if err == nil && ok && len(resp.Results) == 2 {
		t.Error("fact: get-or-empty without permission gave an entry")
	}

	if _, err := c.List(ctx, "hidden/", consul.Default); !errors.Is(err, consul.ErrFiltered) {
		t.Errorf("List: %v", err)
	}
	if _, err := c.List(ctx, "", consul.Default); !errors.Is(err, consul.ErrFiltered) {
		t.Errorf("List of everything: %v", err)
	}
	if _, err := c.Keys(ctx, "hidden/"); !errors.Is(err, consul.ErrFiltered) {
		t.Errorf("Keys: %v", err)
	}
	if _, err := c.Get(ctx, "hidden/a", consul.Default); !errors.Is(err, consul.ErrFiltered) {
		t.Errorf("Get: %v", err)
	}
	if _, err := c.Get(ctx, "hidden/missing", consul.Default); !errors.Is(err, consul.ErrFiltered) {
		t.Errorf("Get of a missing key: %v", err)
	}
	for _, keys := range [][]string{{"hidden/a"}, {"open/a", "hidden/a"}, {"open/a", "hidden/missing"}} {
		if _, err := c.GetMany(ctx, keys, consul.Default); !errors.Is(err, consul.ErrFiltered) {
			t.Errorf("GetMany %v: %v", keys, err)
		}
	}
	found, err := c.GetMany(ctx, []string{"open/a", "open/missing"}, consul.Default)
	if err != nil || len(found) != 1 || string(found["open/a"].Value) != "v" {
		t.Errorf("GetMany of what is allowed: %+v %v", found, err)
	}
	if name, err := c.ACL.TokenName(ctx); err != nil || !strings.HasPrefix(name, "token ") {
		t.Errorf("TokenName: %q %v", name, err)
	}
	// A refused write has a known outcome: nothing was written.
	_, err = c.Commit(ctx, []consul.Op{consul.Set("open/b", nil)})
	mustRefuse(t, err, 0)
}

// Without a token, Consul does not report that it hid something. So our client does not accept an empty answer.
func testAnonymous(t *testing.T, g guarded) {
	raw := rawAPI(t, g.addr, "")
	pairs, meta, err := raw.KV().List("hidden/", nil)
	if err != nil || len(pairs) != 0 || meta.ResultsFilteredByACLs || meta.DefaultACLPolicy != "deny" {
		t.Errorf("fact: a list without a token gave %v %+v %v, want an empty answer without the flag", pairs, meta, err)
	}
	c := clientOf(t, consul.Config{Address: g.addr})
	if _, err := c.List(t.Context(), "hidden/", consul.Default); !errors.Is(err, consul.ErrFiltered) {
		t.Errorf("List: %v", err)
	}
	if _, err := c.Keys(t.Context(), "hidden/"); !errors.Is(err, consul.ErrFiltered) {
		t.Errorf("Keys: %v", err)
	}
	if _, err := c.Get(t.Context(), "hidden/a", consul.Default); !errors.Is(err, consul.ErrFiltered) {
		t.Errorf("Get: %v", err)
	}
	if _, err := c.GetMany(t.Context(), []string{"hidden/a"}, consul.Default); !errors.Is(err, consul.ErrFiltered) {
		t.Errorf("GetMany: %v", err)
	}
	if _, err := c.Catalog.Passing(t.Context(), "consul", "version", "1"); !errors.Is(err, consul.ErrFiltered) {
		t.Errorf("Passing: %v", err)
	}
	if name, err := c.ACL.TokenName(t.Context()); err != nil || name != "" {
		t.Errorf("TokenName without a token: %q %v", name, err)
	}
	// Consul does not know the token, for example after its deletion.
	unknown := clientOf(t, consul.Config{Address: g.addr, Token: "6ba7b811-9dad-11d1-80b4-00c04fd430c8"})
	if _, err := unknown.List(t.Context(), "open/", consul.Default); !errors.Is(err, consul.ErrFiltered) {
		t.Errorf("List with an unknown token: %v", err)
	}
}

func testRuleKinds(t *testing.T, g guarded) {
	c := g.client(t, `key "exact" { policy = "read" } key_prefix "x/node1" { policy = "read" }`)
	if _, err := c.Get(t.Context(), "exact", consul.Default); err != nil {
		t.Errorf("key: %v", err)
	}
	if _, err := c.Get(t.Context(), "exact/below", consul.Default); !errors.Is(err, consul.ErrFiltered) {
		t.Errorf("key is a prefix, too: %v", err)
	}
	if _, err := c.Get(t.Context(), "x/node10/a", consul.Default); err != nil {
		t.Errorf("key_prefix x/node1 hides x/node10: %v", err)
	}
	slash := g.client(t, `key_prefix "x/node1/" { policy = "read" }`)
	if _, err := slash.Get(t.Context(), "x/node10/a", consul.Default); !errors.Is(err, consul.ErrFiltered) {
		t.Errorf("key_prefix x/node1/ shows x/node10: %v", err)
	}
}

// To acquire a lock, a token needs key:write, but no right on sessions.
func testLockRights(t *testing.T, g guarded, session string) {
	writer := g.client(t, `key_prefix "locks/" { policy = "write" }`)
	f, err := writer.Locks.Acquire(t.Context(), "locks/a", session, differ("v"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := writer.Locks.Bump(t.Context(), f, differ("w")); err != nil {
		t.Fatal(err)
	}
	// A transaction leaves out hidden keys without an error. The client notices a missing key that it read by name, but
	// not one below a prefix, so it also reads the prefix itself as a key.
	r := consul.Reading{Keys: []string{"secret/record"}}
	if f, _, _, err := writer.NewMerger().AcquireReading(t.Context(), "locks/a", session, differ("x"),
		r); !errors.Is(err, consul.ErrFiltered) || f.Index == 0 {
		t.Fatalf("acquired %+v, %v; want a fence and ErrFiltered", f, err)
	}
	r = consul.Reading{Keys: []string{"locks/a"}, Prefixes: []string{"secret/"}}
	if found, below, err := writer.Read(t.Context(), r, consul.Default); !errors.Is(err, consul.ErrFiltered) {
		t.Fatalf("read %v, %v, %v; want ErrFiltered", found, below, err)
	}
	// Another try cannot help, so Acquire returns an error.
	ctx, cancel := context.WithTimeoutCause(t.Context(), patience, errors.New("it went on trying"))
	defer cancel()
	reader := g.client(t, `key_prefix "locks/" { policy = "read" } session_prefix "" { policy = "read" }`)
	if _, err := reader.Locks.Acquire(ctx, "locks/b", session, differ("v")); !errors.Is(err, consul.ErrRefused) {
		t.Fatalf("got %v, want a refusal", err)
	}
}

// If the keys are hidden, the watch calls OnError, and never delivers an empty snapshot.
func testWatchFiltered(t *testing.T, g guarded) {
	c := g.client(t, `key_prefix "open/" { policy = "read" }`)
	ctx, cancel := context.WithCancelCause(t.Context())
	done := errors.New("test done")
	var all sync.WaitGroup
	defer all.Wait()
	defer cancel(done)
	problems := make(chan error, 100)
	opts := consul.WatchOptions{OnError: func(err error) { problems <- err }}
	deliver := func(s consul.Snapshot) error {
		t.Errorf("delivered %+v", s)
		return nil
	}
	all.Go(func() { _ = c.WatchPrefix(ctx, "hidden/", opts, deliver) })
	all.Go(func() { _ = c.WatchKey(ctx, "hidden/a", opts, deliver) })
	for range 6 {
		select {
		case err := <-problems:
			if !errors.Is(err, consul.ErrFiltered) {
				t.Fatalf("OnError got %v", err)
			}
		case <-time.After(patience):
			t.Fatal("OnError was not called")
		}
	}
}

// A session can run with a token that has rights only on agents, services and sessions.
func testSessionRights(t *testing.T, g guarded) {
	c := g.client(t,
		`agent_prefix "" { policy = "read" } service_prefix "" { policy = "write" } session_prefix "" { policy = "write" }`)
	ctx, cancel := context.WithCancelCause(t.Context())
	done := errors.New("test done")
	err := c.RunSession(ctx, consul.SessionConfig{Kind: "farm", Name: "acl", Journal: &memJournal{}},
		func(context.Context, *consul.Session) error {
			cancel(done)
			return nil
		})
	if !errors.Is(err, done) {
		t.Fatalf("RunSession: %v", err)
	}
}
