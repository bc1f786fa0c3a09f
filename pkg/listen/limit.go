// Package listen opens the servers of a machine so that hostile programs on it cannot take them from others: a bounded number of
// connections, of which those go first that nothing is served on, and sockets for one user alone. It knows nothing of what is spoken.
package listen

import (
	"container/list"
	"context"
	"errors"
	"net"
	"sync"
)

// Limit returns a listener with at most so many connections open at once. One more closes the oldest on which nothing is being
// served (Serving); where all are, the new one is closed. So who only connects makes room for who asks.
func Limit(l net.Listener, most int) net.Listener {
	return &limited{Listener: l, most: most, open: list.New()}
}

type limited struct {
	net.Listener
	most int

	mu   sync.Mutex
	open *list.List // of *conn, the oldest first
}

// conn is a connection that is counted.
type conn struct {
	net.Conn
	in *limited

	// Guarded by in.mu.
	at      *list.Element // nil once it is closed
	serving int
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
	c.at = l.open.PushBack(c)
	if l.open.Len() <= l.most {
		return nil
	}
	for at := l.open.Front(); at != nil; at = at.Next() {
		if victim = at.Value.(*conn); victim.serving == 0 {
			break
		}
	}
	l.forget(victim)
	return victim
}

// forget takes a connection out of the count. The caller holds l.mu.
func (l *limited) forget(c *conn) {
	if c.at != nil {
		l.open.Remove(c.at)
		c.at = nil
	}
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
