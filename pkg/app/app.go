// Package app builds rcfarm's daemons from the other packages, and runs development clusters (dev.go). It closes
// everything that it opens.
package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/oklog/run"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/feature"
	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/obs"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// Common is the configuration that all daemons share.
type Common struct {
	ConsulAddr string // empty: Consul's own environment variables
	TokenFile  string // with the Consul ACL token; empty: Consul's own environment variables
	Prefix     string
	TTL        time.Duration // of the liveness check
	DataDir    string        // belongs to one daemon (R11)
	LogLevel   string
	LogFormat  string
	DebugAddr  string // of the debug server; obs.DebugOff: none
	// DebugPublic allows a debug address that other machines can reach.
	DebugPublic bool
	// EmulationVersion is the newest version whose records the daemon writes (ADR 28); empty: see
	// feature.Known.Emulated.
	EmulationVersion string
	Lifeline         string // path of a named pipe; the daemon ends when its starter closes it. Development only
}

// preparerSessionTTL is the TTL of a preparer's sessions, which end earlier if its check fails. It is long, because
// each renewal costs Consul's servers work, and there can be thousands of nodes. Farms are few. Their sessions have the
// TTL of the liveness check, or the shortest TTL that Consul accepts if that is longer.
const preparerSessionTTL = time.Minute

// MinTTL is the shortest TTL of the liveness check. With a shorter one, the daemons of a busy machine would look dead.
const MinTTL = time.Second

func (c *Common) validate(errs *field.Errors) {
	if c.TTL < MinTTL || c.TTL > node.MaxTTL {
		errs.Add("ttl", c.TTL.String(), "a length of time from 1s to 1m")
	}
	if c.DataDir == "" {
		errs.Missing("data-dir", "a directory for this daemon alone")
	}
	obs.CheckDebugAddr(errs, c.DebugAddr, c.DebugPublic)
	if c.EmulationVersion != "" {
		feature.Known.CheckEmulation(errs, "emulation-version", c.EmulationVersion, Version)
	}
}

type base struct {
	common    Common
	log       obs.Logger
	dir       *DataDir
	client    *consul.Client
	store     *store.Store
	alive     <-chan struct{} // closed when the lifeline breaks; nil without one
	undo      []func()        // last in, first out
	obstacles *obstacles
	// Until started is set, close also removes the directories that this start has made.
	started bool
}

// open makes the parts that both daemons need. After an error, it closes the parts that are open.
func open(ctx context.Context, c Common, maxConns int, logTo io.Writer) (b *base, err error) {
	b = &base{common: c}
	defer func() {
		if err != nil {
			b.close()
		}
	}()
	if b.log, err = obs.NewLogger(logTo, c.LogLevel, c.LogFormat); err != nil {
		return b, misconfigured(err)
	}
	keys, err := store.NewKeys(c.Prefix)
	if err != nil {
		return b, misconfigured(err)
	}
	if b.dir, err = OpenDataDir(ctx, c.DataDir); err != nil {
		return b, err
	}
	b.undo = append(b.undo, func() {
		if !b.started {
			b.dir.Discard()
		}
		b.dir.Close()
	})
	if b.client, err = consul.New(consul.Config{
		Address: c.ConsulAddr, TokenFile: c.TokenFile, MaxConns: maxConns - consul.LivenessConns,
		OnTokenFile: func(err error) { b.log.WithError(err).Warn("the token file cannot be read") },
	}); err != nil {
		return b, err
	}
	if err := b.client.CheckToken(); err != nil {
		b.log.WithError(err).Warn("no usable token; Consul is not asked before the token file is there")
	}
	b.undo = append(b.undo, b.client.Close)
	b.store = store.New(b.client, keys)
	b.store.Emulate(cmp.Or(c.EmulationVersion, feature.Known.Emulated(Version)))
	if c.Lifeline != "" {
		line, err := HoldLifeline(c.Lifeline)
		if err != nil {
			return b, err
		}
		b.undo = append(b.undo, line.Close)
		b.alive = line.Broken()
	}
	return b, nil
}

func (b *base) close() {
	for _, undo := range slices.Backward(b.undo) {
		undo()
	}
	b.undo = nil
}

// ErrLifeline is the error of a daemon that ends with its development cluster.
var ErrLifeline = errors.New("the development cluster has ended")

func (b *base) untilLifeline(ctx context.Context) error {
	select {
	case <-b.alive: // nil without a lifeline: never
		return ErrLifeline
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// The log has an obstacle already, so events that it causes are debug.
func (b *base) sessionEvents(event string, s *consul.Session, err error) {
	log := b.log
	met := b.obstacles.met(err)
	if s != nil {
		log = log.WithField(obs.Incarnation, s.Incarnation).WithField(obs.SessionID, s.Releasing)
	}
	switch {
	case met:
		log.WithError(err).Debug(event)
	case err != nil:
		log.WithError(err).Warn(event)
	case b.obstacles.Err() != nil:
		log.Debug(event)
	default:
		log.Info(event)
	}
}

// WithSignals returns a context that ends at the first SIGINT or SIGTERM. A second signal ends the program at once with
// status 1.
func WithSignals(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() {
		select {
		case s := <-signals:
			cancel(fmt.Errorf("%w: %s", ErrSignal, s))
		case <-ctx.Done():
			return
		}
		<-signals
		os.Exit(1)
	}()
	return ctx, func() { cancel(nil); signal.Stop(signals) }
}

// ErrSignal is the cause of a context that a signal ended.
var ErrSignal = errors.New("asked to stop")

// Clean reports whether err is nil or only means that the daemon was asked to end.
func Clean(err error) bool {
	return err == nil || errors.Is(err, ErrSignal) || errors.Is(err, ErrLifeline) || errors.Is(err, context.Canceled)
}

func (b *base) openDebug(ctx context.Context, reg *prometheus.Registry, ready func() error) (*obs.DebugServer, error) {
	s, err := obs.NewDebugServer(ctx, obs.DebugConfig{
		Addr: b.common.DebugAddr, Public: b.common.DebugPublic, Gatherer: reg, Ready: b.obstacles.or(ready), Log: b.log,
	})
	if err == nil {
		b.undo = append(b.undo, s.Close)
	}
	return s, err
}

// together runs parts until the first returns, then ends the others, and returns the first error.
func together(ctx context.Context, parts ...func(context.Context) error) error {
	var group run.Group
	for _, part := range parts {
		ctx, cancel := context.WithCancel(ctx)
		group.Add(func() error { return part(ctx) }, func(error) { cancel() })
	}
	return group.Run()
}

var errNoSession = errors.New("no session with Consul is held")

type readiness struct {
	ready atomic.Pointer[func() error] // nil: there is no session
}

func (r *readiness) begin(ready func() error) (end func()) {
	r.ready.Store(&ready)
	return func() { r.ready.Store(nil) }
}

// Ready returns nil when a session is held and the daemon is ready under it.
func (r *readiness) Ready() error {
	if ready := r.ready.Load(); ready != nil {
		return (*ready)()
	}
	return errNoSession
}
