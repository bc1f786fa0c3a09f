package farm

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/util/workqueue"

	"github.com/rcfarm/rcfarm/pkg/farm/alert"
	"github.com/rcfarm/rcfarm/pkg/farm/janitor"
	"github.com/rcfarm/rcfarm/pkg/farm/looks"
	"github.com/rcfarm/rcfarm/pkg/farm/push"
	"github.com/rcfarm/rcfarm/pkg/farm/roll"
	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/obs"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/scale"
	"github.com/rcfarm/rcfarm/pkg/scheduler"
	"github.com/rcfarm/rcfarm/pkg/store"
	"github.com/rcfarm/rcfarm/pkg/wait"
)

// Config has what a farm needs under one session. Zero durations and zero counts mean the defaults. app.Farm starts a
// Farm for each session; a program that only needs its own scheduler sets app.FarmConfig.Scheduler.
type Config struct {
	ID      string  // stable name; required
	Version string  // of the program
	Store   Session // required
	// Scheduler chooses nodes; nil: the built-in scheduler. See scheduler.Books for a scheduler that keeps books.
	Scheduler scheduler.Scheduler
	Log       obs.Logger    // nil: nothing is logged
	Alerter   alert.Alerter // nil: the log
	Metrics   *Metrics      // nil: nothing is counted
	// MetricsLabel is a label of controllers. The leader counts replicas by its values; empty: all together.
	MetricsLabel string
	Address      string        // of the daemon's debug server, for the farm's member record; may be empty
	Rollouts     *roll.Metrics // nil: rollouts are not counted
	Ask          roll.Ask      // calls the gates (webhooks) of rollouts; nil: every gate refuses
	// Push pushes to a node that does not watch its intents. It must not block. Nil: the farm pushes to no node.
	Push func(to push.Target, r scale.Request)

	RCSelector labels.Selector // of the labels of the controllers that the farm works on; nil: all
	// RCID, if not empty, is the only controller that the farm works on, with any labels; see New.
	RCID string

	// The last value in each comment is the default.
	TTL         time.Duration // liveness TTL of the cluster's daemons; 2 s
	Workers     int           // how many units are looked at concurrently; 64
	SweepEvery  time.Duration // between two sweeps, plus jitter; 30 s
	ResyncEvery time.Duration // between two resyncs of one controller; 10 min
	// StableAfter is how long the members must be unchanged before this farm hands units over; 10 s.
	StableAfter time.Duration
}

func (c *Config) check() error {
	switch {
	case c.ID == "":
		return errors.New("farm: Config.ID is required: a name that no other farm has")
	case c.Store == nil:
		return errors.New("farm: Config.Store is required: what Store.FarmSession returns for the session")
	}
	return nil
}

func (c *Config) setDefaults() {
	if c.Log == nil {
		c.Log = obs.Discard()
	}
	c.TTL, c.SweepEvery = cmp.Or(c.TTL, 2*time.Second), cmp.Or(c.SweepEvery, 30*time.Second)
	c.ResyncEvery, c.StableAfter = cmp.Or(c.ResyncEvery, 10*time.Minute), cmp.Or(c.StableAfter, 10*time.Second)
	c.Workers = cmp.Or(c.Workers, 64)
	if c.RCSelector == nil {
		c.RCSelector = labels.Everything()
	}
	if c.Metrics == nil {
		c.Metrics = NewMetrics(prometheus.NewRegistry()) // not served
	}
	if c.Rollouts == nil {
		c.Rollouts = roll.NewMetrics(prometheus.NewRegistry())
	}
	if c.Ask == nil {
		c.Ask = func(context.Context, string, time.Duration, any) error {
			return errors.New("this program cannot ask gates")
		}
	}
	if c.Alerter == nil {
		c.Alerter = alert.Log{Logger: c.Log}
	}
}

// Session is the store under one session.
type Session interface {
	ReplicationControllerWatcher
	ReplicationControllerLocker
	ReplicationControllerStore
	ClusterReads
	janitor.LeakReads
	// OnMergedFailure calls f for each merged request that failed; see consul.Merger.
	OnMergedFailure(f func(kind string, parts int))
}

// ReplicationControllerLocker has the methods by which the farm becomes the owner of units.
type ReplicationControllerLocker interface {
	Join(ctx context.Context, m store.Member) error
	Claim(ctx context.Context, unit string) (store.Claimed, error)
	ClaimAll(ctx context.Context, units []string) (map[string]store.Fence, error)
	LockReads
}

// LockReads has the methods by which the farm finds units without an owner.
type LockReads interface {
	SweepBells(ctx context.Context) (rcIDs, asked []string, err error)
	Locks(ctx context.Context) (store.LockState, error) // held by other farms
	IsLocked(ctx context.Context, unit string) (bool, error)
	UnitRC(ctx context.Context, unit string) (store.Rec[rc.RC], error)
	RCExists(ctx context.Context, rcID string) (bool, error)
	ListPlacedRCIDs(ctx context.Context) ([]string, error)
	ListReservedNodes(ctx context.Context) ([]string, error)
	Unreserved(ctx context.Context, nodes []string) ([]store.At, error)
	Ask(ctx context.Context, r store.Request, a store.Audit) error
}

// ClusterReads has the methods by which the farm asks about nodes, mends reservations and ends a hold.
type ClusterReads interface {
	Passing(ctx context.Context) ([]string, error)
	FailedAgents(ctx context.Context) (map[string]bool, error)
	LivingAgents(ctx context.Context, agents []string) (map[string]bool, error) // among agents that have not failed
	MendReservation(ctx context.Context, nodeName string) (mended bool, err error)
	SyncedEpoch(ctx context.Context) (string, error)
	MarkSynced(ctx context.Context, schema store.Rec[store.Schema]) error
}

type core struct {
	cfg    Config
	log    obs.Logger
	queue  workqueue.TypedRateLimitingInterface[string]
	cache  *cache
	kit    *kit // of its passes
	roster *roster
}

func (c *core) members() []string {
	return field.Each(c.cache.members(), func(m store.Member) string { return m.ID })
}

func (c *core) waiting() int { return c.queue.Len() }

// Farm owns controllers for as long as one session lives.
type Farm struct {
	*core
	claims         claimer
	leaderReporter *leaderReporter
	electorate     electorate

	fatal    chan error // capacity 1: why the farm must start over
	sweepNow wait.Signal
	joined   chan struct{} // closed once the farm has joined; from then on no other farm has its name
	moved    wait.Signal   // the members have changed
	witness  wait.Signal   // a node reports that the store went back in time
	busy     atomic.Int64  // looks under way

	failureQueue *failureQueue // the errors of failed looks; nil: failed looks are only logged
}

// The pause after a failed look at a unit grows with each further failure.
const (
	retryMin = 50 * time.Millisecond
	retryMax = 10 * time.Second
)

// unownedGrace is how long a unit must lack an owner before a farm that is not preferred may claim it.
const unownedGrace = time.Second

// NewFarm returns a farm for one session. Start checks the configuration.
func NewFarm(cfg Config) *Farm {
	cfg.setDefaults()
	c := &core{cfg: cfg, log: cfg.Log.WithField(obs.FarmID, cfg.ID), queue: newQueue(cfg.Metrics), roster: newRoster()}
	f := &Farm{
		core: c, claims: claimer{c}, leaderReporter: newLeaderReporter(c),
		fatal: make(chan error, 1), joined: make(chan struct{}),
		sweepNow: wait.NewSignal(), moved: wait.NewSignal(), witness: wait.NewSignal(),
	}
	f.cfg.Metrics.reset()
	f.cache = newCache(&f.cfg, f.log, f.route)
	f.kit = newKit(&f.cfg, f.log, f.cache, f.claims)
	return f
}

// ErrNameTaken is what Start returns if another living farm has the same id.
var ErrNameTaken = errors.New("another farm is running")

// Start runs the farm until ctx ends or the store went back in time. It returns the context's cause, or
// store.ErrWentBack: then the caller must start again with a new session. After Start no goroutine of the farm uses the
// store, so the caller can end the session.
func (f *Farm) Start(ctx context.Context) error {
	defer f.queue.ShutDown() // also if Start returns early
	if err := f.cfg.check(); err != nil {
		return err
	}
	if err := f.cfg.Store.Join(ctx, f.cfg.member()); err != nil {
		if _, locked := store.LockedBy(err); locked {
			return fmt.Errorf("%w as %q; end it, or give this one another id with --id: %w",
				ErrNameTaken, f.cfg.ID, err)
		}
		return fmt.Errorf("join: %w", err)
	}
	close(f.joined)
	defer f.reset()
	f.cfg.Store.OnMergedFailure(func(kind string, parts int) {
		f.cfg.Metrics.spoiled.WithLabelValues(kind).Add(float64(parts))
	})
	group, ctx := errgroup.WithContext(ctx)
	f.cache.watch(ctx, group)
	group.Go(func() error {
		defer f.queue.ShutDown() // before the workers can end
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case err := <-f.fatal:
			return err
		}
	})
	group.Go(func() error {
		if err := f.cache.waitReady(ctx); err != nil {
			return err
		}
		f.log.Info("farm is ready")
		for range f.cfg.Workers {
			group.Go(func() error { looks.Work(f.queue, func(id string) { f.handle(ctx, id) }); return nil })
		}
		group.Go(func() error { return f.syncNodes(ctx) })
		group.Go(func() error { return f.claims.handOver(ctx) })
		group.Go(func() error { return f.claims.takeOver(ctx, f.moved) })
		group.Go(func() error { return f.cache.watchFailed(ctx) })
		onError, good := f.cache.reporter(ctx, "orphans")
		group.Go(func() error { return f.cache.readOrphans(ctx, onError, good) })
		group.Go(func() error { return f.alertLeaderless(ctx) })
		return f.sweepLoop(ctx)
	})
	err := group.Wait()
	for _, u := range f.roster.units() {
		u.rolling.gate.Stop()
	}
	return err
}

// reset clears, when the farm ends, the metrics that only a running farm keeps up to date.
func (f *Farm) reset() {
	f.electorate.end()
	f.cfg.Metrics.reset()
	f.cfg.Rollouts.Reset()
}

func (c *Config) member() store.Member {
	m := store.Member{ID: c.ID, Version: c.Version, Address: c.Address, RCSelector: c.RCSelector.String()}
	if c.RCID != "" {
		m.RCID, m.RCSelector = c.RCID, selectsNone
	}
	return m
}

// selectsNone is the selector in the record of a member with one controller. A farm of an older version does not read
// RCID there. Because the selector matches nothing, that farm does not prefer the member for any unit.
const selectsNone = "rcfarm-one,!rcfarm-one"
