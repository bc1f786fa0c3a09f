package app

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/election"
	"github.com/rcfarm/rcfarm/pkg/farm"
	"github.com/rcfarm/rcfarm/pkg/farm/alert"
	"github.com/rcfarm/rcfarm/pkg/farm/janitor"
	"github.com/rcfarm/rcfarm/pkg/farm/push"
	"github.com/rcfarm/rcfarm/pkg/farm/roll"
	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/internal/webhook"
	"github.com/rcfarm/rcfarm/pkg/obs"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/scheduler"
	"github.com/rcfarm/rcfarm/pkg/scheduler/remote"
)

// farmConns is how many connections a farm may take of its agent (P8).
const farmConns = consul.DefaultMaxConns + consul.LivenessConns

// FarmConfig is what a farm daemon is told.
type FarmConfig struct {
	Common
	ID      string // stable name, unique among the farms
	Workers int    // controllers worked on at once
	// RCSelector confines the farm to controllers with matching labels; empty: all.
	RCSelector string
	Nodes      NodeAccess // for those that are told of their intents, in place of a standing query
	Session    string     // who vouches for the farm: a consul.SessionMode
	// Uncoordinated has the farm take the lead whenever nobody has it, and ask nobody (ADR 21).
	Uncoordinated bool
	// ForgetNodeAfter is for how long a node's machine must have been gone before the leader removes its records; zero: it never does.
	ForgetNodeAfter time.Duration
	// SweepOrphansAfter is for how long a controller must have been gone before the leader asks for the end of what nodes are told of it; zero: it
	// never does.
	SweepOrphansAfter time.Duration
	MetricsLabel      string // of controllers, by whose values the leader counts replicas; empty: all together
	// Scheduler is asked for nodes in place of the built-in one; nil: the one that SchedulerAt leads to, if that has a URL. Only one of the
	// two may be set. docs/examples/farm is a program that sets it.
	Scheduler   scheduler.Scheduler
	SchedulerAt remote.Config
	// Alerter is told of incidents; nil: the log, and AlertWebhook if that is a URL. Only one of the two may be set.
	Alerter      alert.Alerter
	AlertWebhook string
}

// minForgetAfter is for how long at least a node or a controller is gone before the leader acts.
const minForgetAfter = 10 * time.Second

// Validate reports every mistake.
func (c *FarmConfig) Validate() error {
	var errs field.Errors
	errs.CheckName("id", c.ID)
	if c.Workers < 1 || c.Workers > 256 {
		errs.Add("workers", c.Workers, "a whole number from 1 to 256")
	}
	switch mode := consul.SessionMode(c.Session); mode {
	case consul.ByCheck, consul.ByTTL:
	default:
		errs.Add("session", c.Session, fmt.Sprintf("%s (the local agent vouches for the farm) or %s (no local agent is needed; loss is seen after 10 to 20 s)", consul.ByCheck, consul.ByTTL))
	}
	late := func(flag string, after time.Duration) {
		if after != 0 && after < minForgetAfter {
			errs.Add(flag, after.String(), "0 (never) or a length of time from 10s on")
		}
	}
	late("forget-node-after", c.ForgetNodeAfter)
	late("sweep-orphans-after", c.SweepOrphansAfter)
	if label := c.MetricsLabel; label != "" && len(validation.IsQualifiedName(label)) > 0 {
		errs.Add("metrics-label", label, `the key of a label, such as "team" or "example.com/team"`)
	}
	switch {
	case c.SchedulerAt == remote.Config{}:
	case c.Scheduler != nil:
		errs.Add("scheduler-url", c.SchedulerAt.URL, "none of the flags of an outside scheduler, as this program has a scheduler of its own")
	default:
		errs = append(errs, c.SchedulerAt.Check()...)
	}
	switch {
	case c.AlertWebhook == "":
	case c.Alerter != nil:
		errs.Add("alert-webhook", hidden, "none, as this program has an alerter of its own")
	case webhook.CheckURL("", c.AlertWebhook) != nil: // what is wrong with it may be a secret
		errs.Add("alert-webhook", hidden, `a URL such as "https://alerts.example/rcfarm", without a user or a password`)
	}
	if _, err := rc.ParseSelector(c.RCSelector); err != nil {
		errs.Add("rc-selector", c.RCSelector, `a Kubernetes label selector, such as "env=prod"`)
	}
	c.Nodes.check(&errs)
	c.validate(&errs)
	return errs.Err()
}

// hidden stands for the URL of the webhook for alerts, which may be a secret.
const hidden = "(not shown)"

// asks names the scheduler that is asked for nodes, for the log.
func (c *FarmConfig) asks() string {
	switch {
	case c.SchedulerAt.URL != "":
		return c.SchedulerAt.URL
	case c.Scheduler != nil:
		return fmt.Sprintf("of this program (%T)", c.Scheduler)
	default:
		return "built-in"
	}
}

// Farm is the farm daemon.
type Farm struct {
	*base
	cfg       FarmConfig
	metrics   *farm.Metrics
	counts    *roll.Metrics // of rollouts
	cleaned   *janitor.Metrics
	debug     *obs.DebugServer
	pusher    *push.Pusher
	sender    *nodeSender
	readiness readiness
	hook      *alert.Hook               // nil: none was asked for
	worker    atomic.Pointer[farm.Farm] // under the present session, or the last
}

// NewFarm opens everything that the daemon needs except Consul, which may be away for now.
func NewFarm(ctx context.Context, cfg FarmConfig) (*Farm, error) {
	if err := cfg.Validate(); err != nil {
		return nil, misconfigured(err)
	}
	b, err := open(ctx, cfg.Common, farmConns, os.Stderr)
	if err != nil {
		return nil, err
	}
	reg := obs.NewRegistry()
	b.obstacles = b.newObstacles(reg, "farm")
	f := &Farm{base: b, cfg: cfg, metrics: farm.NewMetrics(reg), counts: roll.NewMetrics(reg), cleaned: janitor.NewMetrics(reg)}
	f.sender, err = newNodeSender(cfg.Nodes)
	if err == nil {
		b.undo = append(b.undo, f.sender.close)
		f.pusher = push.New(push.Config{Send: f.sender.send, Log: b.log.WithField(obs.FarmID, cfg.ID), Metrics: push.NewMetrics(reg)})
		f.debug, err = b.openDebug(ctx, reg, f.readiness.Ready)
	}
	if err == nil && cfg.Scheduler == nil && cfg.SchedulerAt.URL != "" {
		var asked *remote.Client
		if asked, err = remote.New(cfg.SchedulerAt); err == nil {
			b.undo = append(b.undo, asked.Close)
			f.cfg.Scheduler = asked
		}
	}
	if cfg.AlertWebhook != "" {
		f.hook = f.newHook(reg)
		f.cfg.Alerter = f.hook
	}
	if b.started = err == nil; !b.started {
		b.close()
	}
	return f, err
}

// Run works until ctx ends. Then it stops working, gives up its locks, and returns the cause.
func (f *Farm) Run(ctx context.Context) error {
	defer f.close()
	defer runtime.KeepAlive(RoomyHeap())
	f.log.WithFields(obs.Fields{obs.FarmID: f.cfg.ID, obs.PID: os.Getpid(), "version": Version, "emulates": f.store.Emulates(), "scheduler": f.cfg.asks()}).Info("farm starts")
	parts := []func(context.Context) error{f.own, f.debug.Run, f.pusher.Run, f.store.UntilBehind, f.untilLifeline}
	if f.hook != nil {
		parts = append(parts, f.hook.Run)
	}
	err := together(ctx, parts...)
	f.log.WithField(obs.Reason, err.Error()).Info("farm ended")
	return err
}

// own owns controllers, in one session after the other.
func (f *Farm) own(ctx context.Context) error {
	session := consul.SessionConfig{
		Kind: "farm", Name: f.cfg.ID, Scope: f.store.Keys().Prefix(), Mode: consul.SessionMode(f.cfg.Session), TTL: f.cfg.TTL, Journal: f.dir,
		OnEvent: func(event string, s *consul.Session, err error) {
			if errors.Is(err, consul.ErrLost) {
				f.metrics.SessionLost()
			}
			f.sessionEvents(event, s, err)
		},
		Meta: f.store.FarmMeta(),
		OnRenewed: func(ctx context.Context, s *consul.Session, every time.Duration) error {
			err := f.store.FarmHeard(ctx, s, f.cfg.ID, every, untold(f.pusher.Unreachable()), f.cfg.Scheduler != nil)
			if err == nil && f.readiness.Ready() == nil {
				f.obstacles.over()
			}
			return err
		},
		Stuck: stuck,
	}
	selector, err := rc.ParseSelector(f.cfg.RCSelector)
	if err != nil {
		return err
	}
	return f.client.RunSession(ctx, session, func(ctx context.Context, s *consul.Session) error {
		session := f.store.FarmSession(s, f.cfg.ID)
		worker := farm.NewFarm(farm.Config{
			ID: f.cfg.ID, Version: Version, Store: session, Log: f.log, Alerter: f.cfg.Alerter,
			RCSelector: selector, Scheduler: f.cfg.Scheduler,
			TTL: f.cfg.TTL, Workers: f.cfg.Workers, Metrics: f.metrics, Address: f.debug.Addr(), MetricsLabel: f.cfg.MetricsLabel, Tell: f.pusher.Tell,
			Rollouts: f.counts, Ask: webhook.Ask,
		})
		defer f.readiness.begin(worker.Ready)()
		f.worker.Store(worker)
		leader := f.store.Leader(f.cfg.ID, election.Commit)
		return together(ctx, worker.Start, func(ctx context.Context) error {
			select {
			case <-worker.Joined():
			case <-ctx.Done():
				return context.Cause(ctx)
			}
			return f.takePart(ctx, s, worker,
				func(ctx context.Context) error { return worker.Lead(ctx, leader) },
				janitor.New(janitor.Config{Records: leader, Log: f.log}).Run,
				janitor.NewForgetter(janitor.ForgetConfig{
					Farm: f.cfg.ID, Graves: leader, Nodes: worker.Nodes, Ready: worker.Ready, After: f.cfg.ForgetNodeAfter, Log: f.log, Metrics: f.cleaned,
				}).Run,
				janitor.NewSweeper(janitor.SweepConfig{
					Farm: f.cfg.ID, Strays: leader, Synced: worker.Synced, After: f.cfg.SweepOrphansAfter, Log: f.log,
				}).Run)
		})
	})
}

// heapFloor is how much a farm may throw away before the collector runs, in bytes. A farm holds some 10 MB for a thousand nodes, and
// makes several times that in a pass that places thousands of pods: each time that as much again was made as it holds, the collector
// would run, for 10 ms of processor time.
const heapFloor = 32 << 20

// RoomyHeap returns what makes the collector of a farm's program run less often, for as long as it is kept (runtime.KeepAlive). Nobody
// touches it, so that it takes no memory itself; but the collector counts it among what the program holds.
func RoomyHeap() any { return make([]byte, heapFloor) }
