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

// proxy passes connections on to Consul, counts their bytes and delays them, as a network would. It is toxiproxy in this
// program: its latency toxic holds each chunk from when it was read, so that those behind it do not wait longer.
type proxy struct {
	addr    string
	in, out *meter // bytes from and to Consul
}

// meter is a toxic that only counts. Toxiproxy's own figures come when a connection ends, which those of farms do not.
type meter struct{ atomic.Int64 }

// meterType is the meter's name among the toxics.
const meterType = "meter"

// Pipe implements toxics.Toxic.
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

// startProxy starts a proxy with so much delay each way, in whole milliseconds.
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

// addToxics counts and delays one direction.
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
