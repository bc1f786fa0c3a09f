package consul_test

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/consultest"
)

// patience is long because the machine may be busy.
const patience = time.Minute

func TestMain(m *testing.M) { os.Exit(consultest.NoLeaks(consultest.Main(m))) }

// rawAPI is for facts about Consul and for acts of other programs. Its calls have a timeout.
func rawAPI(t *testing.T, addr, token string) *api.Client {
	t.Helper()
	conf := api.DefaultConfig()
	conf.Address, conf.Token = addr, token
	conf.HttpClient = &http.Client{Transport: conf.Transport, Timeout: 2 * patience}
	client, err := api.NewClient(conf)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conf.Transport.CloseIdleConnections)
	return client
}

func setup(t *testing.T) (*consul.Client, *api.Client, string) {
	t.Helper()
	client, prefix := consultest.Client(t)
	return client, rawAPI(t, consultest.Shared(t).Addr, ""), prefix
}

// clientOf's calls may take long by default, because the machine may be busy.
func clientOf(t *testing.T, cfg consul.Config) *consul.Client {
	t.Helper()
	if cfg.CallTimeout == 0 {
		cfg.CallTimeout = patience
	}
	client, err := consul.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return client
}

func must[T any](t *testing.T) func(v T, err error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func put(t *testing.T, c *consul.Client, key, value string) uint64 {
	t.Helper()
	return must[map[string]uint64](t)(c.Commit(t.Context(), []consul.Op{consul.Set(key, []byte(value))}))[key]
}

func get(t *testing.T, c *consul.Client, key string) consul.Pair {
	t.Helper()
	return must[consul.Pair](t)(c.Get(t.Context(), key, consul.Consistent))
}

func rawSession(t *testing.T, raw *api.Client, entry *api.SessionEntry) string {
	t.Helper()
	if entry == nil {
		entry = &api.SessionEntry{LockDelay: time.Millisecond}
	}
	id, _, err := raw.Session().CreateNoChecks(entry, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = raw.Session().Destroy(id, nil) })
	return id
}

// differ returns a new value each time, as Acquire requires.
func differ(name string) func() []byte {
	n := 0
	return func() []byte { n++; return fmt.Appendf(nil, "%s-%d", name, n) }
}

func mustRefuse(t *testing.T, err error, op int) {
	t.Helper()
	var refused *consul.RefusedError
	if !errors.As(err, &refused) || !errors.Is(err, consul.ErrRefused) {
		t.Fatalf("got %v, want a refusal", err)
	}
	for _, f := range refused.Failures {
		if f.Op == op {
			return
		}
	}
	t.Fatalf("operation %d is not among the refused ones: %+v", op, refused.Failures)
}
