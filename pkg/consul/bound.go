package consul

import (
	"context"
	"net"
	"net/http"
	"sync"
)

// bound lets a transport have at most n open sockets to its host (P8). If the host has several addresses, one dial can
// try two at the same time.
//
// The transport's own limit is not enough: it does not count a connection that it has begun to close. But the socket is
// open until the goroutine that reads from it has run. On a busy machine this can take long.
func bound(t *http.Transport, n int) {
	t.MaxConnsPerHost = n
	slots, dial := make(chan struct{}, n), t.DialContext
	t.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		inner, err := dial(ctx, network, addr)
		if err != nil {
			<-slots
			return nil, err
		}
		return &boundConn{Conn: inner, release: sync.OnceFunc(func() { <-slots })}, nil
	}
}

type boundConn struct {
	net.Conn

	release func()
}

// Close also gives the slot back.
func (c *boundConn) Close() error {
	defer c.release()
	return c.Conn.Close()
}
