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
	Stall             // neither forward nor answer until the client leaves
	Refuse            // answer 500 without forwarding, as an agent without a leader does
	Delay             // stall, and forward when Release is called, although the client has left
)

// Proxy stands between a client and Consul and misbehaves as told.
type Proxy struct {
	Addr string // host:port

	srv *httptest.Server

	mu       sync.Mutex
	rule     func(*http.Request) Verdict
	requests int
	open     map[net.Conn]bool
	most     int // connections open at once
	released chan struct{}
	late     int // requests that were held back and are carried out
}

// StartProxy starts a proxy that forwards to a target, host:port, until the test ends.
func StartProxy(tb testing.TB, target string) *Proxy {
	tb.Helper()
	p := &Proxy{open: map[net.Conn]bool{}, released: make(chan struct{})}
	upstream := &http.Transport{}
	back := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: target})
	back.Transport = upstream
	// A client that leaves is what these tests are about, not news.
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
			_, _ = io.Copy(io.Discard, r.Body) // the server looks out for the client's end only after the body's
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
		end() // Close waits for requests under way, also for those that wait at Consul
		srv.CloseClientConnections()
		srv.Close()
		upstream.CloseIdleConnections()
	})
	return p
}

// delay keeps a request until Release and carries it out then.
func (p *Proxy) delay(back http.Handler, r *http.Request) {
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

// Release carries out the one request that was held back, and returns when Consul has answered it.
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

// Set changes the rule for requests that come from now on; nil forwards.
func (p *Proxy) Set(rule func(*http.Request) Verdict) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rule = rule
}

// Cut lets nothing pass any more, and drops what is under way: Consul may have got it or not.
func (p *Proxy) Cut() {
	p.Set(Always(CutBefore))
	p.srv.CloseClientConnections()
}

// Seen returns how many requests came so far.
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

// MostOpen returns how many connections were open at once.
func (p *Proxy) MostOpen() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.most
}

// Always gives every request the same treatment.
func Always(v Verdict) func(*http.Request) Verdict {
	return func(*http.Request) Verdict { return v }
}

// OnTxn gives the first transactions one treatment each and forwards everything else.
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
