// Package farm is the loop that owns replication controllers: it claims their locks, watches what may have changed, and
// carries out what reconcile decides. app runs one under each session. Only the owner of a controller changes its pods (P1), and whoever
// comes next goes on from the records (P7). Start reading at Farm.Start.
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
	"github.com/rcfarm/rcfarm/pkg/farm/looks"
	"github.com/rcfarm/rcfarm/pkg/farm/push"
	"github.com/rcfarm/rcfarm/pkg/farm/roll"
	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/internal/contain"
	"github.com/rcfarm/rcfarm/pkg/obs"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/scale"
	"github.com/rcfarm/rcfarm/pkg/scheduler"
	"github.com/rcfarm/rcfarm/pkg/store"
	"github.com/rcfarm/rcfarm/pkg/wait"
)

// Config is what a farm needs under one session: its units, without cleaning up. A whole farm, with one session
// after the other, is app.Farm; a program that only wants a scheduler of its own sets app.FarmConfig.Scheduler. Zero durations and counts
// mean the defaults.
type Config struct {
	ID           string              // stable name; required
	Version      string              // of the program
	Store        Session             // required
	Scheduler    scheduler.Scheduler // nil: the built-in one, which selects by label; see scheduler.Books for those with books of their own
	Log          obs.Logger          // nil: nothing is logged
	Alerter      alert.Alerter       // nil: the log
	Metrics      *Metrics            // nil: nothing is counted
	MetricsLabel string              // of controllers, by whose values the leader counts replicas; empty: all together
	Address      string              // of the daemon's debug server, for the member record; may be empty
	Rollouts     *roll.Metrics       // nil: nothing of rollouts is counted
	Ask          roll.Ask            // how gates of rollouts are asked; nil: none can be, which is a no
	// Tell hands over what a node is to be told that has no standing query on its intents, and waits for nothing; nil: none is told.
	Tell func(to push.Target, r scale.Request)

	RCSelector labels.Selector // of the controllers that it works on, by their labels; nil: all
	RCID       string          // the only one that it works on, whatever its labels; see New. Empty: those of the selector

	TTL         time.Duration // liveness TTL of the cluster's daemons; 2 s
	Workers     int           // units looked at at once; 64
	SweepEvery  time.Duration // between two sweeps, plus jitter; 30 s
	ResyncEvery time.Duration // between two resyncs of one controller; 10 min
	// StableAfter is how long the members must not have changed before controllers are handed to farms that prefer
	// them; 10 s.
	StableAfter time.Duration
}

// check says what is missing without which there is no farm.
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
		c.Metrics = NewMetrics(prometheus.NewRegistry()) // which nobody asks
	}
	if c.Rollouts == nil {
		c.Rollouts = roll.NewMetrics(prometheus.NewRegistry())
	}
	if c.Ask == nil {
		c.Ask = func(context.Context, string, time.Duration, any) error {
			return errors.New("this program asks no gates")
		}
	}
	if c.Alerter == nil {
		c.Alerter = alert.Log{Logger: c.Log}
	}
}

// Session is the store under one session, as the farm uses it.
type Session interface {
	ReplicationControllerWatcher
	ReplicationControllerLocker
	ReplicationControllerStore
	ClusterReads
	LeakReads
	// OnSpoiled has f told of each request that failed and was shared; see consul.Merger.
	OnSpoiled(f func(kind string, parts int))
}

// ReplicationControllerLocker is how the farm becomes and stops being the owner of units.
type ReplicationControllerLocker interface {
	Join(ctx context.Context, m store.Member) error
	Claim(ctx context.Context, unit string) (store.Claimed, error)
	ClaimAll(ctx context.Context, units []string) (map[string]store.Fence, error)
	LockReads
}

// LockReads is how the farm finds units without an owner.
type LockReads interface {
	SweepBells(ctx context.Context) (rcIDs, asked []string, err error)
	Locks(ctx context.Context) (store.LockState, error) // those that other farms hold
	IsLocked(ctx context.Context, unit string) (bool, error)
	UnitRC(ctx context.Context, unit string) (store.Rec[rc.RC], error)
	RCExists(ctx context.Context, rcID string) (bool, error)
	ListPlacedRCIDs(ctx context.Context) ([]string, error)
	ListReservedNodes(ctx context.Context) ([]string, error)
	Unreserved(ctx context.Context, nodes []string) ([]store.At, error)
	Ask(ctx context.Context, r store.Request, a store.Audit) error
}

// ClusterReads are what Consul itself knows of nodes, what mends their reservations, and what the store knows of the end of a hold.
type ClusterReads interface {
	Passing(ctx context.Context) ([]string, error)
	FailedAgents(ctx context.Context) (map[string]bool, error)
	LivingAgents(ctx context.Context, agents []string) (map[string]bool, error) // of some that have not failed
	MendReservation(ctx context.Context, nodeName string) (mended bool, err error)
	SyncedEpoch(ctx context.Context) (string, error)
	MarkSynced(ctx context.Context, schema store.Rec[store.Schema]) error
}

// core is what the parts of a farm share.
type core struct {
	cfg    Config
	log    obs.Logger
	queue  workqueue.TypedRateLimitingInterface[string]
	cache  *cache
	kit    *kit // of its passes
	roster *roster
}

// members returns the ids of the living farms, as last seen.
func (f *core) members() []string {
	return field.Each(f.cache.members(), func(m store.Member) string { return m.ID })
}

// Farm owns controllers for as long as one session lives.
type Farm struct {
	*core
	speaker    *speaker
	electorate electorate

	fatal    chan error // capacity 1: why the farm must start over
	sweepNow wait.Signal
	joined   chan struct{} // closed once no other farm can have the name
	moved    wait.Signal   // the members have changed
	witness  wait.Signal   // a node says that the store went back in time
	busy     atomic.Int64  // looks under way

	complaints *complaints // of looks that failed; nil: nobody is told
}

// The pace of repeated tries of one controller.
const (
	retryMin = 50 * time.Millisecond
	retryMax = 10 * time.Second
)

// unownedGrace is how long a controller may lack an owner before any farm may claim it, preferred or not.
const unownedGrace = time.Second

// NewFarm returns a farm. It does nothing before Start, which says what the configuration lacks, and serves one session.
func NewFarm(cfg Config) *Farm {
	cfg.setDefaults()
	c := &core{cfg: cfg, log: cfg.Log.WithField(obs.FarmID, cfg.ID), queue: newQueue(cfg.Metrics), roster: newRoster()}
	f := &Farm{
		core: c, speaker: newSpeaker(c), fatal: make(chan error, 1), joined: make(chan struct{}),
		sweepNow: wait.NewSignal(), moved: wait.NewSignal(), witness: wait.NewSignal(),
	}
	f.cfg.Metrics.reset()
	f.cache = newCache(&f.cfg, f.log, f.route)
	f.kit = newKit(&f.cfg, f.log, f.cache, f, &scheduler.ByLabel{Between: f.cache.between})
	return f
}

// ErrNameTaken is what Start returns where another living farm has the id.
var ErrNameTaken = errors.New("another farm is running")

// Start runs the farm until ctx ends, and returns why it ended: the context's cause, or store.ErrWentBack when the store
// went back in time, after which the caller starts over with a new session. When it returns nothing of it runs any more,
// so that the caller can give the session up.
func (f *Farm) Start(ctx context.Context) error {
	defer f.queue.ShutDown() // also when it never came to work
	if err := f.cfg.check(); err != nil {
		return err
	}
	if err := f.cfg.Store.Join(ctx, f.cfg.member()); err != nil {
		if _, locked := store.LockedBy(err); locked {
			return fmt.Errorf("%w as %q; end it, or give this one an id of its own with --id: %w", ErrNameTaken, f.cfg.ID, err)
		}
		return fmt.Errorf("join: %w", err)
	}
	close(f.joined)
	defer f.cfg.Metrics.reset()
	defer f.cfg.Rollouts.Reset()
	f.cfg.Store.OnSpoiled(func(kind string, parts int) { f.cfg.Metrics.spoiled.WithLabelValues(kind).Add(float64(parts)) })
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
		group.Go(func() error { return f.handOver(ctx) })
		group.Go(func() error { return f.takeOver(ctx) })
		group.Go(func() error { return f.cache.watchFailed(ctx) })
		group.Go(func() error { return f.cache.readOrphans(ctx) })
		group.Go(func() error { return f.tellLeaderless(ctx) })
		return f.sweepLoop(ctx)
	})
	err := group.Wait()
	for _, u := range f.roster.units() {
		u.rolling.gate.Stop()
	}
	return err
}

// member is the farm's own record.
func (c *Config) member() store.Member {
	m := store.Member{ID: c.ID, Version: c.Version, Address: c.Address, RCSelector: c.RCSelector.String()}
	if c.RCID != "" {
		m.RCID, m.RCSelector = c.RCID, selectsNone
	}
	return m
}

// selectsNone is the selector of a member with one controller: farms that know nothing of such members leave it out.
const selectsNone = "rcfarm-one,!rcfarm-one"

// handle looks at one unit: claims it when it should, works on it, and decides when to look again.
func (f *Farm) handle(ctx context.Context, id string) {
	if ctx.Err() != nil {
		return
	}
	log := f.log.WithField(obs.RCID, id)
	var u *unit
	var again time.Duration
	err := contain.Do(func() (err error) {
		u, again, err = f.unit(ctx, id)
		return err
	})
	if panicked := contain.Is(err); panicked != nil { // a claim reads, too: whatever it has got is claimed again, which moves the fence
		u = nil
		f.cfg.Metrics.panics.Inc()
		log.WithField(obs.Stack, panicked.Stack).Error("a claim of a controller panicked")
	}
	if err == nil && u != nil && u.takenOver() && f.queue.Len() > 0 {
		// Whatever waits may lack an owner too: all are claimed before the first is worked on.
		f.queue.Add(id)
		return
	}
	if err == nil && u != nil {
		if idle, left := u.idle(f.cache.rung(id)); idle {
			if left > 0 {
				f.queue.AddAfter(id, left)
			}
			return
		}
		if left := max(u.looks.Rest(), u.gather(f.busy.Load())); left > 0 {
			f.queue.AddAfter(id, left)
			return
		}
		again, err = f.looks(ctx, u)
	}
	switch {
	case err == nil:
		f.queue.Forget(id)
		if again > 0 {
			again += f.backlog()
			if u != nil {
				u.looks.Again(again)
			}
			f.queue.AddAfter(id, again)
		}
		return
	case ctx.Err() != nil:
		return
	case errors.Is(err, store.ErrWentBack):
		log.WithError(err).Warn("a controller's records are older than they were")
		f.startOver(f.cache.wentBack(ctx))
		return
	case errors.Is(err, errHandedOver):
		f.drop(id)
		f.roster.markOwnedElsewhere(id)
		f.queue.Forget(id)
		return
	case errors.Is(err, errRecordGone):
		f.drop(id)
		f.queue.Forget(id)
		return
	}
	f.complaints.add(err)
	switch {
	case errors.Is(err, store.ErrLost):
		// The controller's lock is somebody else's, or the session is dead, which the session's keeper finds out.
		f.drop(id)
		log.WithError(err).Warn("lost a controller")
	case store.Denied(err):
		log.WithError(err).Warn("the token may not write what a controller needs")
	case contain.Is(err) != nil:
		log.WithError(err).Error("controller cannot be worked on")
	case errors.Is(err, store.ErrRefused), errors.Is(err, store.ErrUnknown):
		log.WithError(err).Debug("pass did not land")
	default:
		log.WithError(err).Warn("pass failed")
	}
	f.queue.AddRateLimited(id)
}

// lookTries is how often a unit is looked at in a row while writes are refused.
const lookTries = 4

// looks makes a look, and another one at once where others wrote what it depends on: at the end of a long queue it would
// wait for all of the others.
func (f *Farm) looks(ctx context.Context, u *unit) (again time.Duration, err error) {
	f.busy.Add(1)
	defer f.busy.Add(-1)
	began := time.Now()
	defer func() { u.looks.Took(time.Since(began)) }()
	for range lookTries {
		started := time.Now()
		again, err = u.look(ctx)
		f.cfg.Metrics.passed(time.Since(started), err)
		if ctx.Err() != nil || !errors.Is(err, store.ErrRefused) || errors.Is(err, store.ErrLost) {
			break
		}
	}
	return again, err
}

// backlog is about how long the queue takes to be worked off. A second look at one controller, which often does no more than
// bring its status up to date, comes after the first look at all that wait.
func (f *Farm) backlog() time.Duration {
	return min(time.Duration(f.queue.Len())*time.Millisecond, time.Second)
}

// startOver ends the farm, so that it begins anew with a new session.
func (f *Farm) startOver(why error) {
	select {
	case f.fatal <- why:
	default: // somebody found out first
	}
}
