package farm

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/farm/roll"
	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/obs"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/scheduler"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// What all histories share: nobody asks the metrics, and nothing is sent by the client.
var (
	simMetrics  = NewMetrics(prometheus.NewRegistry())
	simRollouts = roll.NewMetrics(prometheus.NewRegistry())
	simLoads    = func() *store.FarmSession {
		client, err := consul.New(consul.Config{Address: "127.0.0.1:1"})
		if err != nil {
			panic(err)
		}
		return store.New(client, simKeys).FarmSession(&consul.Session{}, "sim")
	}()
)

// manifestFor returns the manifest of a digest; all of them are alike.
func manifestFor(digest string) *manifest.Manifest {
	return &manifest.Manifest{Version: 1, ID: "web-" + digest[:4]}
}

// simOwner is a farm under one session after the other. What it does for the unit is the program's own.
type simOwner struct {
	*history
	name    string
	session string
	count   int  // of sessions
	ended   bool // its session: it may not have heard
	kit     *kit
	cache   *cache
	unit    *unit // nil: it owns nothing, as far as it knows
	cancel  context.CancelFunc
	looking bool
	result  chan simResult
	retries bool // the last look failed
	watched [3]uint64
	calls   []*simCall
	prefers string // the farm that it takes for the preferred one
	seen    *simView
}

// simView is what the judge knows of the reading that the owner's look goes by.
type simView struct {
	rcs     map[string]uint64
	rollout uint64
	schema  uint64
	drops   store.Drops
	nodes   map[string]*node.View
}

// simResult is what a look came to.
type simResult struct {
	again time.Duration
	err   error
}

// simCall is a call of the store that waits for the history to go on with it.
type simCall struct {
	owner  *simOwner
	kind   string
	detail string
	txn    bool // it may land late, or never
	do     func(f fate)
	reply  chan struct{}
}

// join gives the farm a new session: it remembers nothing.
func (o *simOwner) join() {
	o.count++
	o.session, o.ended, o.unit = fmt.Sprintf("%s/%d", o.name, o.count), false, nil
	cfg := &Config{ID: o.name, Store: &simSession{simLoads, o}, Metrics: simMetrics, Rollouts: simRollouts}
	cfg.setDefaults()
	o.cache = newCache(cfg, obs.Discard(), func(event) {})
	o.kit = newKit(cfg, obs.Discard(), o.cache, simFleet{o}, &scheduler.ByLabel{Between: o.cache.between})
	o.watch()
}

// watch has the farm's standing queries deliver what is so now.
func (o *simOwner) watch() {
	schema := recordAt[store.Schema](o.store, simKeys.Schema.Key())
	o.cache.mu.Lock()
	o.cache.as.schema, o.cache.as.breaker = schema, recordAt[store.Breaker](o.store, simKeys.Breaker.Key())
	o.cache.mu.Unlock()
	o.kit.nodeSync.found(schema.Value.Epoch, "")
	var seen store.Seen[node.Node]
	failed := map[string]bool{}
	for _, n := range o.nodes {
		seen.Recs = append(seen.Recs, recordAt[node.Node](o.store, simKeys.Nodes.Key(n.name)))
		failed[n.name] = n.lost
	}
	ctx := context.Background()
	if err := o.cache.nodesSeen(ctx, 0, seen); err != nil {
		panic(err)
	}
	living := map[string]bool{}
	for name, lost := range failed {
		living[name] = !lost
	}
	o.cache.failedSeen(o.cache.free(), failed, living)
	_, version := o.cache.nodesAt()
	now := [3]uint64{schema.Index, o.cache.now().breaker.Index, version}
	if o.unit != nil && now != o.watched {
		o.unit.looks.Ask()
	}
	o.watched = now
}

// idle reports whether the farm would spare a look now.
func (o *simOwner) idle() bool {
	if o.unit == nil || o.retries {
		return o.unit == nil
	}
	idle, _ := o.unit.idle(o.store.at[simKeys.Bells.Key(simUnit)].index)
	return idle
}

// claim takes the lock, if nobody else holds it.
func (o *simOwner) claim() {
	if o.ended || o.looking || o.unit != nil {
		return
	}
	key := simKeys.Locks.Key(simUnit)
	r := o.store.at[key]
	if r.session != "" && r.session != o.session {
		return
	}
	r.session, r.index = o.session, o.store.next()
	o.store.at[key] = r
	fence := store.Fence{Key: key, Session: o.session, Index: r.index}
	o.unit = o.kit.newUnit(simUnit, fence)
	o.unit.claimed = &store.Claimed{Fence: fence, Unit: o.reads()}
	o.say("%s claims, fence %d", o.name, fence.Index)
}

// loses ends the session of the farm, which need not hear of that at once.
func (o *simOwner) loses() {
	o.ended = true
	key := simKeys.Locks.Key(simUnit)
	if r := o.store.at[key]; r.session == o.session {
		r.session, r.index = "", o.store.next()
		o.store.at[key] = r
	}
	o.say("the session of %s ends", o.name)
}

// reads reads the unit for a look, and notes what that look goes by.
func (o *simOwner) reads() store.Unit {
	u := o.store.readUnit()
	o.seen = &simView{rcs: map[string]uint64{}, rollout: u.Rollout.Index, drops: u.Drops}
	for id, h := range u.Heads {
		o.seen.rcs[id] = h.RC.Index
	}
	o.sees()
	return u
}

// sees notes what the look has of the farm's watches.
func (o *simOwner) sees() {
	o.seen.schema = o.cache.now().schema.Index
	o.seen.nodes, _ = o.cache.nodesAt()
}

// begin begins a look.
func (o *simOwner) begin() {
	if o.unit == nil || o.looking {
		return
	}
	o.looking = true
	var ctx context.Context
	ctx, o.cancel = context.WithCancel(context.Background())
	u := o.unit
	if u.claimed != nil {
		o.sees() // the unit was read with the lock, and nothing else
	}
	go func() {
		again, err := o.look(ctx, u)
		o.result <- simResult{again, err}
	}()
	o.settles()
}

// settles waits until the look waits for the store, or has ended.
func (o *simOwner) settles() {
	synctest.Wait()
	select {
	case r := <-o.result:
		err := r.err
		o.looking, o.retries = false, err != nil
		o.cancel()
		switch {
		case errors.Is(err, errHandedOver), errors.Is(err, errRecordGone):
			o.say("%s: %v", o.name, err)
			o.unit = nil
		case errors.Is(err, store.ErrLost), errors.Is(err, store.ErrWentBack):
			o.say("%s begins anew: %v", o.name, err)
			o.loses()
			o.join()
		case err != nil:
			o.say("%s: look: %v", o.name, err)
		default:
			o.unit.looks.Again(r.again)
		}
	default:
	}
}

// goOn goes on with a call: what can happen to it has happened by then. Calls that nothing tells apart go on together.
func (o *simOwner) goOn(c *simCall) {
	f := lands
	if c.txn {
		f = o.fate()
	}
	o.mu.Lock()
	alike := slices.DeleteFunc(slices.Clone(o.calls), func(other *simCall) bool {
		return other.kind != c.kind || other.detail != c.detail
	})
	o.calls = slices.DeleteFunc(o.calls, func(other *simCall) bool { return slices.Contains(alike, other) })
	o.mu.Unlock()
	for _, same := range alike {
		same.do(f)
	}
	for _, same := range alike {
		close(same.reply)
	}
	o.settles()
}

// waiting returns the calls that wait, in an order that does not change from run to run.
func (o *simOwner) waiting() []*simCall {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.SortedFunc(slices.Values(o.calls), func(a, b *simCall) int {
		return cmp.Or(cmp.Compare(a.kind, b.kind), cmp.Compare(a.detail, b.detail))
	})
}

// simSession is the store under the session of a farm. Each call waits until the history goes on with it.
type simSession struct {
	*store.FarmSession // what loads are
	*simOwner
}

func (s *simSession) wait(ctx context.Context, kind, detail string, txn bool, do func(f fate)) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	c := &simCall{owner: s.simOwner, kind: kind, detail: detail, txn: txn, do: do, reply: make(chan struct{})}
	s.mu.Lock()
	s.calls = append(s.calls, c)
	s.mu.Unlock()
	<-c.reply
	return nil
}

// write sends a transaction. lands is told when it has landed, which may be after the answer.
func (s *simSession) write(
	ctx context.Context, kind, detail string, t *simTxn, judge func() func(), lands func(map[string]uint64),
) (err error) {
	stopped := s.wait(ctx, kind, detail, true, func(f fate) { err = s.arrives(f, kind+" "+detail, t, judge, lands) })
	return errors.Join(stopped, err)
}

// HeadLoad takes most of a transaction where batches are to be small.
func (s *simSession) HeadLoad(b *store.Batch, reports bool) store.Load {
	much := *b
	if s.smallBatches {
		much.Beside = maps.Clone(b.Beside)
		if much.Beside == nil {
			much.Beside = map[string]uint64{}
		}
		for i := range consul.MaxTxnOps - 18 - len(b.Beside) {
			much.Beside[fmt.Sprint("x", i)] = 1
		}
	}
	return s.FarmSession.HeadLoad(&much, reports)
}

func (s *simSession) ReadUnit(ctx context.Context, _ string, _ bool) (u store.Unit, err error) {
	err = s.wait(ctx, "read", "", false, func(fate) { u = s.reads() })
	return u, err
}

func (s *simSession) DropsOf(ctx context.Context, _ string) (d store.Drops, err error) {
	err = s.wait(ctx, "drops", "", false, func(fate) { d = s.dropsSince(s.store.drops()) })
	return d, err
}

func (s *simSession) ReadDetails(ctx context.Context, w store.Wanted, _ bool) (d store.Details, err error) {
	err = s.wait(ctx, "details", "", false, func(fate) {
		d = s.store.readDetails(&w)
		if s.without(earlyDrops) {
			maps.Copy(s.seen.drops.Counts, s.store.drops().Counts)
		}
	})
	return d, err
}

func (s *simSession) Placements(
	ctx context.Context, rcID string, _ bool,
) (recs []store.Rec[pod.Placement], _ []error, err error) {
	err = s.wait(ctx, "placements", rcID, false, func(fate) {
		if h := s.store.readUnit().Heads[rcID]; h != nil {
			recs = h.Placements
		}
	})
	return recs, nil, err
}

func (s *simSession) NodeOrphans(
	ctx context.Context, name string,
) (rec store.Rec[node.Node], complete bool, err error) {
	err = s.wait(ctx, "orphans", name, false, func(fate) { rec = recordAt[node.Node](s.store, simKeys.Nodes.Key(name)) })
	return rec, true, err
}

func (s *simSession) NodeLocks(ctx context.Context, names []string) (map[string]store.NodeLock, error) {
	locks := map[string]store.NodeLock{}
	err := s.wait(ctx, "node locks", "", false, func(fate) {
		for _, name := range names {
			r := s.store.at[simKeys.Nodes.Key(name)]
			locks[name] = store.NodeLock{Locked: r.session != "", Index: r.index}
		}
	})
	return locks, err
}

func (s *simSession) Told(ctx context.Context, copies []store.At) (map[store.At]bool, error) {
	told := map[store.At]bool{}
	err := s.wait(ctx, "told", "", false, func(fate) {
		for _, at := range copies {
			_, told[at] = s.store.at[intentKey(at)]
		}
	})
	return told, err
}

func (s *simSession) Commit(ctx context.Context, b *store.Batch) error {
	detail := b.RCID
	for _, w := range b.Pods {
		detail += " " + w.Identity.Role + "." + fmt.Sprint(w.Identity.Index)
	}
	t := batchTxn(b)
	seen := s.seen
	judge := func() func() { return s.judgeBatch(b, seen) }
	err := s.write(ctx, "commit", detail, t, judge, func(written map[string]uint64) {
		for i := range b.Pods {
			b.Pods[i].Landed = written[simKeys.Pods.Key(b.Pods[i].Identity.String())]
			b.Landed = max(b.Landed, b.Pods[i].Landed)
		}
	})
	if err == nil && s.without(landing) {
		b.Pods, b.Status = nil, nil // so that the view takes nothing in
	}
	return committed(b, err)
}

func (s *simSession) CommitRollout(ctx context.Context, step *store.RolloutStep) (index uint64, err error) {
	t := stepTxn(step)
	seen := s.seen
	err = s.write(ctx, "step", "", t, func() func() { return s.judgeStep(step, t) }, func(written map[string]uint64) {
		for _, at := range written {
			index = max(index, at)
		}
		for i := range step.RCs { // what the look goes by from now on
			seen.rcs[step.RCs[i].ID] = written[simKeys.RCs.Key(step.RCs[i].ID)]
		}
		seen.rollout = s.store.at[simKeys.Rollouts.Key(simUnit)].index
	})
	if err == nil && s.without(stepping) {
		step.RCs, step.Record, step.Ended = nil, nil, false
	}
	return index, err
}

func (s *simSession) GateVersion() string { return "" }

func (s *simSession) Ring(ctx context.Context, _ string) error {
	return s.wait(ctx, "ring", "", false, func(fate) { s.store.ring() })
}

func (s *simSession) MakeDrops(ctx context.Context, _ string) error {
	return s.wait(ctx, "make drops", "", false, func(fate) {
		if _, is := s.store.at[simKeys.Drops.Key(simUnit)]; !is {
			s.store.set(simKeys.Drops.Key(simUnit), s.store.next())
		}
	})
}

// Bump moves the fence: its outcome is always definite in the end (R9).
func (s *simSession) Bump(ctx context.Context, f store.Fence) (moved store.Fence, err error) {
	stopped := s.wait(ctx, "bump", "", false, func(fate) {
		r := s.store.at[f.Key]
		if r.session != f.Session {
			err = store.ErrLost
			return
		}
		if !s.without(bumpStays) {
			r.index = s.store.next()
			s.store.at[f.Key] = r
		}
		moved = f
		moved.Index = r.index
	})
	return moved, errors.Join(stopped, err)
}

func (s *simSession) Release(ctx context.Context, _ string, f store.Fence) error {
	t := &simTxn{}
	t.fence(f)
	return s.write(ctx, "release", "", t, nil, func(map[string]uint64) {
		r := s.store.at[f.Key]
		r.session, r.index = "", s.store.next()
		s.store.at[f.Key] = r
		s.store.ring()
	})
}

func (s *simSession) Abandon(ctx context.Context, f store.Fence, gone []string, left *store.Unit) error {
	t := &simTxn{}
	t.fence(f)
	for _, id := range gone {
		t.check(onRC, simKeys.RCs.Key(id), 0)
		t.set(simKeys.Statuses.Key(id), nil)
	}
	if left != nil {
		t.set(f.Key, nil)
		t.set(simKeys.Rollouts.Key(simUnit), nil)
	}
	return s.write(ctx, "abandon", fmt.Sprint(gone), t, nil, nil)
}

func (s *simSession) Finish(
	ctx context.Context, f store.Fence, rec store.Rec[rc.RC], last, schema uint64, _ store.Audit,
) error {
	t := &simTxn{}
	t.fence(f)
	t.check(onSchema, simKeys.Schema.Key(), schema)
	t.check(onRC, simKeys.RCs.Key(rec.Value.ID), rec.Index)
	t.set(simKeys.RCs.Key(rec.Value.ID), nil)
	t.set(simKeys.Statuses.Key(rec.Value.ID), nil)
	if last != 0 {
		return errors.New("the model deletes no service")
	}
	return s.write(ctx, "finish", rec.Value.ID, t, func() func() { return s.judgeFence(f) }, nil)
}

func (s *simSession) TripBreaker(context.Context, uint64, store.Breaker, store.Audit) error {
	return errors.New("the model stops too few pods for that")
}

// simFleet is what a look needs of the farms.
type simFleet struct{ *simOwner }

func (f simFleet) preferred(context.Context, string) (string, bool, error) {
	return f.prefers, true, nil
}

func (f simFleet) claimsMore(context.Context) (bool, error) { return false, nil }

func (f simFleet) roomFreed(string) {}

func (f simFleet) enqueue(string) {}
