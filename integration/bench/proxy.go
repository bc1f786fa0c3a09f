package main

import (
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/Shopify/toxiproxy/v2"
	"github.com/Shopify/toxiproxy/v2/stream"
	"github.com/Shopify/toxiproxy/v2/toxics"
	"github.com/rs/zerolog"
)

// proxy passes connections on to Consul, counts their bytes and delays them, by toxiproxy in this program. The latency
// toxic delays each chunk from when it was read, so chunks behind it do not wait longer.
type proxy struct {
	addr    string
	in, out *meter // bytes from and to Consul
}

// meter counts, because toxiproxy's own counts come only when a connection ends, and farms' connections do not end.
type meter struct{ atomic.Int64 }

const meterType = "meter"

func (m *meter) Pipe(stub *toxics.ToxicStub) {
	for {
		select {
		case <-stub.Interrupt:
			return
		case c := <-stub.Input:
			if c == nil {
				stub.Close()
				return
			}
			m.Add(int64(len(c.Data)))
			stub.Output <- c
		}
	}
}

func startProxy(sc *scope, target string, delay time.Duration) (*proxy, error) {
	toxics.Register(meterType, new(meter))
	server := toxiproxy.NewServer(toxiproxy.NewMetricsContainer(nil), zerolog.Nop())
	p := toxiproxy.NewProxy(server, "consul", "127.0.0.1:0", target)
	out, err := addToxics(p, stream.Upstream, delay)
	if err != nil {
		return nil, err
	}
	in, err := addToxics(p, stream.Downstream, delay)
	if err != nil {
		return nil, err
	}
	if err := p.Start(); err != nil {
		return nil, fmt.Errorf("start a proxy: %w", err)
	}
	sc.add(p.Stop)
	return &proxy{addr: p.Listen, in: in, out: out}, nil
}

func addToxics(p *toxiproxy.Proxy, to stream.Direction, delay time.Duration) (*meter, error) {
	added, err := p.Toxics.AddToxicJson(strings.NewReader(fmt.Sprintf(`{"type":%q,"stream":%q}`, meterType, to)))
	if err == nil && delay > 0 {
		latency := `{"type":"latency","stream":%q,"attributes":{"latency":%d}}`
		_, err = p.Toxics.AddToxicJson(strings.NewReader(fmt.Sprintf(latency, to, delay.Milliseconds())))
	}
	if err != nil {
		return nil, fmt.Errorf("set up a proxy: %w", err)
	}
	return added.Toxic.(*meter), nil
}
