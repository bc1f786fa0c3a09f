package consultest

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"sync"
	"testing"
)

// Verdict is what a Proxy does with a request.
type Verdict int

// The verdicts.
const (
	Forward   Verdict = iota
	CutBefore         // close the connection, never forward
	CutAfter          // forward, wait for the answer, close the connection
	Stall             // neither forward nor answer until the client closes the connection
	Refuse            // answer 500 without forwarding, like an agent if its cluster has no leader
	Delay             // like Stall, but forward the request when Release is called, although the client is gone then
)

// Proxy stands between a client and Consul, and treats requests by its rule.
type Proxy struct {
	Addr string // host:port

	srv *httptest.Server

	mu       sync.Mutex
	rule     func(*http.Request) Verdict
	requests int
	open     map[net.Conn]bool
	most     int // highest number of connections that were open at once
	released chan struct{}
	late     int // delayed requests that are carried out
}

// StartProxy starts a proxy to a target, host:port. It ends with the test.
func StartProxy(tb testing.TB, target string) *Proxy {
	tb.Helper()
	p := &Proxy{open: map[net.Conn]bool{}, released: make(chan struct{})}
	upstream := &http.Transport{}
	back := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: target})
	back.Transport = upstream
	// In these tests clients close connections on purpose.
	back.ErrorHandler = func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) }
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch p.judge(r) {
		case Forward:
			back.ServeHTTP(w, r)
		case CutBefore:
			panic(http.ErrAbortHandler)
		case CutAfter:
			back.ServeHTTP(httptest.NewRecorder(), r)
			panic(http.ErrAbortHandler)
		case Stall:
			// The server notices that the client is gone only after it has read the body.
			_, _ = io.Copy(io.Discard, r.Body)
			<-r.Context().Done()
			panic(http.ErrAbortHandler)
		case Refuse:
			http.Error(w, "No cluster leader", http.StatusInternalServerError)
		case Delay:
			p.delay(back, r)
			panic(http.ErrAbortHandler)
		}
	}))
	srv.Config.ConnState = p.count
	all, end := context.WithCancel(context.WithoutCancel(tb.Context()))
	srv.Config.BaseContext = func(net.Listener) context.Context { return all }
	srv.Start()
	p.Addr, p.srv = srv.Listener.Addr().String(), srv
	tb.Cleanup(func() {
		end() // without end, Close would wait for requests that wait at Consul
		srv.CloseClientConnections()
		srv.Close()
		upstream.CloseIdleConnections()
	})
	return p
}

func (p *Proxy) delay(back http.Handler, r *http.Request) {
	body, _ := io.ReadAll(r.Body) // an error means that the client has gone; forward what has arrived
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

// Release forwards the one delayed request, and returns after the answer.
func (p *Proxy) Release(tb testing.TB) {
	tb.Helper()
	close(p.released)
	Eventually(tb, patience, func() error {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.late == 0 {
			return errors.New("no answer of Consul yet")
		}
		return nil
	})
}

func (p *Proxy) judge(r *http.Request) Verdict {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.requests++
	if p.rule == nil {
		return Forward
	}
	return p.rule(r)
}

// Set sets the rule; nil: forward all.
func (p *Proxy) Set(rule func(*http.Request) Verdict) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rule = rule
}

// Cut blocks all requests, and closes connections. Consul may have got requests under way.
func (p *Proxy) Cut() {
	p.Set(Always(CutBefore))
	p.srv.CloseClientConnections()
}

// Seen returns how many requests have come.
func (p *Proxy) Seen() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.requests
}

func (p *Proxy) count(conn net.Conn, state http.ConnState) {
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

// MostOpen returns the highest number of connections at once.
func (p *Proxy) MostOpen() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.most
}

// Always returns a rule with one verdict.
func Always(v Verdict) func(*http.Request) Verdict {
	return func(*http.Request) Verdict { return v }
}

// OnTxn returns a rule with verdicts for the first transactions. It forwards all other requests.
func OnTxn(verdicts ...Verdict) func(*http.Request) Verdict {
	return func(r *http.Request) Verdict {
		if r.URL.Path != "/v1/txn" || len(verdicts) == 0 {
			return Forward
		}
		v := verdicts[0]
		verdicts = verdicts[1:]
		return v
	}
}
