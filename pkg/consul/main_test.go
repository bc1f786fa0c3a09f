package consul_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"sync"
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

// verdict is what the proxy does with a request.
type verdict int

const (
	forward   verdict = iota
	cutBefore         // close the connection, never forward
	cutAfter          // forward, wait for the answer, close the connection
	stall             // neither forward nor answer until the client leaves
	refuse            // answer 500 without forwarding, as an agent without a leader does
	holdBack          // stall, and forward when release is called, although the client has left
)

// proxy stands between a client and Consul and misbehaves as told.
type proxy struct {
	Addr string

	mu       sync.Mutex
	rule     func(*http.Request) verdict
	requests int
	open     map[net.Conn]bool
	most     int // connections open at once
	released chan struct{}
	late     int // requests that were held back and are carried out
}

func startProxy(t *testing.T, target string) *proxy {
	t.Helper()
	p := &proxy{open: map[net.Conn]bool{}, released: make(chan struct{})}
	upstream := &http.Transport{}
	back := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: target})
	back.Transport = upstream
	// A client that leaves is what these tests are about, not news.
	back.ErrorHandler = func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) }
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch p.judge(r) {
		case forward:
			back.ServeHTTP(w, r)
		case cutBefore:
			panic(http.ErrAbortHandler)
		case cutAfter:
			back.ServeHTTP(httptest.NewRecorder(), r)
			panic(http.ErrAbortHandler)
		case stall:
			_, _ = io.Copy(io.Discard, r.Body) // the server looks out for the client's end only after the body's
			<-r.Context().Done()
			panic(http.ErrAbortHandler)
		case refuse:
			http.Error(w, "No cluster leader", http.StatusInternalServerError)
		case holdBack:
			p.hold(back, r)
			panic(http.ErrAbortHandler)
		}
	}))
	srv.Config.ConnState = p.count
	all, end := context.WithCancel(context.WithoutCancel(t.Context()))
	srv.Config.BaseContext = func(net.Listener) context.Context { return all }
	srv.Start()
	p.Addr = srv.Listener.Addr().String()
	t.Cleanup(func() {
		end() // Close waits for requests under way, also for those that wait at Consul
		srv.CloseClientConnections()
		srv.Close()
		upstream.CloseIdleConnections()
	})
	return p
}

// hold keeps a request until release and carries it out then.
func (p *proxy) hold(back http.Handler, r *http.Request) {
	body, _ := io.ReadAll(r.Body) // what a client that left has sent is all there is
	late := r.Clone(context.WithoutCancel(r.Context()))
	late.Body = io.NopCloser(bytes.NewReader(body))
	go func() {
		<-p.released
		back.ServeHTTP(httptest.NewRecorder(), late)
		p.mu.Lock()
		defer p.mu.Unlock()
		p.late++
	}()
	<-r.Context().Done()
}

// release carries out the one request that was held back, and returns when Consul has answered it.
func (p *proxy) release(t *testing.T) {
	t.Helper()
	close(p.released)
	consultest.Eventually(t, patience, func() error {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.late == 0 {
			return errors.New("Consul has not answered")
		}
		return nil
	})
}

func (p *proxy) judge(r *http.Request) verdict {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.requests++
	if p.rule == nil {
		return forward
	}
	return p.rule(r)
}

// set changes the rule for requests that come from now on; nil forwards.
func (p *proxy) set(rule func(*http.Request) verdict) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rule = rule
}

// seen returns how many requests came so far.
func (p *proxy) seen() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.requests
}

func (p *proxy) count(conn net.Conn, state http.ConnState) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch state {
	case http.StateNew:
		p.open[conn] = true
		p.most = max(p.most, len(p.open))
	case http.StateClosed, http.StateHijacked:
		delete(p.open, conn)
	case http.StateActive, http.StateIdle:
	}
}

func (p *proxy) mostOpen() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.most
}

// always gives every request the same treatment.
func always(v verdict) func(*http.Request) verdict {
	return func(*http.Request) verdict { return v }
}

// onTxn gives the first n transactions one treatment each and forwards everything else.
func onTxn(verdicts ...verdict) func(*http.Request) verdict {
	return func(r *http.Request) verdict {
		if r.URL.Path != "/v1/txn" || len(verdicts) == 0 {
			return forward
		}
		v := verdicts[0]
		verdicts = verdicts[1:]
		return v
	}
}
