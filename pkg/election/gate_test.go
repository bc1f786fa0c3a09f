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

// gate is a proxy between a client and Consul. While it is shut, it holds back what the client sends. When it is
// opened, the held requests arrive at Consul, even if the client has given up long ago. The writes of a process that is
// stopped and continued arrive in the same way.
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

// shut closes the gate, and returns true when a transaction waits at it. If the client sends no transaction, because it
// does not lead any more, shut opens the gate again and returns false.
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
