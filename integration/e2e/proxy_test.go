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

// proxy stands between a daemon and its agent. It can hold a transaction, and deliver it even if its sender has given
// up. It can also hold the answers of standing queries.
type proxy struct {
	addr   string
	target *url.URL
	next   http.Handler

	mu      sync.Mutex
	delayed *delayed
	seen    []seen
	news    map[string]chan struct{} // by part of the path: answers to standing queries wait until it is closed
	cut     bool                     // all requests are refused
	gone    int                      // transactions whose sender had given up before the answer
}

type delayed struct {
	part    string        // text in the body of the transaction
	caught  chan struct{} // closed when it has arrived
	deliver chan struct{} // close it to send it on
	status  chan int      // Consul's answer
}

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
	// Errors are expected: daemons give up, and Consul goes away.
	reverse.ErrorHandler = func(w http.ResponseWriter, _ *http.Request, _ error) {
		w.WriteHeader(http.StatusBadGateway)
	}
	p := &proxy{addr: listener.Addr().String(), target: target, next: reverse}
	server := &http.Server{Handler: p, ReadHeaderTimeout: time.Minute}
	reverse.ModifyResponse = func(resp *http.Response) error { p.waitForNews(resp.Request); return nil }
	done := make(chan struct{})
	go func() { defer close(done); _ = server.Serve(listener) }() // ends with Close
	t.Cleanup(func() { _ = server.Close(); <-done; transport.CloseIdleConnections() })
	return p
}

// delayNews holds the answers to standing queries for these paths, until letGo is called.
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

// delay holds the next write of an owner whose body contains the text.
func (p *proxy) delay(part string) *delayed {
	h := &delayed{part: part, caught: make(chan struct{}), deliver: make(chan struct{}), status: make(chan int, 1)}
	p.mu.Lock()
	p.delayed = h
	p.mu.Unlock()
	return h
}

// transactions includes a held transaction after its answer.
func (p *proxy) transactions() []seen {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]seen(nil), p.seen...)
}

func (p *proxy) abandoned() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.gone
}

// away makes the proxy refuse new requests, or pass them again.
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
	// The transaction is sent on even if its sender has given up, like bytes in a socket.
	req, err := http.NewRequestWithContext(context.WithoutCancel(r.Context()), r.Method,
		p.target.JoinPath(r.URL.Path).String(), bytes.NewReader(body))
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
