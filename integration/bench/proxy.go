package main

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// proxy passes connections on to Consul, counts their bytes and delays them, as a network would.
type proxy struct {
	addr   string
	target string
	delay  time.Duration // each way

	in, out atomic.Int64 // bytes from and to Consul
	wg      sync.WaitGroup

	mu     sync.Mutex
	conns  map[net.Conn]bool
	closed bool
}

func startProxy(ctx context.Context, sc *scope, target string, delay time.Duration) (*proxy, error) {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &proxy{addr: listener.Addr().String(), target: target, delay: delay, conns: map[net.Conn]bool{}}
	p.wg.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return // closed below
			}
			p.wg.Go(func() { p.serve(ctx, conn) })
		}
	})
	sc.add(func() {
		_ = listener.Close()
		p.mu.Lock()
		p.closed = true
		for conn := range p.conns {
			_ = conn.Close() // ends its two copies
		}
		p.mu.Unlock()
		p.wg.Wait()
	})
	return p, nil
}

// keep remembers a connection, or closes it when the proxy is closed already.
func (p *proxy) keep(conn net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		_ = conn.Close()
		return false
	}
	p.conns[conn] = true
	return true
}

func (p *proxy) serve(ctx context.Context, client net.Conn) {
	if !p.keep(client) {
		return
	}
	server, err := new(net.Dialer).DialContext(ctx, "tcp", p.target)
	if err != nil {
		_ = client.Close()
		return
	}
	if !p.keep(server) {
		_ = client.Close()
		return
	}
	var both sync.WaitGroup
	both.Go(func() { p.pass(server, client, &p.out) })
	both.Go(func() { p.pass(client, server, &p.in) })
	both.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.conns, client)
	delete(p.conns, server)
}

// chunk is what was read at once, and when it is due.
type chunk struct {
	data []byte
	due  time.Time
}

// inFlight bounds what is on its way in one direction, in chunks.
const inFlight = 1024

// pass copies until one side ends, and then ends both.
func (p *proxy) pass(to, from net.Conn, count *atomic.Int64) {
	chunks := make(chan chunk, inFlight)
	var writer sync.WaitGroup
	writer.Go(func() {
		for c := range chunks {
			if wait := time.Until(c.due); wait > 0 {
				<-time.After(wait)
			}
			if _, err := to.Write(c.data); err != nil {
				_ = from.Close() // ends the reader, which closes chunks
			}
		}
		_ = to.Close()
	})
	buf := make([]byte, 64*1024)
	for {
		n, err := from.Read(buf)
		if n > 0 {
			count.Add(int64(n))
			chunks <- chunk{data: append([]byte(nil), buf[:n]...), due: time.Now().Add(p.delay)}
		}
		if err != nil {
			break
		}
	}
	close(chunks)
	writer.Wait()
	_ = from.Close()
}
