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
	"github.com/rcfarm/rcfarm/pkg/farm/reconcile"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/obs"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/scheduler"
	"github.com/rcfarm/rcfarm/pkg/store"
	"github.com/rcfarm/rcfarm/pkg/wait"
)

// ReplicationControllerWatcher is the farm's standing queries.
type ReplicationControllerWatcher interface {
	WatchBells(ctx context.Context, shard int, onError func(error), deliver func(store.Bells) error) error
	WatchNodes(ctx context.Context, shard int, onError func(error), deliver func(store.Seen[node.Node]) error) error
	WatchNodeOps(ctx context.Context, onError func(error), deliver func(store.Seen[node.Ops]) error) error
	WatchFarms(ctx context.Context, onError func(error), deliver func(store.Seen[store.Member]) error) error
	ClusterWatches
}

// ClusterWatches are the standing queries about the cluster as a whole, and what mends it.
type ClusterWatches interface {
	WatchSchema(ctx context.Context, onError func(error), deliver func(store.Seen[store.Schema]) error) error
	WatchBreaker(ctx context.Context, onError func(error), deliver func(store.Seen[store.Breaker]) error) error
	EnsureSchema(ctx context.Context) (store.Rec[store.Schema], error)
	RenewEpoch(ctx context.Context, known, witness string) error
	RestoreBreaker(ctx context.Context) error
}

// cache is what the farm's watches have seen, without authority. It has the only lock of its data, says what changed in events, and
// knows nobody who hears them.
type cache struct {
	store   Session
	self    store.Member // this farm's own record
	metrics *Metrics
	emit    func(event) // called without the lock
	log     obs.Logger

	mu           sync.Mutex
	bells        [store.Shards]map[string]uint64
	records      [store.Shards]map[string]*node.View // without the operators' side
	ops          map[string]node.Ops
	opsUnread    map[string]string     // by node: why what operators say cannot be read, of records that never could be
	views        map[string]*node.View // records and ops joined; never changed once published
	version      uint64                // of the views; moves by one when they change
	history      scheduler.History     // of the views
	sources      map[string]*node.View // the records that the views were made of; nil when something else of them has changed
	orphans      map[string][]reconcile.Orphan
	listed       map[string]orphanList  // by node: its pages of orphans as last read
	machinesLost map[string]lostMachine // nodes whose machines have failed
	agentsLive   map[string]uint64      // nodes without a preparer whose agents live: the FreeIndex that Consul was asked about
	as           seen
	waiting      map[string]bool // watches that have not delivered yet
	ready        chan struct{}   // closed when none is waiting
	nodeDied     wait.Signal     // wakes the query for failed agents
	orphansMoved wait.Signal     // wakes the reading of pages of orphans
}

// lostMachine is a failed machine of a node: the FreeIndex that Consul was asked about, and when it was first found to have failed.
type lostMachine struct {
	index uint64
	since time.Time
}

// seen is the cluster as a whole at one moment.
type seen struct {
	farms   []store.Member
	able    []contender // of the farms, those whose selectors can be read
	stable  time.Time   // when the members changed last
	schema  store.Rec[store.Schema]
	breaker store.Rec[store.Breaker]
}

func (w *cache) now() seen {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.as
}

func newCache(cfg *Config, log obs.Logger, emit func(event)) *cache {
	return &cache{
		store: cfg.Store, self: cfg.member(), metrics: cfg.Metrics, emit: emit, log: log, waiting: map[string]bool{}, listed: map[string]orphanList{}, ready: make(chan struct{}),
		nodeDied: wait.NewSignal(), orphansMoved: wait.NewSignal(),
	}
}

// watch starts every standing query in the group.
func (w *cache) watch(ctx context.Context, group *errgroup.Group) {
	queries := map[string]watch{
		"nodeops": watchOf(ctx, w, w.store.WatchNodeOps, w.opsSeen),
		"farms":   watchOf(ctx, w, w.store.WatchFarms, w.farmsSeen),
		"schema":  watchOf(ctx, w, w.store.WatchSchema, w.schemaSeen),
		"breaker": watchOf(ctx, w, w.store.WatchBreaker, w.breakerSeen),
	}
	for shard := range store.Shards {
		name := string("0123456789abcdef"[shard])
		nodes := func(ctx context.Context, onError func(error), deliver func(store.Seen[node.Node]) error) error {
			return w.store.WatchNodes(ctx, shard, onError, deliver)
		}
		queries["nodes/"+name] = watchOf(ctx, w, nodes, func(ctx context.Context, s store.Seen[node.Node]) error { return w.nodesSeen(ctx, shard, s) })
		queries["bells/"+name] = func(onError func(error), done func()) error {
			return w.store.WatchBells(ctx, shard, onError, func(s store.Bells) error {
				defer done()
				return w.bellsSeen(ctx, shard, s)
			})
		}
	}
	for name := range queries {
		w.waiting[name] = true
	}
	for name, q := range queries {
		onError, good := w.reporter(ctx, name)
		group.Go(func() error {
			return q(onError, func() { good(); w.delivered(name) })
		})
	}
}

// watch is one watch. It calls delivered after each delivery that it could use.
type watch func(onError func(error), delivered func()) error

// watchOf returns the standing query that hands what a watch delivers to the cache.
func watchOf[T any](
	ctx context.Context, w *cache, watch func(ctx context.Context, onError func(error), deliver func(store.Seen[T]) error) error,
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

// reporter logs the errors of one watch: the first of a row, and its end.
func (w *cache) reporter(ctx context.Context, name string) (onError func(error), good func()) {
	var mu sync.Mutex
	last := ""
	onError = func(err error) {
		mu.Lock()
		defer mu.Unlock()
		kind, _, _ := strings.Cut(name, "/") // such as nodes/3
		w.metrics.watches.WithLabelValues(kind).Inc()
		if ctx.Err() == nil && last != err.Error() {
			last = err.Error()
			w.log.WithError(err).WithField(obs.Key, name).Warn("cannot watch; nothing is changed on what is not seen")
		}
	}
	good = func() {
		mu.Lock()
		defer mu.Unlock()
		if last != "" {
			last = ""
			w.log.WithField(obs.Key, name).Info("watching again")
		}
	}
	return onError, good
}

func (w *cache) delivered(name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.waiting[name] {
		delete(w.waiting, name)
		if len(w.waiting) == 0 {
			close(w.ready)
		}
	}
}

func (w *cache) waitReady(ctx context.Context) error {
	select {
	case <-w.ready:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// wentBack makes the whole cluster start over after the store went back in time (R1, R5).
func (w *cache) wentBack(ctx context.Context) error {
	return w.wentBackFrom(ctx, w.now().schema.Value.Epoch, "")
}

// wentBackFrom is wentBack for a store that went back from a time with the given epoch, as one node alone says, "" for
// none.
func (w *cache) wentBackFrom(ctx context.Context, epoch, witness string) error {
	w.log.Warn("the store went back in time; asking every node what it runs")
	if err := w.store.RenewEpoch(ctx, epoch, witness); err != nil {
		return errors.Join(store.ErrWentBack, store.ErrUnanswered, err)
	}
	return store.ErrWentBack
}

func (w *cache) bellsSeen(ctx context.Context, shard int, s store.Bells) error {
	if s.WentBack {
		return w.wentBack(ctx)
	}
	w.mu.Lock()
	before := w.bells[shard]
	w.bells[shard] = s.Index
	w.mu.Unlock()
	for id, index := range s.Index {
		if before[id] != index {
			w.emit(bellRang{id})
		}
	}
	for id := range before {
		if _, still := s.Index[id]; !still {
			w.emit(bellGone{id})
		}
	}
	if s.MarkerMissing && before != nil {
		w.emit(recordsMissing{})
	}
	return nil
}

func (w *cache) farmsSeen(ctx context.Context, s store.Seen[store.Member]) error {
	var farms []store.Member
	present := false
	for _, rec := range s.Recs {
		farms = append(farms, rec.Value)
		present = present || rec.Value.ID == w.self.ID
	}
	if !present {
		// Our session lives, or we would have been told: somebody removed the record.
		w.log.Warn("own member record vanished; writing it again")
		if err := w.store.Join(ctx, w.self); err != nil {
			return err
		}
		farms = append(farms, w.self)
		w.emit(recordsMissing{})
	}
	w.mu.Lock()
	names := memberNames(farms)
	same := slices.Equal(memberNames(w.as.farms), names)
	w.as.farms, w.as.able = farms, contendersOf(farms)
	if !same {
		w.as.stable = time.Now()
	}
	w.mu.Unlock()
	if !same {
		w.log.WithField("members", names).Info("the farms are")
		w.emit(membersMoved{})
	}
	return nil
}

func (w *cache) schemaSeen(ctx context.Context, s store.Seen[store.Schema]) error {
	w.emit(unreadableFound{"schema", s.Corrupt})
	if len(s.Corrupt) > 0 {
		w.log.WithError(s.Corrupt[0]).Error("the cluster record cannot be read; nothing is placed")
	}
	var rec store.Rec[store.Schema] // without an epoch no node is synced, so nothing is placed
	if len(s.Recs) == 0 && len(s.Corrupt) == 0 {
		w.log.Warn("the cluster record is missing; creating it")
		var err error
		if rec, err = w.store.EnsureSchema(ctx); err != nil {
			return err
		}
		w.emit(recordsMissing{})
	} else if len(s.Recs) > 0 {
		rec = s.Recs[0]
	}
	w.mu.Lock()
	other := w.as.schema.Value.Epoch != rec.Value.Epoch
	w.as.schema = rec
	w.mu.Unlock()
	if other {
		w.emit(epochMoved{})
	}
	return nil
}

func (w *cache) breakerSeen(ctx context.Context, s store.Seen[store.Breaker]) error {
	w.emit(unreadableFound{"breaker", s.Corrupt})
	rec := store.Rec[store.Breaker]{}
	switch {
	case len(s.Corrupt) > 0:
		w.log.WithError(s.Corrupt[0]).Error("the breaker cannot be read; nothing is stopped")
	case len(s.Recs) == 0:
		if err := w.store.RestoreBreaker(ctx); err != nil && ctx.Err() == nil {
			w.log.WithError(err).Warn("cannot create the breaker; nothing is stopped")
		}
	default:
		rec = s.Recs[0]
	}
	w.mu.Lock()
	before := w.as.breaker
	w.as.breaker = rec
	w.mu.Unlock()
	if before.Index != rec.Index {
		w.emit(breakerMoved{reset: before.Value.Tripped && rec.Index != 0 && !rec.Value.Tripped})
	}
	return nil
}

// members returns the living farms, without members that own one controller each.
func (w *cache) members() []store.Member {
	return slices.DeleteFunc(slices.Clone(w.now().farms), func(m store.Member) bool { return m.RCID != "" })
}

// contender is a farm that may own the controllers that its selector matches.
type contender struct {
	looks.Contender
	rcID string // the only one that it may own; empty: those that the selector matches
}

// contendersOf parses the selectors: every controller is compared with all of them whenever the members change.
func contendersOf(farms []store.Member) []contender {
	var able []contender
	for _, m := range farms {
		if sel, err := rc.ParseSelector(m.RCSelector); err == nil {
			able = append(able, contender{looks.Contender{ID: m.ID, Selector: sel}, m.RCID})
		}
	}
	return able
}

// memberNames lists ids with selectors: what ownership depends on.
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

// nodesAt returns the nodes with their version.
func (w *cache) nodesAt() (map[string]*node.View, uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.views, w.version
}

// between returns how the nodes of one version became those of another; ok is false where that is not known any more.
func (w *cache) between(from, to uint64) (changes []scheduler.NodeChange, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.history.Between(from, to)
}

func (w *cache) orphansOf(rcID string) []reconcile.Orphan {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.orphans[rcID]
}

// lastRung returns the units, those first whose bells rang last.
func (w *cache) lastRung() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var ids []string
	rung := map[string]uint64{}
	for _, bells := range w.bells {
		for id, index := range bells {
			ids = append(ids, id)
			rung[id] = index
		}
	}
	slices.SortFunc(ids, func(a, b string) int { return cmp.Or(cmp.Compare(rung[b], rung[a]), cmp.Compare(a, b)) })
	return ids
}

// rung returns the bell of a unit, as heard last: zero where there is none.
func (w *cache) rung(id string) (index uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, shard := range w.bells {
		index = max(index, shard[id])
	}
	return index
}
