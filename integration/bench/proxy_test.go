package main

import (
	"bytes"
	"errors"
	"io"
	"net"
	"testing"
	"time"
)

func linked(t *testing.T, sc *scope, delay time.Duration) (client, server net.Conn, p *proxy) {
	t.Helper()
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	if p, err = startProxy(sc, listener.Addr().String(), delay); err != nil {
		t.Fatal(err)
	}
	if client, err = new(net.Dialer).DialContext(t.Context(), "tcp", p.addr); err != nil {
		t.Fatal(err)
	}
	if server, err = listener.Accept(); err != nil {
		t.Fatal(err)
	}
	for _, conn := range []net.Conn{client, server} {
		t.Cleanup(func() { _ = conn.Close() })
		if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
			t.Fatal(err)
		}
	}
	return client, server, p
}

func passes(t *testing.T, to, from net.Conn, data []byte) time.Duration {
	t.Helper()
	began := time.Now()
	written := make(chan error, 1)
	go func() {
		_, err := from.Write(data)
		written <- err
	}()
	got := make([]byte, len(data))
	_, err := io.ReadFull(to, got)
	took := time.Since(began)
	if err := errors.Join(err, <-written); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, data) {
		t.Fatal("other bytes came out")
	}
	return took
}

func TestTheProxyDelaysEachWay(t *testing.T) {
	t.Parallel()
	const delay = 20 * time.Millisecond
	var sc scope
	defer sc.close()
	client, server, _ := linked(t, &sc, delay)
	for name, ends := range map[string][2]net.Conn{"to Consul": {server, client}, "from Consul": {client, server}} {
		best := time.Hour
		for range 20 {
			took := passes(t, ends[0], ends[1], []byte{1})
			if took < delay {
				t.Errorf("%s: %s, less than the delay of %s", name, took, delay)
			}
			best = min(best, took)
		}
		if best > 2*delay {
			t.Errorf("%s: %s at best, for a delay of %s", name, best, delay)
		}
	}
}

// Chunks are delayed side by side. Chunks of 32 KiB one after the other would take ten seconds.
func TestTheProxyDoesNotLimitTheRate(t *testing.T) {
	t.Parallel()
	const delay = 20 * time.Millisecond
	var sc scope
	defer sc.close()
	client, server, p := linked(t, &sc, delay)
	data := bytes.Repeat([]byte("consul"), 16<<20/6)
	for name, ends := range map[string][2]net.Conn{"to Consul": {server, client}, "from Consul": {client, server}} {
		if took := passes(t, ends[0], ends[1], data); took > 5*time.Second {
			t.Errorf("%s: %d bytes took %s", name, len(data), took)
		}
	}
	if p.out.Load() != int64(len(data)) || p.in.Load() != int64(len(data)) {
		t.Errorf("counted %d and %d bytes, want %d each", p.out.Load(), p.in.Load(), len(data))
	}
	sc.close()
	if _, err := client.Read(make([]byte, 1)); err == nil {
		t.Error("the connection has outlived the proxy")
	}
}
