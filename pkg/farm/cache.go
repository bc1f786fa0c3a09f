package farm

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/rcfarm/rcfarm/pkg/farm/looks"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/obs"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// ReplicationControllerWatcher has the farm's watches.
type ReplicationControllerWatcher interface {
	WatchBells(ctx context.Context, shard int, onError func(error), deliver func(store.Bells) error) error
	WatchNodes(ctx context.Context, shard int, onError func(error), deliver func(store.Seen[node.Node]) error) error
	WatchNodeOps(ctx context.Context, onError func(error), deliver func(store.Seen[node.Ops]) error) error
	WatchFarms(ctx context.Context, onError func(error), deliver func(store.Seen[store.Member]) error) error
	ClusterWatches
}

// ClusterWatches has the watches of the cluster's own records, and mends these records.
type ClusterWatches interface {
	WatchSchema(ctx context.Context, onError func(error), deliver func(store.Seen[store.Schema]) error) error
	WatchBreaker(ctx context.Context, onError func(error), deliver func(store.Seen[store.Breaker]) error) error
	EnsureSchema(ctx context.Context) (store.Rec[store.Schema], error)
	RenewEpoch(ctx context.Context, known, witness string) error
	RestoreBreaker(ctx context.Context) error
}

// cache has what the watches have seen. No decision may rely on the cache alone. It emits an event for each change.
type cache struct {
	nodeViews
	store   Session
	self    store.Member // this farm's own record
	metrics *Metrics
	emit    func(event) // called without the lock
	log     obs.Logger

	mu      sync.Mutex
	bells   [store.Shards]map[string]uint64
	as      seen
	waiting map[string]bool // watches that have not delivered yet
	ready   chan struct{}   // closed when all watches have delivered
}

type seen struct {
	farms   []store.Member
	able    []contender // the farms whose selectors can be read
	stable  time.Time   // when the members changed last
	schema  store.Rec[store.Schema]
	breaker store.Rec[store.Breaker]
}

func (c *cache) present() seen {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.as
}

func newCache(cfg *Config, log obs.Logger, emit func(event)) *cache {
	return &cache{
		store: cfg.Store, self: cfg.member(), metrics: cfg.Metrics, emit: emit, log: log,
		waiting: map[string]bool{}, ready: make(chan struct{}),
		nodeViews: newNodeViews(cfg.Store, log, emit),
	}
}

func (c *cache) watch(ctx context.Context, group *errgroup.Group) {
	queries := map[string]watch{
		"nodeops": watchOf(ctx, c, c.store.WatchNodeOps, c.opsSeen),
		"farms":   watchOf(ctx, c, c.store.WatchFarms, c.farmsSeen),
		"schema":  watchOf(ctx, c, c.store.WatchSchema, c.schemaSeen),
		"breaker": watchOf(ctx, c, c.store.WatchBreaker, c.breakerSeen),
	}
	for shard := range store.Shards {
		name := string("0123456789abcdef"[shard])
		nodes := func(ctx context.Context, onError func(error), deliver func(store.Seen[node.Node]) error) error {
			return c.store.WatchNodes(ctx, shard, onError, deliver)
		}
		queries["nodes/"+name] = watchOf(ctx, c, nodes, func(ctx context.Context, s store.Seen[node.Node]) error {
			return c.nodesSeen(ctx, shard, s)
		})
		queries["bells/"+name] = func(onError func(error), done func()) error {
			return c.store.WatchBells(ctx, shard, onError, func(s store.Bells) error {
				defer done()
				return c.bellsSeen(ctx, shard, s)
			})
		}
	}
	for name := range queries {
		c.waiting[name] = true
	}
	for name, q := range queries {
		onError, good := c.reporter(ctx, name)
		group.Go(func() error {
			return q(onError, func() { good(); c.delivered(name) })
		})
	}
}

// watch runs one watch. It calls delivered after each delivery that the cache could use.
type watch func(onError func(error), delivered func()) error

func watchOf[T any](
	ctx context.Context, w *cache,
	watch func(ctx context.Context, onError func(error), deliver func(store.Seen[T]) error) error,
	seen func(ctx context.Context, s store.Seen[T]) error,
) watch {
	return func(onError func(error), delivered func()) error {
		return watch(ctx, onError, func(s store.Seen[T]) error {
			if s.WentBack {
				return w.wentBack(ctx)
			}
			if err := seen(ctx, s); err != nil {
				return err
			}
			delivered()
			return nil
		})
	}
}

// reporter returns two functions. onError logs the first of several equal errors of a watch. good logs that it works
// again.
func (c *cache) reporter(ctx context.Context, name string) (onError func(error), good func()) {
	var mu sync.Mutex
	last := ""
	onError = func(err error) {
		mu.Lock()
		defer mu.Unlock()
		kind, _, _ := strings.Cut(name, "/") // of nodes/3: nodes
		c.metrics.watches.WithLabelValues(kind).Inc()
		if ctx.Err() == nil && last != err.Error() {
			last = err.Error()
			c.log.WithError(err).WithField(obs.Key, name).
				Warn("cannot watch; the farm changes nothing because of what it cannot see")
		}
	}
	good = func() {
		mu.Lock()
		defer mu.Unlock()
		if last != "" {
			last = ""
			c.log.WithField(obs.Key, name).Info("watching again")
		}
	}
	return onError, good
}

func (c *cache) delivered(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.waiting[name] {
		delete(c.waiting, name)
		if len(c.waiting) == 0 {
			close(c.ready)
		}
	}
}

func (c *cache) waitReady(ctx context.Context) error {
	select {
	case <-c.ready:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// wentBack makes the whole cluster start over, after the store went back in time (R1, R5).
func (c *cache) wentBack(ctx context.Context) error {
	return c.wentBackFrom(ctx, c.present().schema.Value.Epoch, "")
}

// wentBackFrom is wentBack from a known epoch. witness is the node if only one node reports it, else "".
func (c *cache) wentBackFrom(ctx context.Context, epoch, witness string) error {
	c.log.Warn("the store went back in time; asking all nodes what they run")
	if err := c.store.RenewEpoch(ctx, epoch, witness); err != nil {
		return errors.Join(store.ErrWentBack, store.ErrUnanswered, err)
	}
	return store.ErrWentBack
}

func (c *cache) bellsSeen(ctx context.Context, shard int, s store.Bells) error {
	if s.WentBack {
		return c.wentBack(ctx)
	}
	c.mu.Lock()
	before := c.bells[shard]
	c.bells[shard] = s.Index
	c.mu.Unlock()
	for id, index := range s.Index {
		if before[id] != index {
			c.emit(bellRang{id})
		}
	}
	for id := range before {
		if _, still := s.Index[id]; !still {
			c.emit(bellGone{id})
		}
	}
	if s.MarkerMissing && before != nil {
		c.emit(recordsMissing{})
	}
	return nil
}

func (c *cache) farmsSeen(ctx context.Context, s store.Seen[store.Member]) error {
	var farms []store.Member
	present := false
	for _, rec := range s.Recs {
		farms = append(farms, rec.Value)
		present = present || rec.Value.ID == c.self.ID
	}
	if !present {
		// If the session had ended, this farm would have ended. So people removed the record.
		c.log.Warn("this farm's own member record is missing; writing it again")
		if err := c.store.Join(ctx, c.self); err != nil {
			return err
		}
		farms = append(farms, c.self)
		c.emit(recordsMissing{})
	}
	c.mu.Lock()
	names := memberNames(farms)
	same := slices.Equal(memberNames(c.as.farms), names)
	c.as.farms, c.as.able = farms, contendersOf(farms)
	if !same {
		c.as.stable = time.Now()
	}
	c.mu.Unlock()
	if !same {
		c.log.WithField("members", names).Info("the members have changed")
		c.emit(membersMoved{})
	}
	return nil
}

func (c *cache) schemaSeen(ctx context.Context, s store.Seen[store.Schema]) error {
	c.emit(unreadableFound{"schema", s.Corrupt})
	if len(s.Corrupt) > 0 {
		c.log.WithError(s.Corrupt[0]).Error("the cluster record cannot be read; nothing is placed")
	}
	var rec store.Rec[store.Schema] // without an epoch the nodes are not synced, so nothing is placed
	if len(s.Recs) == 0 && len(s.Corrupt) == 0 {
		c.log.Warn("the cluster record is missing; creating it")
		var err error
		if rec, err = c.store.EnsureSchema(ctx); err != nil {
			return err
		}
		c.emit(recordsMissing{})
	} else if len(s.Recs) > 0 {
		rec = s.Recs[0]
	}
	c.mu.Lock()
	other := c.as.schema.Value.Epoch != rec.Value.Epoch
	c.as.schema = rec
	c.mu.Unlock()
	if other {
		c.emit(epochMoved{})
	}
	return nil
}

func (c *cache) breakerSeen(ctx context.Context, s store.Seen[store.Breaker]) error {
	c.emit(unreadableFound{"breaker", s.Corrupt})
	rec := store.Rec[store.Breaker]{}
	switch {
	case len(s.Corrupt) > 0:
		c.log.WithError(s.Corrupt[0]).Error("the breaker cannot be read; nothing is stopped")
	case len(s.Recs) == 0:
		if err := c.store.RestoreBreaker(ctx); err != nil && ctx.Err() == nil {
			c.log.WithError(err).Warn("cannot create the breaker; nothing is stopped")
		}
	default:
		rec = s.Recs[0]
	}
	c.mu.Lock()
	before := c.as.breaker
	c.as.breaker = rec
	c.mu.Unlock()
	if before.Index != rec.Index {
		c.emit(breakerMoved{reset: before.Value.Tripped && rec.Index != 0 && !rec.Value.Tripped})
	}
	return nil
}

// members leaves out the members that own one controller each.
func (c *cache) members() []store.Member {
	return slices.DeleteFunc(slices.Clone(c.present().farms), func(m store.Member) bool { return m.RCID != "" })
}

type contender struct {
	looks.Contender
	rcID string // the only controller that it may own; empty: those that the selector matches
}

// contendersOf parses the selectors once, because each controller is compared with all of them when the members change.
func contendersOf(farms []store.Member) []contender {
	var able []contender
	for _, m := range farms {
		if sel, err := rc.ParseSelector(m.RCSelector); err == nil {
			able = append(able, contender{looks.Contender{ID: m.ID, Selector: sel}, m.RCID})
		}
	}
	return able
}

// memberNames returns the ids with the selectors, because both determine the owners.
func memberNames(farms []store.Member) []string {
	names := make([]string, len(farms))
	for i, m := range farms {
		names[i] = m.ID
		switch {
		case m.RCID != "":
			names[i] += " (" + m.RCID + ")"
		case m.RCSelector != "":
			names[i] += " (" + m.RCSelector + ")"
		}
	}
	return names
}

// lastRung returns all units, the bell that rang last first.
func (c *cache) lastRung() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var ids []string
	rung := map[string]uint64{}
	for _, bells := range c.bells {
		for id, index := range bells {
			ids = append(ids, id)
			rung[id] = index
		}
	}
	slices.SortFunc(ids, func(a, b string) int { return cmp.Or(cmp.Compare(rung[b], rung[a]), cmp.Compare(a, b)) })
	return ids
}

// rung returns zero if there is no bell.
func (c *cache) rung(id string) (index uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, shard := range c.bells {
		index = max(index, shard[id])
	}
	return index
}
