package e2e

import (
	"bytes"
	"context"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"
)

// proxy stands between a daemon and its Consul agent. It can hold one transaction back, for as long as the scenario wants,
// and deliver it later, whether its sender still waits or not. And it can hold back what standing queries are told.
type proxy struct {
	addr   string
	target *url.URL
	next   http.Handler

	mu      sync.Mutex
	delayed *delayed
	seen    []seen
	news    map[string]chan struct{} // by part of the path of a standing query: what its answers wait for
	cut     bool                     // nothing passes
	gone    int                      // transactions that their sender no longer waited for when they were answered
}

// delayed is a transaction that waits in the proxy.
type delayed struct {
	part    string        // of its body
	caught  chan struct{} // closed when it has arrived
	deliver chan struct{} // close it to send it on
	status  chan int      // Consul's answer
}

// seen is one transaction that passed.
type seen struct {
	body   string
	status int
}

func newProxy(t *testing.T, consulAddr string) *proxy {
	t.Helper()
	listener, err := new(net.ListenConfig).Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	target := &url.URL{Scheme: "http", Host: consulAddr}
	transport := &http.Transport{MaxIdleConnsPerHost: 100}
	reverse := httputil.NewSingleHostReverseProxy(target)
	reverse.Transport = transport
	// A daemon that gives up, or a Consul that is gone, is what scenarios are about.
	reverse.ErrorHandler = func(w http.ResponseWriter, _ *http.Request, _ error) { w.WriteHeader(http.StatusBadGateway) }
	p := &proxy{addr: listener.Addr().String(), target: target, next: reverse}
	server := &http.Server{Handler: p, ReadHeaderTimeout: time.Minute}
	reverse.ModifyResponse = func(resp *http.Response) error { p.waitForNews(resp.Request); return nil }
	done := make(chan struct{})
	go func() { defer close(done); _ = server.Serve(listener) }() // ends with Close
	t.Cleanup(func() { _ = server.Close(); <-done; transport.CloseIdleConnections() })
	return p
}

// delayNews holds back the answers to standing queries whose paths contain one of the parts, until they are let go.
func (p *proxy) delayNews(parts ...string) (letGo func()) {
	gate := make(chan struct{})
	p.mu.Lock()
	defer p.mu.Unlock()
	p.news = map[string]chan struct{}{}
	for _, part := range parts {
		p.news[part] = gate
	}
	return sync.OnceFunc(func() { close(gate) })
}

func (p *proxy) waitForNews(r *http.Request) {
	if !r.URL.Query().Has("index") {
		return
	}
	p.mu.Lock()
	var gate chan struct{}
	for part, g := range p.news {
		if strings.Contains(r.URL.Path, part) {
			gate = g
		}
	}
	p.mu.Unlock()
	if gate == nil {
		return
	}
	select {
	case <-gate:
	case <-r.Context().Done():
	}
}

// fenceVerb is in every write of an owner, and in no read.
const fenceVerb = `"Verb":"check-session"`

// delay makes the next write of an owner whose body contains the text wait.
func (p *proxy) delay(part string) *delayed {
	h := &delayed{part: part, caught: make(chan struct{}), deliver: make(chan struct{}), status: make(chan int, 1)}
	p.mu.Lock()
	p.delayed = h
	p.mu.Unlock()
	return h
}

// transactions returns what passed so far, the held one included once it is answered.
func (p *proxy) transactions() []seen {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]seen(nil), p.seen...)
}

// abandoned returns how many senders have given up on a transaction.
func (p *proxy) abandoned() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.gone
}

// away has nothing pass from now on, or everything again. What waits at Consul goes on waiting.
func (p *proxy) away(yes bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cut = yes
}

func (p *proxy) isAway() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cut
}

func (p *proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if p.isAway() {
		w.WriteHeader(http.StatusBadGateway)
		return
	}
	if r.URL.Path != "/v1/txn" {
		p.next.ServeHTTP(w, r)
		return
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		w.WriteHeader(http.StatusBadGateway)
		return
	}
	p.mu.Lock()
	h := p.delayed
	if h != nil && strings.Contains(string(body), h.part) && strings.Contains(string(body), fenceVerb) {
		p.delayed = nil
	} else {
		h = nil
	}
	p.mu.Unlock()
	if h != nil {
		close(h.caught)
		<-h.deliver
	}
	defer context.AfterFunc(r.Context(), func() { // runs when the sender hangs up before the answer
		p.mu.Lock()
		defer p.mu.Unlock()
		p.gone++
	})()
	// The transaction goes on whether or not its sender still waits, as bytes in a socket would.
	req, err := http.NewRequestWithContext(context.WithoutCancel(r.Context()), r.Method, p.target.JoinPath(r.URL.Path).String(), bytes.NewReader(body))
	if err != nil {
		w.WriteHeader(http.StatusBadGateway)
		return
	}
	req.URL.RawQuery, req.Header = r.URL.RawQuery, r.Header.Clone()
	resp, err := p.next.(*httputil.ReverseProxy).Transport.RoundTrip(req)
	if err != nil {
		w.WriteHeader(http.StatusBadGateway)
		if h != nil {
			h.status <- 0
		}
		return
	}
	defer resp.Body.Close()
	answer, _ := io.ReadAll(resp.Body) // a cut answer is passed on as it is
	p.mu.Lock()
	p.seen = append(p.seen, seen{body: string(body), status: resp.StatusCode})
	p.mu.Unlock()
	if h != nil {
		h.status <- resp.StatusCode
	}
	maps.Copy(w.Header(), resp.Header)
	w.WriteHeader(resp.StatusCode)
	_, _ = w.Write(answer) // the sender may have given up
}
