package farm

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/obs"
	"github.com/rcfarm/rcfarm/pkg/reconcile"
	"github.com/rcfarm/rcfarm/pkg/store"
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
	RenewNonce(ctx context.Context, known string) error
	RestoreBreaker(ctx context.Context) error
	TripBreaker(ctx context.Context, index uint64, b store.Breaker, a store.Audit) error
}

// world is what the farm's watches have seen: a cache without authority.
type world struct {
	farm *Farm
	log  obs.Logger

	mu      sync.Mutex
	bells   [store.Shards]map[string]uint64
	records [store.Shards]map[string]*node.View // without the operators' side
	ops     map[string]node.Ops
	views   map[string]*node.View // records and ops joined; never changed once published
	version uint64                // of the views; moves when they change
	sources map[string]*node.View // the records that the views were made of; nil when something else of them has changed
	orphans map[string][]reconcile.Orphan
	farms   []store.Member
	stable  time.Time       // when the members changed last
	failed  map[string]bool // machines whose agents have failed, by Consul's name
	schema  store.Rec[store.Schema]
	breaker store.Rec[store.Breaker]
	waiting map[string]bool // watches that have not delivered yet
	ready   chan struct{}   // closed when none is waiting
	// nodeDied wakes the query for failed agents; capacity 1.
	nodeDied chan struct{}
}

func newWorld(f *Farm) *world {
	return &world{farm: f, log: f.log, waiting: map[string]bool{}, ready: make(chan struct{}), nodeDied: make(chan struct{}, 1)}
}

// watch starts every standing query in the group.
func (w *world) watch(ctx context.Context, group *errgroup.Group) {
	st := w.farm.cfg.Store
	queries := map[string]standingQuery{}
	run := func(name string, q standingQuery) {
		queries[name] = q
		w.waiting[name] = true
	}
	for shard := range store.Shards {
		name := string("0123456789abcdef"[shard])
		run("nodes/"+name, func(onError func(error), done func()) error {
			return st.WatchNodes(ctx, shard, onError, func(s store.Seen[node.Node]) error {
				defer done()
				return w.nodesSeen(ctx, shard, s)
			})
		})
		run("bells/"+name, func(onError func(error), done func()) error {
			return st.WatchBells(ctx, shard, onError, func(s store.Bells) error {
				defer done()
				return w.bellsSeen(ctx, shard, s)
			})
		})
	}
	run("nodeops", func(onError func(error), done func()) error {
		return st.WatchNodeOps(ctx, onError, func(s store.Seen[node.Ops]) error {
			defer done()
			return w.opsSeen(ctx, s)
		})
	})
	run("farms", func(onError func(error), done func()) error {
		return st.WatchFarms(ctx, onError, func(s store.Seen[store.Member]) error {
			defer done()
			return w.farmsSeen(ctx, s)
		})
	})
	run("schema", func(onError func(error), done func()) error {
		return st.WatchSchema(ctx, onError, func(s store.Seen[store.Schema]) error {
			return w.schemaSeen(ctx, s, done)
		})
	})
	run("breaker", func(onError func(error), done func()) error {
		return st.WatchBreaker(ctx, onError, func(s store.Seen[store.Breaker]) error {
			defer done()
			return w.breakerSeen(ctx, s)
		})
	})
	for name, q := range queries {
		onError, good := w.reporter(ctx, name)
		group.Go(func() error {
			return q(onError, func() { good(); w.delivered(name) })
		})
	}
}

// standingQuery is one watch. It calls delivered after each delivery that it could use.
type standingQuery func(onError func(error), delivered func()) error

// reporter logs the errors of one watch: the first of a row, and its end.
func (w *world) reporter(ctx context.Context, name string) (onError func(error), good func()) {
	var mu sync.Mutex
	last := ""
	onError = func(err error) {
		mu.Lock()
		defer mu.Unlock()
		w.farm.cfg.Metrics.watchFailed(name)
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

func (w *world) delivered(name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.waiting[name] {
		delete(w.waiting, name)
		if len(w.waiting) == 0 {
			close(w.ready)
		}
	}
}

func (w *world) waitReady(ctx context.Context) error {
	select {
	case <-w.ready:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// regressed makes the whole cluster start over after the store went back in time (R1, R5).
func (w *world) regressed(ctx context.Context) error {
	return w.regressedFrom(ctx, w.schemaRec().Value.Nonce)
}

// regressedFrom is regressed for a store that went back from a time with the given nonce.
func (w *world) regressedFrom(ctx context.Context, nonce string) error {
	w.log.Warn("the store went back in time; asking every node what it runs")
	if err := w.farm.cfg.Store.RenewNonce(ctx, nonce); err != nil {
		return errors.Join(store.ErrRegressed, store.ErrUnanswered, err)
	}
	return store.ErrRegressed
}

func (w *world) bellsSeen(ctx context.Context, shard int, s store.Bells) error {
	if s.Regressed {
		return w.regressed(ctx)
	}
	w.mu.Lock()
	before := w.bells[shard]
	w.bells[shard] = s.Index
	w.mu.Unlock()
	for id, index := range s.Index {
		if before[id] != index {
			w.farm.enqueue(id)
		}
	}
	for id := range before {
		if _, still := s.Index[id]; !still {
			w.farm.bellGone(id)
		}
	}
	if s.MarkerMissing && before != nil {
		w.farm.requestSweep()
	}
	return nil
}

func (w *world) nodesSeen(ctx context.Context, shard int, s store.Seen[node.Node]) error {
	if s.Regressed {
		return w.regressed(ctx)
	}
	w.farm.foundCorrupt(fmt.Sprintf("nodes/%x", shard), s.Corrupt)
	for _, err := range s.Corrupt {
		w.log.WithError(err).Error("a node is left out")
	}
	records := make(map[string]*node.View, len(s.Recs))
	for _, rec := range s.Recs {
		if known := w.schemaRec().Value.Nonce; known != "" && rec.Session != "" && rec.Value.Regressed >= known {
			w.log.WithField(obs.Node, rec.Value.Name).Warn("a node saw the store go back in time")
			return w.regressedFrom(ctx, rec.Value.Regressed)
		}
		records[rec.Value.Name] = &node.View{Node: rec.Value, Alive: rec.Session != ""}
	}
	w.mu.Lock()
	w.records[shard] = records
	changed, orphaned := w.publish()
	w.mu.Unlock()
	w.nodesChanged(changed, orphaned)
	if s.MarkerMissing {
		w.farm.requestSweep()
	}
	return nil
}

func (w *world) opsSeen(ctx context.Context, s store.Seen[node.Ops]) error {
	if s.Regressed {
		return w.regressed(ctx)
	}
	w.farm.foundCorrupt("nodeops", s.Corrupt)
	for _, err := range s.Corrupt {
		w.log.WithError(err).Error("an operator's record of a node is left out")
	}
	ops := make(map[string]node.Ops, len(s.Recs))
	for _, rec := range s.Recs {
		ops[rec.Value.Name] = rec.Value
	}
	w.mu.Lock()
	w.ops, w.sources = ops, nil
	changed, orphaned := w.publish()
	w.mu.Unlock()
	w.nodesChanged(changed, orphaned)
	return nil
}

// publish joins records and ops into new views. It returns the nodes whose use for pods may have changed, and the
// controllers of orphans that came or went. The caller holds the mutex.
func (w *world) publish() (changed, orphaned map[string]bool) {
	views, sources := make(map[string]*node.View, len(w.views)), make(map[string]*node.View, len(w.views))
	orphans := map[string][]reconcile.Orphan{}
	changed, orphaned = map[string]bool{}, map[string]bool{}
	for _, records := range w.records {
		for name, record := range records {
			v := w.views[name]
			if w.sources[name] != record { // else its shard has delivered nothing new
				if next := w.join(record); v == nil || !reflect.DeepEqual(*v, *next) {
					v, changed[name] = next, true
				}
			}
			views[name], sources[name] = v, record
			for _, o := range v.Orphans {
				if v.Alive {
					orphans[o.RCID] = append(orphans[o.RCID], reconcile.Orphan{Node: name, Orphan: o})
				}
				if changed[name] {
					orphaned[o.RCID] = true
				}
			}
		}
	}
	for name := range w.views {
		if views[name] == nil {
			changed[name] = true
		}
	}
	if len(changed) > 0 || w.version == 0 {
		w.version++
	}
	w.views, w.sources, w.orphans = views, sources, orphans
	return changed, orphaned
}

// join returns the view of a node. The caller holds the mutex.
func (w *world) join(record *node.View) *node.View {
	v := *record
	v.Ops = w.ops[v.Name]
	v.Gone = !v.Alive && w.failed[v.ConsulNode]
	return &v
}

// nodesChanged looks at the controllers that a changed node may matter to.
func (w *world) nodesChanged(changed, orphaned map[string]bool) {
	for id := range orphaned {
		w.farm.enqueue(id)
	}
	if len(changed) > 0 {
		select {
		case w.nodeDied <- struct{}{}:
		default: // one wake-up is enough
		}
		w.farm.enqueueOwned(func(c *ReplicationController) bool { return c.concernedBy(changed) })
	}
}

func (w *world) farmsSeen(ctx context.Context, s store.Seen[store.Member]) error {
	if s.Regressed {
		return w.regressed(ctx)
	}
	var farms []store.Member
	present := false
	for _, rec := range s.Recs {
		farms = append(farms, rec.Value)
		present = present || rec.Value.ID == w.farm.cfg.ID
	}
	if !present {
		// Our session lives, or we would have been told: somebody removed the record.
		w.log.Warn("own member record vanished; writing it again")
		if err := w.farm.cfg.Store.Join(ctx, w.farm.member()); err != nil {
			return err
		}
		own := w.farm.member()
		own.ID = w.farm.cfg.ID
		farms = append(farms, own)
		w.farm.requestSweep()
	}
	w.mu.Lock()
	names := memberNames(farms)
	same := slices.Equal(memberNames(w.farms), names)
	w.farms = farms
	if !same {
		w.stable = time.Now()
	}
	w.mu.Unlock()
	if !same {
		w.log.WithField("members", names).Info("the farms are")
		w.farm.membersChanged()
	}
	return nil
}

func (w *world) schemaSeen(ctx context.Context, s store.Seen[store.Schema], done func()) error {
	if s.Regressed {
		return w.regressed(ctx)
	}
	w.farm.foundCorrupt("schema", s.Corrupt)
	if len(s.Corrupt) > 0 {
		w.log.WithError(s.Corrupt[0]).Error("the cluster record cannot be read; nothing is placed")
	}
	var rec store.Rec[store.Schema] // without a nonce nothing settles, so nothing is placed
	if len(s.Recs) == 0 && len(s.Corrupt) == 0 {
		w.log.Warn("the cluster record is missing; creating it")
		var err error
		if rec, err = w.farm.cfg.Store.EnsureSchema(ctx); err != nil {
			return err
		}
		w.farm.requestSweep()
	} else if len(s.Recs) > 0 {
		rec = s.Recs[0]
	}
	w.mu.Lock()
	w.schema = rec
	w.mu.Unlock()
	done()
	return nil
}

func (w *world) breakerSeen(ctx context.Context, s store.Seen[store.Breaker]) error {
	if s.Regressed {
		return w.regressed(ctx)
	}
	w.farm.foundCorrupt("breaker", s.Corrupt)
	rec := store.Rec[store.Breaker]{}
	switch {
	case len(s.Corrupt) > 0:
		w.log.WithError(s.Corrupt[0]).Error("the breaker cannot be read; nothing is stopped")
	case len(s.Recs) == 0:
		if err := w.farm.cfg.Store.RestoreBreaker(ctx); err != nil && ctx.Err() == nil {
			w.log.WithError(err).Warn("cannot create the breaker; nothing is stopped")
		}
	default:
		rec = s.Recs[0]
	}
	w.mu.Lock()
	changed := w.breaker.Index != rec.Index
	w.breaker = rec
	w.mu.Unlock()
	if changed {
		w.farm.enqueueOwned(func(*ReplicationController) bool { return true })
	}
	return nil
}

func (w *world) members() []store.Member {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.farms
}

// memberNames lists ids with selectors: what ownership depends on.
func memberNames(farms []store.Member) []string {
	names := make([]string, len(farms))
	for i, m := range farms {
		names[i] = m.ID
		if m.RCSelector != "" {
			names[i] += " (" + m.RCSelector + ")"
		}
	}
	return names
}

// membersSince returns when the members changed last.
func (w *world) membersSince() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.stable
}

func (w *world) nodes() map[string]*node.View {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.views
}

// nodesAt returns the nodes with their version.
func (w *world) nodesAt() (map[string]*node.View, uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.views, w.version
}

func (w *world) orphansOf(rcID string) []reconcile.Orphan {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.orphans[rcID]
}

func (w *world) schemaRec() store.Rec[store.Schema] {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.schema
}

func (w *world) breakerRec() store.Rec[store.Breaker] {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.breaker
}

func (w *world) bellIDs() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var ids []string
	for _, bells := range w.bells {
		for id := range bells {
			ids = append(ids, id)
		}
	}
	return ids
}
