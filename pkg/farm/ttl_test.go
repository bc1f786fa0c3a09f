package farm_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/farm"
	"github.com/rcfarm/rcfarm/pkg/obs"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// A farm whose session is renewed with the servers, without an agent, places pods. When it is cut off without notice,
// another farm takes over.
func TestFarmsWithoutAnAgentFailOver(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.node("n1", nil, nil)
	log, err := obs.NewLogger(testWriter{t}, "info", "text")
	if err != nil {
		t.Fatal(err)
	}
	var cut atomic.Bool
	forward := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: c.addr})
	forward.ErrorHandler = func(w http.ResponseWriter, _ *http.Request, _ error) {
		w.WriteHeader(http.StatusBadGateway)
	}
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if cut.Load() {
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		forward.ServeHTTP(w, r)
	}))
	t.Cleanup(proxy.Close)
	start := func(id, addr string) {
		client, err := consul.New(consul.Config{Address: addr})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(client.Close)
		st := store.New(client, c.store.Keys())
		cfg := c.session("farm", id)
		cfg.Mode, cfg.TTL = consul.ByTTL, consul.MinSessionTTL
		c.background(func(ctx context.Context) error {
			return client.RunSession(ctx, cfg, func(ctx context.Context, s *consul.Session) error {
				return farm.NewFarm(farm.Config{
					ID: id, Store: st.FarmSession(s, id), Log: log, TTL: 500 * time.Millisecond,
					SweepEvery: time.Second, StableAfter: time.Hour,
				}).Start(ctx)
			})
		})
	}
	owner := func(id string) func(*rc.Status) bool {
		return func(st *rc.Status) bool { return st.Owner == id && st.Is(rc.Converged) }
	}
	start("f1", proxy.Listener.Addr().String())
	c.apply("web", testManifest("web", 0), replicas(2))
	c.converged("web", 2)
	c.statusOf("web", owner("f1"))
	before := c.running("web")

	start("f2", c.addr)
	c.apply("web", testManifest("web", 0), replicas(3))
	c.converged("web", 3)
	c.statusOf("web", owner("f1")) // f1 does not hand it over
	cut.Store(true)
	proxy.CloseClientConnections()
	c.apply("web", testManifest("web", 0), replicas(4))
	c.converged("web", 4)
	c.statusOf("web", owner("f2"))
	after := c.running("web")
	for id := range before {
		if len(after[id]) != 1 {
			t.Errorf("%s did not run on through the failover: %v", id, after)
		}
	}
}
