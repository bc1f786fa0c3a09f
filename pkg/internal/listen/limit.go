// Package listen opens the servers of a machine so that hostile programs on it cannot take them from others: a bounded number of
// connections, of which those go first that nothing is served on, and sockets for one user alone. It knows nothing of what is spoken.
package listen

import (
	"context"
	"errors"
	"net"
	"slices"
	"sync"
)

// Limit returns a listener with at most so many connections open at once. One more closes the oldest on which nothing is being
// served (Serving); where all are, the new one is closed. So who only connects makes room for who asks.
func Limit(l net.Listener, most int) net.Listener {
	return &limited{Listener: l, most: most}
}

type limited struct {
	net.Listener
	most int

	mu   sync.Mutex
	open []*conn // the oldest first
}

// conn is a connection that is counted.
type conn struct {
	net.Conn
	in      *limited
	serving int // guarded by in.mu
}

// Accept returns the next connection that there is room for.
func (l *limited) Accept() (net.Conn, error) {
	for {
		accepted, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		c := &conn{Conn: accepted, in: l}
		victim := l.add(c)
		if victim != nil {
			_ = victim.Conn.Close() // its server is told by its next read or write
		}
		if victim != c {
			return c, nil
		}
	}
}

// add counts a connection in, and returns the one that is to be closed for it, which may be the new one.
func (l *limited) add(c *conn) (victim *conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open = append(l.open, c)
	if len(l.open) <= l.most {
		return nil
	}
	victim = c
	if i := slices.IndexFunc(l.open, func(c *conn) bool { return c.serving == 0 }); i >= 0 {
		victim = l.open[i]
	}
	l.forget(victim)
	return victim
}

// forget takes a connection out of the count, if it is in it. The caller holds l.mu.
func (l *limited) forget(c *conn) {
	l.open = slices.DeleteFunc(l.open, func(open *conn) bool { return open == c })
}

// Close closes the connection, and gives its place to another.
func (c *conn) Close() error {
	c.in.mu.Lock()
	c.in.forget(c)
	c.in.mu.Unlock()
	return c.Conn.Close()
}

// CloseWrite ends what is sent, and not what is read: net/http does that before it closes, so that an answer is read by who still sends.
func (c *conn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return errors.ErrUnsupported
}

type connKey struct{}

// Context is http.Server.ConnContext for a server of a listener by Limit: it lets Serving find the connection of a request.
func Context(ctx context.Context, c net.Conn) context.Context {
	if wrapped, ok := c.(interface{ NetConn() net.Conn }); ok { // *tls.Conn
		c = wrapped.NetConn()
	}
	return context.WithValue(ctx, connKey{}, c)
}

// Serving keeps the connection of a request, by its context, until end is called. It is for requests that were admitted.
func Serving(ctx context.Context) (end func()) {
	c, ok := ctx.Value(connKey{}).(*conn)
	if !ok {
		return func() {}
	}
	add := func(n int) {
		c.in.mu.Lock()
		defer c.in.mu.Unlock()
		c.serving += n
	}
	add(1)
	return func() { add(-1) }
}
