package election_test

import (
	"bytes"
	"context"
	"io"
	"net"
	"sync"
	"testing"
	"time"
)

// gate stands between a client and Consul. While it is shut nothing passes from the client on, and what it has sent arrives when the gate is
// opened, although the client may have given up long ago: so do the writes of a process that is stopped and continued.
type gate struct {
	addr string

	mu   sync.Mutex
	open chan struct{} // closed while the gate is open
	held chan struct{} // closed when a transaction waits at the gate
}

func startGate(tb testing.TB, target string) *gate {
	tb.Helper()
	l, err := new(net.ListenConfig).Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	g := &gate{addr: l.Addr().String(), open: make(chan struct{})}
	close(g.open)
	var all sync.WaitGroup
	var mu sync.Mutex
	var conns []net.Conn
	keep := func(c net.Conn) {
		mu.Lock()
		defer mu.Unlock()
		conns = append(conns, c)
	}
	all.Go(func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			out, err := new(net.Dialer).DialContext(context.Background(), "tcp", target)
			if err != nil {
				_ = in.Close()
				continue
			}
			keep(in)
			keep(out)
			all.Go(func() { g.pass(in, out) })
			all.Go(func() {
				_, _ = io.Copy(in, out)
				_ = in.Close()
			})
		}
	})
	tb.Cleanup(func() {
		g.reopen()
		_ = l.Close()
		mu.Lock()
		for _, c := range conns {
			_ = c.Close()
		}
		mu.Unlock()
		all.Wait()
	})
	return g
}

func (g *gate) pass(in, out net.Conn) {
	defer out.Close()
	buf := make([]byte, 64<<10)
	for {
		n, err := in.Read(buf)
		if n > 0 {
			g.mu.Lock()
			open := g.open
			if g.held != nil && bytes.Contains(buf[:n], []byte("/v1/txn")) {
				close(g.held)
				g.held = nil
			}
			g.mu.Unlock()
			<-open
			if _, err := out.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// shut closes the gate, and returns when a transaction waits at it. It opens the gate again and reports false where the client sends none:
// it may have stopped to lead just before.
func (g *gate) shut() bool {
	g.mu.Lock()
	held := make(chan struct{})
	g.open, g.held = make(chan struct{}), held
	g.mu.Unlock()
	select {
	case <-held:
		return true
	case <-time.After(5 * time.Second): // a leader writes all the time
		g.reopen()
		return false
	}
}

func (g *gate) reopen() {
	g.mu.Lock()
	defer g.mu.Unlock()
	select {
	case <-g.open:
	default:
		close(g.open)
	}
}
