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

// farmConns is the most connections that a farm opens to its agent (P8).
const farmConns = consul.DefaultMaxConns + consul.LivenessConns

// FarmConfig is the configuration of a farm daemon.
type FarmConfig struct {
	Common
	ID      string // stable name, unique among the farms
	Workers int    // controllers worked on at once
	// RCSelector confines the farm to controllers with matching labels; empty: all.
	RCSelector string
	Nodes      NodeAccess // for pushes to nodes that have no standing query
	Session    string     // how Consul checks that the farm lives: a consul.SessionMode
	// Uncoordinated: the farm leads whenever no farm does, and does not ask the others (ADR 21).
	Uncoordinated bool
	// ForgetNodeAfter is the time after which the leader removes the records of a node whose machine is gone; zero:
	// never.
	ForgetNodeAfter time.Duration
	// SweepOrphansAfter is the time after which the leader requests the stop of pods with intents whose controller is
	// gone; zero: never.
	SweepOrphansAfter time.Duration
	MetricsLabel      string // the leader counts replicas by values of this label of controllers; empty: all together
	// Scheduler chooses nodes; nil: the one at SchedulerAt, or without a URL there the built-in one. Set only one of
	// the two. docs/examples/farm is a program that sets Scheduler.
	Scheduler   scheduler.Scheduler
	SchedulerAt remote.Config
	// Alerter gets incidents; nil: the log, and AlertWebhook if it is set. Set only one of the two.
	Alerter      alert.Alerter
	AlertWebhook string
}

const minForgetAfter = 10 * time.Second

// Validate reports every mistake.
func (f *FarmConfig) Validate() error {
	var errs field.Errors
	errs.CheckName("id", f.ID)
	if f.Workers < 1 || f.Workers > 256 {
		errs.Add("workers", f.Workers, "a whole number from 1 to 256")
	}
	switch mode := consul.SessionMode(f.Session); mode {
	case consul.ByCheck, consul.ByTTL:
	default:
		errs.Add("session", f.Session,
			fmt.Sprintf("%s (the local agent checks that the farm lives) or %s (no local agent is needed; a loss is "+
				"noticed after 10 to 20 s)", consul.ByCheck, consul.ByTTL))
	}
	atLeast := func(flag string, after time.Duration) {
		if after != 0 && after < minForgetAfter {
			errs.Add(flag, after.String(), "0 (never) or a length of time of 10s or more")
		}
	}
	atLeast("forget-node-after", f.ForgetNodeAfter)
	atLeast("sweep-orphans-after", f.SweepOrphansAfter)
	if label := f.MetricsLabel; label != "" && len(validation.IsQualifiedName(label)) > 0 {
		errs.Add("metrics-label", label, `the key of a label, such as "team" or "example.com/team"`)
	}
	switch {
	case f.SchedulerAt == remote.Config{}:
	case f.Scheduler != nil:
		errs.Add("scheduler-url", f.SchedulerAt.URL,
			"no flag of an outside scheduler, because this program has a scheduler of its own")
	default:
		errs = append(errs, f.SchedulerAt.Check()...)
	}
	switch {
	case f.AlertWebhook == "":
	case f.Alerter != nil:
		errs.Add("alert-webhook", hidden, "no URL, because this program has an alerter of its own")
	case webhook.CheckURL("", f.AlertWebhook) != nil: // its error may contain a secret
		errs.Add("alert-webhook", hidden, `a URL such as "https://alerts.example/rcfarm", without a user or a password`)
	}
	if _, err := rc.ParseSelector(f.RCSelector); err != nil {
		errs.Add("rc-selector", f.RCSelector, `a Kubernetes label selector, such as "env=prod"`)
	}
	f.Nodes.check(&errs)
	f.validate(&errs)
	return errs.Err()
}

// hidden replaces the alert webhook's URL, which may be a secret.
const hidden = "(not shown)"

func (f *FarmConfig) schedulerName() string {
	switch {
	case f.SchedulerAt.URL != "":
		return f.SchedulerAt.URL
	case f.Scheduler != nil:
		return fmt.Sprintf("of this program (%T)", f.Scheduler)
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
	hook      *alert.Hook               // nil: no --alert-webhook
	worker    atomic.Pointer[farm.Farm] // of the present session, or of the last one
}

// NewFarm opens everything that the daemon needs. Consul may be unreachable.
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
	f := &Farm{
		base: b, cfg: cfg, metrics: farm.NewMetrics(reg), counts: roll.NewMetrics(reg),
		cleaned: janitor.NewMetrics(reg),
	}
	f.sender, err = newNodeSender(cfg.Nodes)
	if err == nil {
		b.undo = append(b.undo, f.sender.close)
		f.pusher = push.New(push.Config{
			Send: f.sender.send, Log: b.log.WithField(obs.FarmID, cfg.ID), Metrics: push.NewMetrics(reg),
		})
		f.debug, err = b.openDebug(ctx, reg, f.readiness.Ready)
	}
	if err == nil && cfg.Scheduler == nil && cfg.SchedulerAt.URL != "" {
		var outside *remote.Client
		if outside, err = remote.New(cfg.SchedulerAt); err == nil {
			b.undo = append(b.undo, outside.Close)
			f.cfg.Scheduler = outside
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

// Run works until ctx ends. Then it gives up its locks, and returns the cause.
func (f *Farm) Run(ctx context.Context) error {
	defer f.close()
	defer runtime.KeepAlive(RoomyHeap())
	f.log.WithFields(obs.Fields{
		obs.FarmID: f.cfg.ID, obs.PID: os.Getpid(), "version": Version,
		"emulates": f.store.Emulates(), "scheduler": f.cfg.schedulerName(),
	}).Info("farm starts")
	parts := []func(context.Context) error{f.own, f.debug.Run, f.pusher.Run, f.store.UntilBehind, f.untilLifeline}
	if f.hook != nil {
		parts = append(parts, f.hook.Run)
	}
	err := together(ctx, parts...)
	f.log.WithField(obs.Reason, err.Error()).Info("farm ended")
	return err
}

func (f *Farm) own(ctx context.Context) error {
	session := consul.SessionConfig{
		Kind: "farm", Name: f.cfg.ID, Scope: f.store.Keys().Prefix(), Mode: consul.SessionMode(f.cfg.Session),
		TTL: f.cfg.TTL, Journal: f.dir,
		OnEvent: func(event string, s *consul.Session, err error) {
			if errors.Is(err, consul.ErrLost) {
				f.metrics.SessionLost()
			}
			f.sessionEvents(event, s, err)
		},
		Meta: f.store.FarmMeta(),
		OnRenewed: func(ctx context.Context, s *consul.Session, every time.Duration) error {
			failed := pushFailures(f.pusher.Unreachable())
			err := f.store.FarmHeard(ctx, s, f.cfg.ID, every, failed, f.cfg.Scheduler != nil)
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
			TTL: f.cfg.TTL, Workers: f.cfg.Workers, Metrics: f.metrics, Address: f.debug.Addr(),
			MetricsLabel: f.cfg.MetricsLabel, Push: f.pusher.Push,
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
					Farm: f.cfg.ID, Store: leader, Nodes: worker.Nodes, Ready: worker.Ready,
					After: f.cfg.ForgetNodeAfter, Log: f.log, Metrics: f.cleaned,
				}).Run,
				janitor.NewSweeper(janitor.SweepConfig{
					Farm: f.cfg.ID, Store: leader, Synced: worker.Synced, After: f.cfg.SweepOrphansAfter, Log: f.log,
				}).Run)
		})
	})
}

// heapFloor is how much garbage a farm may make before the collector runs, in bytes. A farm holds some 10 MB for a
// thousand nodes, and allocates several times that in a pass that places thousands of pods. Without the floor, the
// collector would run each time that the farm has allocated as much as it holds, and each run takes 10 ms of processor
// time.
const heapFloor = 32 << 20

// RoomyHeap returns a value that makes the collector run less often while it is kept (runtime.KeepAlive). It takes no
// memory of the machine, because no code touches it.
func RoomyHeap() any { return make([]byte, heapFloor) }
