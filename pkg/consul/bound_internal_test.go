package consul

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// slowConn takes time to close, like a socket whose reader waits for a processor, and counts as open until then.
type slowConn struct {
	net.Conn

	open *atomic.Int32
	once sync.Once
}

func (c *slowConn) Close() error {
	defer c.once.Do(func() { c.open.Add(-1) })
	<-time.After(20 * time.Millisecond)
	return c.Conn.Close()
}

func TestAConnectionCountsUntilItIsClosed(t *testing.T) {
	t.Parallel()
	const allowed = 3
	var open, most atomic.Int32
	transport := &http.Transport{}
	transport.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
		inner, err := new(net.Dialer).DialContext(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		n := open.Add(1)
		for old := most.Load(); n > old && !most.CompareAndSwap(old, n); old = most.Load() {
		}
		return &slowConn{Conn: inner, open: &open}, nil
	}
	bound(transport, allowed)
	defer transport.CloseIdleConnections()

	// Each request waits at the server until its caller cancels it, which closes its connection.
	arrived := make(chan struct{}, 1)
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		select {
		case arrived <- struct{}{}:
			<-r.Context().Done()
		case <-r.Context().Done():
		}
	}))
	defer server.Close()
	ctxs := make(chan context.CancelFunc, 10*allowed)
	var asking sync.WaitGroup
	for range 10 * allowed {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		ctxs <- cancel
		asking.Go(func() {
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, server.URL, nil)
			if err != nil {
				t.Error(err)
				return
			}
			resp, err := transport.RoundTrip(req)
			if err == nil {
				resp.Body.Close()
			}
			if !errors.Is(err, context.Canceled) {
				t.Errorf("a canceled request ended with %v", err)
			}
		})
	}
	for range 10 * allowed {
		select {
		case <-arrived:
		// These may have been those that waited for a connection.
		case <-time.After(20 * time.Millisecond):
		}
		(<-ctxs)()
	}
	asking.Wait()
	if got := most.Load(); got > allowed || got == 0 {
		t.Errorf("%d connections were open at once, at most %d are allowed", got, allowed)
	}
}

func TestAFailedDialGivesItsSlotBack(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer server.Close()
	failing := true
	transport := &http.Transport{}
	transport.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
		if failing {
			return nil, errors.New("no route")
		}
		return new(net.Dialer).DialContext(ctx, network, addr)
	}
	bound(transport, 1)
	defer transport.CloseIdleConnections()
	ask := func() error {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL, nil)
		if err != nil {
			return err
		}
		resp, err := transport.RoundTrip(req)
		if err == nil {
			err = resp.Body.Close()
		}
		return err
	}
	if err := ask(); err == nil {
		t.Fatal("a failed dial was no error")
	}
	failing = false
	if err := ask(); err != nil {
		t.Errorf("the dial after a failed one: %v", err)
	}
}
