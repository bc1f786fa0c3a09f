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

// patience is how long a test waits for something that must happen. The machine may be busy, so it is generous.
const patience = time.Minute

func TestMain(m *testing.M) { os.Exit(consultest.NoLeaks(consultest.Main(m))) }

// rawAPI returns Consul's own client, for facts about Consul and for acts of others. No call of it lasts for ever.
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

// setup returns both clients of the shared server and the test's own prefix.
func setup(t *testing.T) (*consul.Client, *api.Client, string) {
	t.Helper()
	client, prefix := consultest.Client(t)
	return client, rawAPI(t, consultest.Shared(t).Addr, ""), prefix
}

// clientOf returns our client of some address. Where nothing else is said, its calls may take long: the machine may be busy.
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

// put writes a key and returns its new index.
func put(t *testing.T, c *consul.Client, key, value string) uint64 {
	t.Helper()
	return must[map[string]uint64](t)(c.Commit(t.Context(), []consul.Op{consul.Set(key, []byte(value))}))[key]
}

// get reads a key that must exist.
func get(t *testing.T, c *consul.Client, key string) consul.Pair {
	t.Helper()
	return must[consul.Pair](t)(c.Get(t.Context(), key, consul.Consistent))
}

// rawSession makes a session on the health of the agent's machine only, and destroys it when the test ends.
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

// differ returns a function that gives another value each time, as Acquire wants it.
func differ(name string) func() []byte {
	n := 0
	return func() []byte { n++; return fmt.Appendf(nil, "%s-%d", name, n) }
}

// mustRefuse checks that Consul refused, and that the operation at the position was among the reasons.
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
