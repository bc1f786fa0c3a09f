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
	"github.com/rcfarm/rcfarm/pkg/store"
)

// All histories share these variables. The metrics are not read, and the client sends nothing.
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

// simOwner is a farm, with one session after the other. What it does for the unit is the code of the program.
type simOwner struct {
	*history
	name    string
	session string
	count   int  // of sessions
	ended   bool // its session has ended; the farm may not know that
	kit     *kit
	cache   *cache
	unit    *unit // nil: the farm knows of no unit that it owns
	cancel  context.CancelFunc
	looking bool
	result  chan simResult
	retries bool // the last look failed
	watched [3]uint64
	calls   []*simCall
	prefers string // the farm that this farm takes for the preferred one
	seen    *simView
}

// simView is what the judge knows of the reads on which the owner's look relies.
type simView struct {
	rcs     map[string]uint64
	rollout uint64
	schema  uint64
	drops   store.Drops
	nodes   map[string]*node.View
}

// simResult is the result of a look.
type simResult struct {
	again time.Duration
	err   error
}

// simCall is a call of the store that waits until the history continues it.
type simCall struct {
	owner  *simOwner
	kind   string
	detail string
	txn    bool // a transaction: it may land late, or never
	do     func(f fate)
	reply  chan struct{}
}

// join gives the farm a new session. The farm remembers nothing.
func (s *simOwner) join() {
	s.count++
	s.session, s.ended, s.unit = fmt.Sprintf("%s/%d", s.name, s.count), false, nil
	cfg := &Config{ID: s.name, Store: &simSession{simLoads, s}, Metrics: simMetrics, Rollouts: simRollouts}
	cfg.setDefaults()
	s.cache = newCache(cfg, obs.Discard(), func(event) {})
	s.kit = newKit(cfg, obs.Discard(), s.cache, simPeers{s})
	s.watch()
}

// watch makes the farm's watches deliver the present records.
func (s *simOwner) watch() {
	schema := recordAt[store.Schema](s.store, simKeys.Schema.Key())
	s.cache.mu.Lock()
	s.cache.as.schema, s.cache.as.breaker = schema, recordAt[store.Breaker](s.store, simKeys.Breaker.Key())
	s.cache.mu.Unlock()
	s.kit.nodeSync.found(schema.Value.Epoch, "")
	var seen store.Seen[node.Node]
	failed := map[string]bool{}
	for _, n := range s.nodes {
		seen.Recs = append(seen.Recs, recordAt[node.Node](s.store, simKeys.Nodes.Key(n.name)))
		failed[n.name] = n.lost
	}
	ctx := context.Background()
	if err := s.cache.nodesSeen(ctx, 0, seen); err != nil {
		panic(err)
	}
	living := map[string]bool{}
	for name, lost := range failed {
		living[name] = !lost
	}
	s.cache.failedSeen(s.cache.free(), failed, living)
	_, version := s.cache.nodesAt()
	now := [3]uint64{schema.Index, s.cache.present().breaker.Index, version}
	if s.unit != nil && now != s.watched {
		s.unit.looks.Ask()
	}
	s.watched = now
}

// idle reports whether the farm would skip a look now.
func (s *simOwner) idle() bool {
	if s.unit == nil || s.retries {
		return s.unit == nil
	}
	idle, _ := s.unit.idle(s.store.at[simKeys.Bells.Key(simUnit)].index)
	return idle
}

// claim takes the lock, if the other farm does not hold it.
func (s *simOwner) claim() {
	if s.ended || s.looking || s.unit != nil {
		return
	}
	key := simKeys.Locks.Key(simUnit)
	r := s.store.at[key]
	if r.session != "" && r.session != s.session {
		return
	}
	r.session, r.index = s.session, s.store.next()
	s.store.at[key] = r
	fence := store.Fence{Key: key, Session: s.session, Index: r.index}
	s.unit = s.kit.newUnit(simUnit, fence)
	s.unit.claimed = &store.Claimed{Fence: fence, Unit: s.reads()}
	s.logf("%s claims, fence %d", s.name, fence.Index)
}

// loses ends the session of the farm. The farm may learn this later.
func (s *simOwner) loses() {
	s.ended = true
	key := simKeys.Locks.Key(simUnit)
	if r := s.store.at[key]; r.session == s.session {
		r.session, r.index = "", s.store.next()
		s.store.at[key] = r
	}
	s.logf("the session of %s ends", s.name)
}

// reads reads the unit for a look, and notes for the judge what it has read.
func (s *simOwner) reads() store.Unit {
	u := s.store.readUnit()
	s.seen = &simView{rcs: map[string]uint64{}, rollout: u.Rollout.Index, drops: u.Drops}
	for id, h := range u.Heads {
		s.seen.rcs[id] = h.RC.Index
	}
	s.sees()
	return u
}

// sees notes what the look takes from the farm's watches.
func (s *simOwner) sees() {
	s.seen.schema = s.cache.present().schema.Index
	s.seen.nodes, _ = s.cache.nodesAt()
}

// begin begins a look.
func (s *simOwner) begin() {
	if s.unit == nil || s.looking {
		return
	}
	s.looking = true
	var ctx context.Context
	ctx, s.cancel = context.WithCancel(context.Background())
	u := s.unit
	if u.claimed != nil {
		s.sees() // only the unit was read with the lock
	}
	go func() {
		again, err := s.look(ctx, u)
		s.result <- simResult{again, err}
	}()
	s.settles()
}

// settles waits until the look waits for the store, or has ended.
func (s *simOwner) settles() {
	synctest.Wait()
	select {
	case r := <-s.result:
		err := r.err
		s.looking, s.retries = false, err != nil
		s.cancel()
		switch {
		case errors.Is(err, errHandedOver), errors.Is(err, errRecordGone):
			s.logf("%s: %v", s.name, err)
			s.unit = nil
		case errors.Is(err, store.ErrLost), errors.Is(err, store.ErrWentBack):
			s.logf("%s begins again: %v", s.name, err)
			s.loses()
			s.join()
		case err != nil:
			s.logf("%s: look: %v", s.name, err)
		default:
			s.unit.looks.Again(r.again)
		}
	default:
	}
}

// goOn continues a call, after the events that may come before it. Equal calls are continued together.
func (s *simOwner) goOn(c *simCall) {
	f := lands
	if c.txn {
		f = s.fate()
	}
	s.mu.Lock()
	alike := slices.DeleteFunc(slices.Clone(s.calls), func(other *simCall) bool {
		return other.kind != c.kind || other.detail != c.detail
	})
	s.calls = slices.DeleteFunc(s.calls, func(other *simCall) bool { return slices.Contains(alike, other) })
	s.mu.Unlock()
	for _, same := range alike {
		same.do(f)
	}
	for _, same := range alike {
		close(same.reply)
	}
	s.settles()
}

// waiting returns the calls that wait, in the same order in each run.
func (s *simOwner) waiting() []*simCall {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.SortedFunc(slices.Values(s.calls), func(a, b *simCall) int {
		return cmp.Or(cmp.Compare(a.kind, b.kind), cmp.Compare(a.detail, b.detail))
	})
}

// simSession is the store under the session of a farm. Each call waits until the history continues it.
type simSession struct {
	*store.FarmSession // for the loads of transactions
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

// write sends a transaction. lands is called when the transaction has landed, perhaps after the answer.
func (s *simSession) write(
	ctx context.Context, kind, detail string, t *simTxn, judge func() func(), lands func(map[string]uint64),
) (err error) {
	stopped := s.wait(ctx, kind, detail, true, func(f fate) { err = s.arrives(f, kind+" "+detail, t, judge, lands) })
	return errors.Join(stopped, err)
}

// HeadLoad returns most of a transaction's capacity as used if batches should be small.
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

func (s *simSession) ReadUnit(ctx context.Context, _ string, _ store.Level) (u store.Unit, err error) {
	err = s.wait(ctx, "read", "", false, func(fate) { u = s.reads() })
	return u, err
}

func (s *simSession) DropsOf(ctx context.Context, _ string) (d store.Drops, err error) {
	err = s.wait(ctx, "drops", "", false, func(fate) { d = s.dropsSince(s.store.drops()) })
	return d, err
}

func (s *simSession) ReadDetails(ctx context.Context, w store.Wanted, _ store.Level) (d store.Details, err error) {
	err = s.wait(ctx, "details", "", false, func(fate) {
		d = s.store.readDetails(&w)
		if s.without(earlyDrops) {
			maps.Copy(s.seen.drops.Counts, s.store.drops().Counts)
		}
	})
	return d, err
}

func (s *simSession) Placements(
	ctx context.Context, rcID string, _ store.Level,
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
	err = s.wait(ctx, "orphans", name, false,
		func(fate) { rec = recordAt[node.Node](s.store, simKeys.Nodes.Key(name)) })
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

func (s *simSession) HaveIntents(ctx context.Context, copies []store.At) (map[store.At]bool, error) {
	found := map[store.At]bool{}
	err := s.wait(ctx, "told", "", false, func(fate) {
		for _, at := range copies {
			_, found[at] = s.store.at[intentKey(at)]
		}
	})
	return found, err
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
		b.Pods, b.Status = nil, nil // so that nothing is applied to the view
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
		for i := range step.RCs { // the look relies on these from now on
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

// Bump moves the fence. In the end its outcome is always known (R9).
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

// simPeers is what a look needs to know of the farms.
type simPeers struct{ *simOwner }

func (s simPeers) preferred(context.Context, string) (string, bool, error) {
	return s.prefers, true, nil
}

func (s simPeers) claimsMore(context.Context) (bool, error) { return false, nil }

func (s simPeers) capacityFreed(string) {}

func (s simPeers) enqueue(string) {}

func (s simPeers) waiting() int { return 0 }
