package app

import (
	"context"
	"errors"
	"sync/atomic"

	"github.com/oklog/run"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/rcfarm/rcfarm/pkg/obs"
)

// openDebug opens the daemon's debug server. ready says whether the daemon does its work.
func (b *base) openDebug(ctx context.Context, reg *prometheus.Registry, ready func() error) (*obs.DebugServer, error) {
	s, err := obs.NewDebugServer(ctx, obs.DebugConfig{
		Addr: b.common.DebugAddr, Public: b.common.DebugPublic, Gatherer: reg, Ready: ready, Log: b.log,
	})
	if err == nil {
		b.undo = append(b.undo, s.Close)
	}
	return s, err
}

// together runs parts until the first returns; then it ends the others, waits for them, and returns what the first did.
func together(ctx context.Context, parts ...func(context.Context) error) error {
	var group run.Group
	for _, part := range parts {
		ctx, cancel := context.WithCancel(ctx)
		group.Add(func() error { return part(ctx) }, func(error) { cancel() })
	}
	return group.Run()
}

var errNoSession = errors.New("no session with Consul is held")

// tenure is what the daemon runs under the present session, for those who ask whether it is ready.
type tenure struct {
	ready atomic.Pointer[func() error] // nil: there is no session
}

// begin notes that a session is held, and returns what ends it.
func (t *tenure) begin(ready func() error) (end func()) {
	t.ready.Store(&ready)
	return func() { t.ready.Store(nil) }
}

// Ready returns nil when a session is held and the daemon is ready under it.
func (t *tenure) Ready() error {
	if ready := t.ready.Load(); ready != nil {
		return (*ready)()
	}
	return errNoSession
}
