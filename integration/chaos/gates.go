package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"time"

	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/rollout"
)

const (
	gateTimeout = 300 * time.Millisecond
	gateRefuses = 10 // of 100 calls
	gateHangs   = 5  // of 100 calls
)

// serveGates answers the webhooks of rollouts. It agrees to most calls, refuses some, and answers others too late.
func (c *chaos) serveGates(ctx context.Context) error {
	var listen net.ListenConfig
	ln, err := listen.Listen(ctx, "tcp", fmt.Sprintf("%s%d:0", subnet, bridgeNum))
	if err != nil {
		return fmt.Errorf("serve gates: %w", err)
	}
	c.gateURL = "http://" + ln.Addr().String() + "/gate"
	server := &http.Server{
		ReadHeaderTimeout: time.Second,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			switch dice := rand.N(100); {
			case dice < gateRefuses:
				http.Error(w, "not now", http.StatusServiceUnavailable)
			case dice < gateRefuses+gateHangs:
				<-r.Context().Done()
			}
		}),
	}
	context.AfterFunc(ctx, func() { _ = server.Close() })
	go func() { _ = server.Serve(ln) }()
	return nil
}

func (c *chaos) gates() rollout.Gates {
	hook := rollout.Hook{URL: c.gateURL, Timeout: new(field.Duration), Retries: new(int)}
	*hook.Timeout, *hook.Retries = field.Duration(gateTimeout), 2
	return rollout.Gates{BeforeStage: []rollout.Hook{hook}, AfterStage: []rollout.Hook{hook}}
}
