package consul_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/consultest"
)

func TestAgentNode(t *testing.T) {
	t.Parallel()
	c, raw, _ := setup(t)
	want, err := raw.Agent().NodeName()
	if err != nil {
		t.Fatal(err)
	}
	if got := must[string](t)(c.AgentNode(t.Context())); got != want || got == "" {
		t.Fatalf("got %q, want %q", got, want)
	}
}

func passing(t *testing.T, c *consul.Client, key, value string, want map[string]bool) {
	t.Helper()
	consultest.Eventually(t, patience, func() error {
		local, err := c.Services.LocalServices(t.Context(), key, value)
		got := map[string]bool{}
		for id, health := range local {
			got[id] = health.Passing
		}
		if err == nil && !maps.Equal(got, want) {
			err = fmt.Errorf("got %v, want %v", got, want)
		}
		return err
	})
}

func TestServicesOfTheLocalAgent(t *testing.T) {
	t.Parallel()
	c, _, prefix := setup(t)
	var sick atomic.Bool
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if sick.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	t.Cleanup(web.Close)
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	tcp := listener.Addr().String()

	id := func(s string) string { return strings.TrimSuffix(prefix, "/") + "-" + s }
	const fast = 50 * time.Millisecond
	meta := map[string]string{"rcfarm-node_id": `node-1_a.b "x"\y`, "other": "1"}
	for _, s := range []consul.Service{
		{
			ID: id("http"), Name: "web", Address: "127.0.0.1", Port: 80, Tags: []string{"a"}, Meta: meta,
			Check: &consul.Check{HTTP: web.URL, Interval: fast, Timeout: patience},
		},
		{ID: id("tcp"), Name: "web", Meta: meta, Check: &consul.Check{TCP: tcp, Interval: fast, Timeout: patience}},
		{ID: id("plain"), Name: "web", Meta: meta},
		{ID: id("elsewhere"), Name: "web", Meta: map[string]string{"rcfarm-node_id": "node-1_a"}},
	} {
		if err := c.Services.RegisterService(t.Context(), s); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Services.DeregisterService(context.Background(), s.ID) })
	}
	key, value := "rcfarm-node_id", meta["rcfarm-node_id"]
	passing(t, c, key, value, map[string]bool{id("http"): true, id("tcp"): true, id("plain"): true})
	passing(t, c, key, "node-1_a", map[string]bool{id("elsewhere"): true})
	passing(t, c, key, "nobody", map[string]bool{})
	passing(t, c, "no-such_key", value, map[string]bool{})
	if _, err := c.Services.LocalServices(t.Context(), key, "`) or (ID matches `.*`"); err == nil {
		t.Error("a value became a part of the filter")
	}

	sick.Store(true)
	passing(t, c, key, value, map[string]bool{id("http"): false, id("tcp"): true, id("plain"): true})
	local, err := c.Services.LocalServices(t.Context(), key, value)
	if h := local[id("http")]; err != nil || h.Check != "health of web" ||
		!strings.Contains(h.Output, "503 Service Unavailable Output: ") {
		t.Errorf("the failing check is %+v (%v)", h, err) // pkg/health relies on this form
	}
	if h := local[id("plain")]; h != (consul.Health{Passing: true}) {
		t.Errorf("the service without a check has %+v", h)
	}
	sick.Store(false)
	passing(t, c, key, value, map[string]bool{id("http"): true, id("tcp"): true, id("plain"): true})
	_ = listener.Close()
	passing(t, c, key, value, map[string]bool{id("http"): true, id("tcp"): false, id("plain"): true})

	// A check that the new registration lacks must not count any more.
	if err := c.Services.RegisterService(t.Context(),
		consul.Service{ID: id("tcp"), Name: "web", Meta: meta}); err != nil {
		t.Fatal(err)
	}
	passing(t, c, key, value, map[string]bool{id("http"): true, id("tcp"): true, id("plain"): true})

	for range 2 { // the second time the service is missing
		if err := c.Services.DeregisterService(t.Context(), id("plain")); err != nil {
			t.Fatal(err)
		}
	}
	passing(t, c, key, value, map[string]bool{id("http"): true, id("tcp"): true})
}

// If the check of a service is an alias of another service, both have the same state.
func TestAliasCheck(t *testing.T) {
	t.Parallel()
	c, raw, prefix := setup(t)
	main := strings.TrimSuffix(prefix, "/")
	meta := map[string]string{"k": main}
	for _, s := range []consul.Service{
		{ID: main, Name: "web", Port: 80, Meta: meta, Check: &consul.Check{TTL: time.Hour}},
		{ID: main + ".admin", Name: "web-admin", Port: 81, Meta: meta, Check: &consul.Check{Alias: main}},
	} {
		if err := c.Services.RegisterService(t.Context(), s); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Services.DeregisterService(context.Background(), s.ID) })
	}
	for _, state := range []bool{false, true, false} {
		if err := c.Services.UpdateCheck(t.Context(), main, state, ""); err != nil {
			t.Fatal(err)
		}
		want := map[bool]string{true: "passing", false: "critical"}[state]
		healthIs(t, raw, main, want)
		healthIs(t, raw, main+".admin", want)
	}
}

func healthIs(t *testing.T, raw *api.Client, id, want string) {
	t.Helper()
	consultest.Eventually(t, patience, func() error {
		status, _, err := raw.Agent().AgentHealthServiceByID(id)
		if err == nil && status != want {
			err = fmt.Errorf("%s is %s, want %s", id, status, want)
		}
		return err
	})
}

// A service with an alias check passes only if it is not registered as down, and the other service exists and passes.
func TestACheckWithAnotherService(t *testing.T) {
	t.Parallel()
	c, raw, prefix := setup(t)
	id := strings.TrimSuffix(prefix, "/")
	own, with := id, id+"-node"
	meta := map[string]string{"k": id}
	register := func(s consul.Service) {
		t.Helper()
		if err := c.Services.RegisterService(t.Context(), s); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Services.DeregisterService(context.Background(), s.ID) })
	}
	is := func(want string) {
		t.Helper()
		healthIs(t, raw, own, want)
	}
	say := func(id string, passes bool) {
		t.Helper()
		if err := c.Services.UpdateCheck(t.Context(), id, passes, ""); err != nil {
			t.Fatal(err)
		}
	}
	node := consul.Service{
		ID: with, Name: "node",
		Check: &consul.Check{TTL: time.Hour, GoneAfter: time.Hour, Passing: true},
	}
	register(node)
	pod := consul.Service{ID: own, Name: "web", Meta: meta, Check: &consul.Check{Alias: with, Passing: true}}
	down := pod
	down.Check = &consul.Check{Alias: with, Down: "it is broken"}
	local := func(want consul.Health) {
		t.Helper()
		if got := must[map[string]consul.Health](t)(c.Services.LocalServices(t.Context(), "k", id))[own]; got != want {
			t.Errorf("the service is %+v, want %+v", got, want)
		}
	}
	register(pod)
	is("passing")
	local(consul.Health{Passing: true})
	register(down)
	is("critical")
	local(consul.Health{Down: true, Check: "health of web"})
	say(with, false)
	say(with, true) // a change of the other service changes nothing
	is("critical")
	register(pod)
	is("passing")
	say(with, false)
	is("critical")
	local(consul.Health{Passing: true}) // LocalServices does not read the alias
	say(with, true)
	is("passing")
	if err := c.Services.DeregisterService(t.Context(), with); err != nil {
		t.Fatal(err)
	}
	register(pod) // the agent evaluates the alias at once
	is("critical")
	register(node)
	register(pod)
	is("passing")
}

// HTTP checks follow no redirect, because the pod would choose the URL that the agent requests.
func TestHTTPChecksFollowNoRedirect(t *testing.T) {
	t.Parallel()
	c, _, prefix := setup(t)
	var reached atomic.Bool
	target := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { reached.Store(true) }))
	t.Cleanup(target.Close)
	for _, status := range []int{
		http.StatusMovedPermanently, http.StatusFound, http.StatusSeeOther,
		http.StatusTemporaryRedirect, http.StatusPermanentRedirect,
	} {
		var asked atomic.Int64
		web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			asked.Add(1)
			http.Redirect(w, r, target.URL, status)
		}))
		t.Cleanup(web.Close)
		id := fmt.Sprintf("%s-%d", strings.TrimSuffix(prefix, "/"), status)
		s := consul.Service{
			ID: id, Name: "web", Meta: map[string]string{"k": id},
			Check: &consul.Check{HTTP: web.URL, Interval: 50 * time.Millisecond, Timeout: patience, Passing: true},
		}
		if err := c.Services.RegisterService(t.Context(), s); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Services.DeregisterService(context.Background(), id) })
		passing(t, c, "k", id, map[string]bool{id: false})
		consultest.Eventually(t, patience, func() error {
			if asked.Load() < 2 {
				return errors.New("the check was not made twice")
			}
			return nil
		})
	}
	if reached.Load() {
		t.Error("the agent asked whom the redirect names")
	}
}

// A check starts critical, because no pod may be available before it has run, unless Passing is set.
func TestRegisteredCheckStartsCritical(t *testing.T) {
	t.Parallel()
	c, _, prefix := setup(t)
	id := strings.TrimSuffix(prefix, "/")
	s := consul.Service{
		ID: id, Name: "slow", Meta: map[string]string{"k": id},
		Check: &consul.Check{TCP: "127.0.0.1:1", Interval: time.Hour, Timeout: time.Second},
	}
	if err := c.Services.RegisterService(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Services.DeregisterService(context.Background(), id) })
	if got := must[map[string]consul.Health](t)(c.Services.LocalServices(t.Context(), "k", id)); len(got) != 1 ||
		got[id].Passing || got[id].Check != "health of slow" {
		t.Fatalf("got %v", got)
	}

	other := s
	other.ID, other.Name, other.Meta = id+"-passes", "passes", map[string]string{"k": id + "-passes"}
	check := *s.Check
	check.Passing, other.Check = true, &check
	if err := c.Services.RegisterService(t.Context(), other); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Services.DeregisterService(context.Background(), other.ID) })
	if got := must[map[string]consul.Health](
		t)(c.Services.LocalServices(t.Context(), "k", other.ID)); !got[other.ID].Passing {
		t.Errorf("one that is to begin as passing is %v", got)
	}
}

// A check keeps its state if the same service is registered again, but not if another service gets its id.
func TestRegisteringAgain(t *testing.T) {
	t.Parallel()
	c, _, prefix := setup(t)
	web := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	t.Cleanup(web.Close)
	id := strings.TrimSuffix(prefix, "/")
	s := consul.Service{
		ID: id, Name: "again", Address: "127.0.0.1", Port: 1, Tags: []string{"a", "b"},
		Meta:  map[string]string{"k": id, "digest": "1"},
		Check: &consul.Check{HTTP: web.URL, Interval: 50 * time.Millisecond, Timeout: patience},
	}
	register := func() bool {
		t.Helper()
		if err := c.Services.RegisterService(t.Context(), s); err != nil {
			t.Fatal(err)
		}
		return must[map[string]consul.Health](t)(c.Services.LocalServices(t.Context(), "k", id))[id].Passing
	}
	t.Cleanup(func() { _ = c.Services.DeregisterService(context.Background(), id) })
	register()
	passing(t, c, "k", id, map[string]bool{id: true})
	s.Check = &consul.Check{TCP: "127.0.0.1:1", Interval: time.Hour, Timeout: time.Second}
	if !register() {
		t.Error("registering the same service again made it critical")
	}
	s.Meta = map[string]string{"k": id, "digest": "2"}
	if register() {
		t.Error("the check of another service passes before it was looked at")
	}
}

func TestPassingAsksTheCatalog(t *testing.T) {
	t.Parallel()
	c, _, prefix := setup(t)
	name := strings.TrimSuffix(prefix, "/")
	if got := must[[]map[string]string](t)(c.Catalog.Passing(t.Context(), name, "nonce", "n1")); len(got) != 0 {
		t.Fatalf("a service that does not exist: %v", got)
	}
	for i, check := range []*consul.Check{nil, nil, {TCP: "127.0.0.1:1", Interval: time.Hour, Timeout: time.Second}} {
		s := consul.Service{
			ID: fmt.Sprint(name, i), Name: name,
			Meta: map[string]string{"nonce": fmt.Sprint("n", i)}, Check: check,
		}
		if err := c.Services.RegisterService(t.Context(), s); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Services.DeregisterService(context.Background(), s.ID) })
	}
	consultest.Eventually(t, patience, func() error {
		got, err := c.Catalog.Passing(t.Context(), name, "nonce", "n1")
		if err == nil && (len(got) != 1 || got[0]["nonce"] != "n1") {
			err = fmt.Errorf("got %v", got)
		}
		return err
	})
	if got, err := c.Catalog.Passing(t.Context(), name, "nonce", "n2"); err != nil || len(got) != 0 {
		t.Errorf("Passing counts a critical instance: %v %v", got, err)
	}
}

func TestReads(t *testing.T) {
	t.Parallel()
	c, _, prefix := setup(t)
	if _, err := c.Get(t.Context(), prefix+"missing", consul.Default); !errors.Is(err, consul.ErrNotFound) {
		t.Errorf("Get: %v", err)
	}
	if pairs, err := c.List(t.Context(), prefix, consul.Consistent); err != nil || len(pairs) != 0 {
		t.Errorf("List of nothing: %v %v", pairs, err)
	}
	if keys, err := c.Keys(t.Context(), prefix); err != nil || len(keys) != 0 {
		t.Errorf("Keys of nothing: %v %v", keys, err)
	}
	odd := prefix + "a b/ü%2f?x=1&y#<z>/+"
	put(t, c, odd, "v")
	if got := get(t, c, odd); got.Key != odd || string(got.Value) != "v" {
		t.Errorf("read %+v", got)
	}
	if keys := must[[]string](t)(c.Keys(t.Context(), prefix)); !slices.Equal(keys, []string{odd}) {
		t.Errorf("keys %q", keys)
	}
	if pairs := must[[]consul.Pair](t)(c.List(t.Context(), prefix+"a b/", consul.Default)); len(pairs) != 1 ||
		pairs[0].Key != odd {
		t.Errorf("pairs %+v", pairs)
	}
}

// The address can be a unix socket.
func TestUnixSocket(t *testing.T) {
	t.Parallel()
	path := t.TempDir() + "/consul.sock"
	listener, err := new(net.ListenConfig).Listen(t.Context(), "unix", path)
	if err != nil {
		t.Fatal(err)
	}
	server := &httptest.Server{
		Listener: listener,
		Config: &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write([]byte(`{"Config": {"NodeName": "socket"}}`))
		})},
	}
	server.Start()
	t.Cleanup(server.Close)
	c := clientOf(t, consul.Config{Address: "unix://" + path})
	if got := must[string](t)(c.AgentNode(t.Context())); got != "socket" {
		t.Fatalf("got %q", got)
	}
}
