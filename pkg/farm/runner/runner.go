// Package runner is the loop that carries rollouts out (ADR 16): it claims the lock of a service's rollout, reads, asks
// rollout.Decide, and writes what that says in one transaction. Nothing is decided by what it remembers, but that a
// stage times out only after this process has watched it for that long: the next holder of the lock goes on from the
// records. Start reading at Runner.Start.
package runner

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/util/workqueue"

	"github.com/rcfarm/rcfarm/pkg/farm/alert"
	"github.com/rcfarm/rcfarm/pkg/farm/looks"
	"github.com/rcfarm/rcfarm/pkg/internal/contain"
	"github.com/rcfarm/rcfarm/pkg/obs"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/rollout"
	"github.com/rcfarm/rcfarm/pkg/store"
	"github.com/rcfarm/rcfarm/pkg/wait"
)

// Config is what a runner needs. Zero durations and counts mean the defaults.
type Config struct {
	ID    string // of its farm
	Store Session
	Log   obs.Logger
	// Members returns the living farms as last seen. Nothing is claimed while there are none.
	Members func() []store.Member
	// WentBack is told that the store went back in time, and returns why the farm must start over.
	WentBack func(context.Context) error
	// Ask asks a gate, once; an error is a no. See webhook.Ask.
	Ask func(ctx context.Context, url string, timeout time.Duration, body any) error
	// Changed is told which controllers a step has changed, and the index of their bells; nil: these are enough.
	Changed func(rcIDs []string, index uint64)
	Alerter alert.Alerter // nil: the log
	Metrics *Metrics      // nil: nothing is counted
	// Alerting is told which incidents about a service's rollout are open; nil: nobody is.
	Alerting func(service string, active []rc.ConditionType)

	Workers int           // rollouts worked on at once; 16
	Grace   time.Duration // how long the farm that is preferred has to claim a rollout; 1 s
	Look    time.Duration // between two looks at a rollout that another farm carries out; 3 s
	// StableAfter is how long the members must not have changed before a rollout is handed to the farm that is preferred; 10 s.
	StableAfter time.Duration
	// Unclaimed is how long no living farm may match a rollout before that is reported; 30 s.
	Unclaimed time.Duration
}

func (c *Config) setDefaults() {
	c.Workers, c.Grace, c.Look = cmp.Or(c.Workers, 16), cmp.Or(c.Grace, time.Second), cmp.Or(c.Look, 3*time.Second)
	c.StableAfter, c.Unclaimed = cmp.Or(c.StableAfter, 10*time.Second), cmp.Or(c.Unclaimed, 30*time.Second)
	if c.Metrics == nil {
		c.Metrics = NewMetrics(prometheus.NewRegistry()) // which nobody asks
	}
	if c.Alerter == nil {
		c.Alerter = alert.Log{Logger: c.Log}
	}
	if c.Changed == nil {
		c.Changed = func([]string, uint64) {}
	}
	if c.Alerting == nil {
		c.Alerting = func(string, []rc.ConditionType) {}
	}
}

// Session is the store under one session, as a runner uses it.
type Session interface {
	WatchRollouts(ctx context.Context, onError func(error), deliver func(store.RolloutsSeen) error) error
	Locks
	Reads
	CommitRollout(ctx context.Context, s *store.RolloutStep) (index uint64, err error)
}

// Duties are the writes of the leader (ADR 27), each in a transaction that bears the leader's fence.
type Duties interface {
	SweepRolloutBell(ctx context.Context, service string, index uint64) error
	WriteRolloutIncident(ctx context.Context, service string, index uint64, incident *store.RolloutIncident) error
}

// Locks is how a farm becomes and stops being the one that carries a rollout out.
type Locks interface {
	ClaimRollout(ctx context.Context, service string) (store.Fence, error)
	IsRolloutLocked(ctx context.Context, service string) (bool, error)
	Bump(ctx context.Context, f store.Fence) (store.Fence, error)
	ReleaseRollout(ctx context.Context, service string, f store.Fence, index uint64) error
	AbandonRollout(ctx context.Context, service string, f store.Fence) error
}

// Reads is what steps are decided from.
type Reads interface {
	ReadRollout(ctx context.Context, service string, ids []string, consistent bool) (store.RolloutView, error)
	RC(ctx context.Context, id string, consistent bool) (store.Rec[rc.RC], error)
	Placements(ctx context.Context, rcID string, consistent bool) ([]store.Rec[pod.Placement], []error, error)
	RealitiesAt(ctx context.Context, at []store.At, consistent bool) (map[store.At]pod.Reality, []error, error)
}

// Runner carries rollouts out for as long as one session lives.
type Runner struct {
	cfg   Config
	log   obs.Logger
	queue workqueue.TypedRateLimitingInterface[string]
	grace looks.Grace // of those without a runner
	wake  wait.Signal // incidents may have changed

	mu      sync.Mutex
	known                       // but for lonely replaced as a whole
	carried map[string]*carried // by service: whose lock this farm holds
	moved   time.Time           // when the members changed last
}

// carried is a rollout whose lock this farm holds. Only the worker that has the service from the queue uses it, except the gate.
type carried struct {
	fence      store.Fence
	ids        []string // controllers that it is about, as last read
	consistent bool     // the next read must be
	unsure     bool     // a write may linger: the fence is moved before anything is read
	panicked   string   // what the last look that panicked died of; it is told once
	gate       gate
	judged     time.Time // the change of the members after which it was found to be this farm's; see handOver
	looks      looks.Looks
	progress   watched
}

// watched is since when this process has seen a rollout without progress.
type watched struct {
	at    time.Time // of the progress, as the record says
	since time.Time // by the clock that is never set
}

// see returns for how long the record has said that its last progress was at a time.
func (w *watched) see(at, now time.Time) time.Duration {
	if w.since.IsZero() || !at.Equal(w.at) {
		w.at, w.since = at, now
	}
	return now.Sub(w.since)
}

// The pace of repeated tries of one rollout.
const (
	retryMin = 20 * time.Millisecond
	retryMax = 5 * time.Second
)

// New returns a runner. It does nothing before Start and serves one session.
func New(cfg Config) *Runner {
	cfg.setDefaults()
	return &Runner{
		cfg: cfg, log: cfg.Log.WithField(obs.FarmID, cfg.ID),
		queue:   workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[string](retryMin, retryMax)),
		carried: map[string]*carried{}, known: known{lonely: map[string]time.Time{}}, wake: wait.NewSignal(),
	}
}

// Start runs until ctx ends, and returns the context's cause, or what WentBack returned. When it returns nothing of it runs any more.
func (r *Runner) Start(ctx context.Context) error {
	defer r.queue.ShutDown()
	defer r.cfg.Metrics.reset()
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		<-ctx.Done()
		r.queue.ShutDown()
		return context.Cause(ctx)
	})
	group.Go(func() error { return r.watch(ctx) })
	for range r.cfg.Workers {
		group.Go(func() error { looks.Work(r.queue, func(service string) { r.handle(ctx, service) }); return nil })
	}
	err := group.Wait()
	r.stopGates()
	return err
}

// Lead tells what is wrong with all rollouts, whoever carries them out, until the farm's leadership, which is ctx, ends. Start must run beside
// it. It returns why ctx ended.
func (r *Runner) Lead(ctx context.Context, as Duties) error {
	t := &incidents{cfg: &r.cfg, log: r.log, teller: alert.Teller{Farm: r.cfg.ID, To: r.cfg.Alerter}, as: as, wake: r.wake, known: r.snapshot, tellings: map[string]*telling{}}
	return t.run(ctx)
}

// snapshot returns what is known of all rollouts now.
func (r *Runner) snapshot() known {
	r.mu.Lock()
	defer r.mu.Unlock()
	return known{r.RolloutsSeen, r.records, maps.Clone(r.lonely)}
}

func (r *Runner) watch(ctx context.Context) error {
	last := ""
	onError := func(err error) {
		if ctx.Err() == nil && last != err.Error() {
			last = err.Error()
			r.log.WithError(err).Warn("cannot watch rollouts; none that changes is noticed")
		}
	}
	return r.cfg.Store.WatchRollouts(ctx, onError, func(s store.RolloutsSeen) error {
		last = ""
		if s.WentBack {
			return r.cfg.WentBack(ctx)
		}
		r.accept(s)
		return nil
	})
}

// accept asks for a look at each rollout that is new, has changed, was rung for, or is gone.
func (r *Runner) accept(s store.RolloutsSeen) {
	records := make(map[string]*store.Rec[rollout.Record], len(s.Recs))
	for i := range s.Recs {
		records[s.Recs[i].Value.Service] = &s.Recs[i]
	}
	r.mu.Lock()
	before, bells := r.records, r.Bells
	r.RolloutsSeen, r.records = s, records
	for service, rec := range records {
		if was := before[service]; was == nil || was.Index != rec.Index || bells[service] != s.Bells[service] {
			r.queue.Add(service)
		}
	}
	for service := range before {
		if records[service] == nil {
			r.grace.Forget(service)
			delete(r.lonely, service)
			r.queue.Add(service)
		}
	}
	r.mu.Unlock()
	r.wake.Raise()
}

// Ring asks for a look at a rollout whose bell has rung, at an index.
func (r *Runner) Ring(service string, index uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if c := r.carried[service]; c != nil { // to others the watch says it soon enough
		c.looks.Heard(bellKey, index)
		r.queue.Add(service)
	}
}

// MembersChanged looks at each rollout anew: the farm that had it may be gone. Later it looks whether one is another farm's now.
func (r *Runner) MembersChanged() {
	r.mu.Lock()
	r.moved = time.Now()
	for service := range r.records {
		r.grace.Forget(service)
		r.want(service)
		r.queue.AddAfter(service, r.cfg.StableAfter)
	}
	r.mu.Unlock()
	r.wake.Raise()
}

// matched notes whether some living farm works on all controllers of a rollout.
func (r *Runner) matched(service string, yes bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if yes {
		delete(r.lonely, service)
	} else if r.lonely[service].IsZero() {
		r.lonely[service] = time.Now()
	}
}

// want asks for a look at a rollout although its bell did not ring. The caller holds the mutex.
func (r *Runner) want(service string) {
	if c := r.carried[service]; c != nil {
		c.looks.Ask()
	}
	r.queue.Add(service)
}

// What a look at a rollout reads first: whoever changes something about it writes its record or rings its bell.
const (
	recordKey = "record"
	bellKey   = "bell"
)

// idle reports whether a look now would see what the last one has seen, and then when one is due, zero for never.
func (r *Runner) idle(service string, c *carried) (idle bool, left time.Duration) {
	r.mu.Lock()
	rec, bell := r.records[service], r.Bells[service]
	r.mu.Unlock()
	if rec == nil {
		return false, 0
	}
	return c.looks.Idle(map[string]uint64{recordKey: rec.Index, bellKey: bell})
}

// handle looks at one rollout: claims it when it should, makes its next steps, and decides when to look again.
func (r *Runner) handle(ctx context.Context, service string) {
	if ctx.Err() != nil {
		return
	}
	log := r.log.WithField(obs.Service, service)
	var c *carried
	var again time.Duration
	err := contain.Do(func() (err error) {
		c, again, err = r.acquire(ctx, service)
		return err
	})
	if panicked := contain.Is(err); panicked != nil { // the lock, if it was taken, is taken again, which moves the fence
		c = nil
		r.cfg.Metrics.panics.Inc()
		log.WithField(obs.Stack, panicked.Stack).Error("a claim of a rollout panicked")
	}
	if err == nil && c != nil {
		if idle, left := r.idle(service, c); idle {
			if left > 0 {
				r.queue.AddAfter(service, left)
			}
			return
		}
		again, err = r.steps(ctx, service, c)
	}
	switch {
	case err == nil:
		r.queue.Forget(service)
		if again > 0 {
			r.queue.AddAfter(service, again)
		}
		return
	case ctx.Err() != nil:
		return
	case errors.Is(err, store.ErrNotFound):
		r.abandon(ctx, service, c)
		return
	case errors.Is(err, store.ErrLost):
		r.drop(service)
		log.WithError(err).Warn("lost a rollout")
	case store.Denied(err):
		log.WithError(err).Warn("the token may not write what a rollout needs")
	case contain.Is(err) != nil:
		r.queue.AddAfter(service, retryMax) // and told: see suffers
		return
	case store.IsCorrupt(err):
		log.WithError(err).Error("rollout cannot be worked on") // and told: see incidents.go
		r.queue.AddAfter(service, retryMax)
		return
	case errors.Is(err, store.ErrRefused), errors.Is(err, store.ErrUnknown):
		log.WithError(err).Debug("step did not land")
	default:
		log.WithError(err).Warn("step failed")
	}
	r.queue.AddRateLimited(service)
}
