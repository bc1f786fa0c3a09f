// Package listen helps servers against hostile programs on the same machine, which could block them for other clients.
package listen

import (
	"context"
	"errors"
	"net"
	"slices"
	"sync"
	"time"
)

// grace is how long a connection stays open at least after its server has begun to read from it. Without it, many
// connections at once could close a client's connection before the server has read its request.
const grace = 100 * time.Millisecond

// Limit returns a listener with at most `most` connections. For a new one it closes the oldest on which no request is
// being served (see Serving), after its grace time. If there is none, it closes the new one.
func Limit(l net.Listener, most int) net.Listener {
	return &limited{Listener: l, most: most}
}

type limited struct {
	net.Listener
	most int

	mu   sync.Mutex
	open []*conn // the oldest first
}

type conn struct {
	net.Conn
	in *limited

	// Guarded by in.mu.
	reading time.Time // when its server began to read; zero: the server has not read yet
	serving int
}

// Read implements net.Conn.
func (c *conn) Read(into []byte) (int, error) {
	c.in.mu.Lock()
	if c.reading.IsZero() {
		c.reading = time.Now()
	}
	c.in.mu.Unlock()
	return c.Conn.Read(into)
}

// Accept waits if another connection must be closed first. Meanwhile new clients wait in the kernel's queue.
func (l *limited) Accept() (net.Conn, error) {
	for {
		accepted, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		c := &conn{Conn: accepted, in: l}
		victim, wait := l.add(c)
		for wait > 0 {
			<-time.After(wait)
			victim, wait = l.add(c)
		}
		if victim != nil {
			_ = victim.Conn.Close() // the server of the closed connection notices at its next read or write
		}
		if victim != c {
			return c, nil
		}
	}
}

// add counts a new connection, and returns the connection to close for it, perhaps the new one. If wait is not zero,
// add must be called again.
func (l *limited) add(c *conn) (victim *conn, wait time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.open) < l.most {
		l.open = append(l.open, c)
		return nil, 0
	}
	i := slices.IndexFunc(l.open, func(c *conn) bool { return c.serving == 0 })
	if i < 0 {
		return c, 0
	}
	victim = l.open[i]
	if victim.reading.IsZero() {
		return nil, grace
	}
	if wait = grace - time.Since(victim.reading); wait > 0 {
		return nil, wait
	}
	l.forget(victim)
	l.open = append(l.open, c)
	return victim, 0
}

func (l *limited) forget(c *conn) {
	l.open = slices.DeleteFunc(l.open, func(open *conn) bool { return open == c })
}

// Close closes the connection. It is not counted any more.
func (c *conn) Close() error {
	c.in.mu.Lock()
	c.in.forget(c)
	c.in.mu.Unlock()
	return c.Conn.Close()
}

// CloseWrite closes only the sending side. net/http calls it before it closes a connection, because a client that still
// sends must be able to read the answer.
func (c *conn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return errors.ErrUnsupported
}

type connKey struct{}

// Context is a value for http.Server.ConnContext. Serving needs it to find the connection of a request.
func Context(ctx context.Context, c net.Conn) context.Context {
	if wrapped, ok := c.(interface{ NetConn() net.Conn }); ok { // *tls.Conn
		c = wrapped.NetConn()
	}
	return context.WithValue(ctx, connKey{}, c)
}

// Serving protects the connection of a request from Limit until end is called. Call it only for requests that are
// admitted.
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
