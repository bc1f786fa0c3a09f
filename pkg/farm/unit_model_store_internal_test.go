package farm

import (
	"errors"
	"maps"
	"reflect"
	"slices"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/rollout"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// simUnit is the service of the unit model.
const simUnit = "01hzzzzzzzzzzzzzzzzzzzwebs"

// simKeys are the keys of the unit's records.
var simKeys = func() *store.Keys {
	keys, err := store.NewKeys("m/")
	if err != nil {
		panic(err)
	}
	return keys
}()

// condition is a kind of condition of a transaction. A variant makes the store ignore one kind.
type condition string

const (
	onSession     condition = "the session of the lock"
	onFence       condition = "the index of the lock"
	onRC          condition = "the controller's record"
	onBeside      condition = "the records of the other revisions"
	onRollout     condition = "the rollout"
	onNewest      condition = "the newest of the realities that the batch relies on"
	onDrops       condition = "the drops"
	onReported    condition = "realities as they were read"
	onSchema      condition = "the schema, of batches"
	onBreaker     condition = "the breaker, of batches"
	onDead        condition = "dead nodes"
	onReservation condition = "reservations"
	onPlacement   condition = "placements"
	onStepRC      condition = "the records that a step changes"
	onStepBeside  condition = "the records that a step does not change"
	onStepRollout condition = "the rollout, of steps"
	onStepSchema  condition = "the schema, of steps"
	onStepBreaker condition = "the breaker, of steps"
	onReality     condition = "realities, of reports"
	onStopIntent  condition = "the intent to stop, of reports"
	onCounter     condition = "counters of drops, of reports"
)

// simRecord is one key of the store.
type simRecord struct {
	value          any
	index, created uint64
	session        string
}

// simStore is the store at present.
type simStore struct {
	at      map[string]simRecord
	index   uint64
	ignored map[condition]bool
}

func (s *simStore) next() uint64 { s.index++; return s.index }

// set writes one key alone.
func (s *simStore) set(key string, value any) { s.setAt(key, value, s.next()) }

// setAt writes a key in a transaction, which has one index. A value that does not change keeps its index.
func (s *simStore) setAt(key string, value any, index uint64) uint64 {
	was, is := s.at[key]
	if is && reflect.DeepEqual(was.value, value) {
		return was.index
	}
	if !is {
		was.created = index
	}
	was.value, was.index = value, index
	s.at[key] = was
	return index
}

func (s *simStore) ring() { s.set(simKeys.Bells.Key(simUnit), s.next()) }

// simTxn is a transaction: its conditions and writes.
type simTxn struct {
	checks []simCheck
	writes []simWrite
}

type simCheck struct {
	kind    condition
	key     string
	index   uint64 // zero: the key does not exist
	session string // of onSession
}

type simWrite struct {
	key   string
	value any // nil: the key is removed
}

func (s *simTxn) check(kind condition, key string, index uint64) {
	s.checks = append(s.checks, simCheck{kind: kind, key: key, index: index})
}

func (s *simTxn) set(key string, value any) { s.writes = append(s.writes, simWrite{key, value}) }

func (s *simTxn) fence(f store.Fence) {
	s.checks = append(s.checks, simCheck{kind: onSession, key: f.Key, session: f.Session})
	s.check(onFence, f.Key, f.Index)
}

// fails returns the checks that do not hold, also those that the variant ignores.
func (s *simStore) fails(t *simTxn) (failed []simCheck) {
	for _, c := range t.checks {
		r := s.at[c.key]
		if c.kind == onSession && r.session != c.session || c.kind != onSession && r.index != c.index {
			failed = append(failed, c)
		}
	}
	return failed
}

// refuses returns the error with which the store refuses a transaction; nil: it does not.
func (s *simStore) refuses(t *simTxn) error {
	refused := &consul.RefusedError{}
	for _, c := range s.fails(t) {
		if !s.ignored[c.kind] {
			refused.Failures = append(refused.Failures, consul.Failure{Key: c.key, What: string(c.kind)})
		}
	}
	if len(refused.Failures) == 0 {
		return nil
	}
	return refused
}

// land carries a transaction out, and returns the indices of its writes.
func (s *simStore) land(t *simTxn) map[string]uint64 {
	written, index := map[string]uint64{}, s.next()
	for _, w := range t.writes {
		if w.value == nil {
			delete(s.at, w.key)
			continue
		}
		written[w.key] = s.setAt(w.key, w.value, index)
	}
	return written
}

// batchTxn makes the transaction of a batch, as store.Batches does.
func batchTxn(b *store.Batch) *simTxn {
	t := &simTxn{}
	t.fence(b.Fence)
	t.check(onRC, simKeys.RCs.Key(b.RCID), b.RCIndex)
	for _, id := range slices.Sorted(maps.Keys(b.Beside)) {
		t.check(onBeside, simKeys.RCs.Key(id), b.Beside[id])
	}
	if b.Rollout != nil {
		t.check(onRollout, simKeys.Rollouts.Key(simUnit), *b.Rollout)
	}
	if n := b.Newest; n != nil {
		if _, twice := b.Reported[n.At]; !twice {
			t.check(onNewest, realityKey(n.At), n.Index)
		}
	}
	t.part(b)
	if b.Status != nil {
		t.set(simKeys.Statuses.Key(b.RCID), *b.Status)
	}
	return t
}

// part adds the conditions and writes of a batch's changes.
func (s *simTxn) part(b *store.Batch) {
	for kind, on := range map[condition]struct {
		key   string
		index uint64
	}{
		onSchema: {simKeys.Schema.Key(), b.SchemaIndex}, onBreaker: {simKeys.Breaker.Key(), b.BreakerIndex},
		onDrops: {simKeys.Drops.Key(simUnit), b.DropsIndex},
	} {
		if on.index != 0 {
			s.check(kind, on.key, on.index)
		}
	}
	for at, index := range b.Reported {
		s.check(onReported, realityKey(at), index)
	}
	for name, index := range b.Dead {
		s.check(onDead, simKeys.Nodes.Key(name), index)
	}
	for _, w := range b.Reservations {
		s.check(onReservation, simKeys.Reservations.Key(w.Node), w.Index)
		s.set(simKeys.Reservations.Key(w.Node), w.Value)
	}
	for _, w := range b.Pods {
		key := simKeys.Pods.Key(w.Identity.String())
		if s.check(onPlacement, key, w.Index); w.Placement == nil {
			s.set(key, nil)
		} else {
			s.set(key, *w.Placement)
		}
	}
	for _, w := range b.Intents {
		key := intentKey(store.At{Node: w.Node, Identity: w.Identity})
		if w.Intent == nil {
			s.set(key, nil)
		} else {
			s.set(key, *w.Intent)
		}
	}
}

// stepTxn makes the transaction of a step, as store.Batches does.
func stepTxn(s *store.RolloutStep) *simTxn {
	t := &simTxn{}
	t.fence(s.Fence)
	t.check(onStepSchema, simKeys.Schema.Key(), s.Schema)
	if s.Breaker != 0 {
		t.check(onStepBreaker, simKeys.Breaker.Key(), s.Breaker)
	}
	for _, id := range slices.Sorted(maps.Keys(s.Unit.Heads)) {
		kind := onStepBeside
		if slices.ContainsFunc(s.RCs, func(r rc.RC) bool { return r.ID == id }) {
			kind = onStepRC
		}
		t.check(kind, simKeys.RCs.Key(id), s.Unit.Heads[id].RC.Index)
	}
	for _, r := range s.RCs {
		t.set(simKeys.RCs.Key(r.ID), r)
	}
	key, trouble := simKeys.Rollouts.Key(simUnit), simKeys.RolloutTroubles.Key(simUnit)
	switch t.check(onStepRollout, key, s.Unit.Rollout.Index); {
	case s.Ended:
		t.set(key, nil)
	case s.Record != nil:
		t.set(key, *s.Record)
	}
	switch {
	case s.Trouble != nil:
		t.set(trouble, *s.Trouble)
	case s.ForgetsTrouble():
		t.set(trouble, nil)
	}
	return t
}

func realityKey(at store.At) string { return simKeys.Realities.Key(at.Node, at.Identity.String()) }

func intentKey(at store.At) string { return simKeys.Intents.Key(at.Node, at.Identity.String()) }

// committed returns the error of a batch, as store.Batches.Commit does.
func committed(b *store.Batch, err error) error {
	drops := simKeys.Drops.Key(simUnit)
	if b.Newest != nil {
		newest := realityKey(b.Newest.At)
		if consul.RefusedOn(err, newest) && consul.RefusedOnly(err, drops, newest) {
			return errors.Join(store.ErrReported, err)
		}
	}
	if consul.RefusedOnly(err, drops) {
		return errors.Join(store.ErrDropped, err)
	}
	return err
}

// recordAt reads one record.
func recordAt[T any](s *simStore, key string) (rec store.Rec[T]) {
	if r, is := s.at[key]; is {
		rec = store.Rec[T]{Value: r.value.(T), Index: r.index, Session: r.session}
	}
	return rec
}

// readUnit reads the unit as store.Passes does.
func (s *simStore) readUnit() store.Unit {
	u := store.Unit{
		ID: simUnit, BellIndex: s.at[simKeys.Bells.Key(simUnit)].index, Drops: s.drops(),
		Heads:   map[string]*store.Head{},
		Rollout: recordAt[rollout.Record](s, simKeys.Rollouts.Key(simUnit)),
		Trouble: recordAt[store.RolloutTrouble](s, simKeys.RolloutTroubles.Key(simUnit)),
	}
	head := func(id string) *store.Head {
		if u.Heads[id] == nil {
			u.Heads[id] = &store.Head{Err: store.ErrNotFound}
		}
		return u.Heads[id]
	}
	for _, r := range s.at {
		switch v := r.value.(type) {
		case rc.RC:
			h := head(v.ID)
			h.RC, h.Err = store.Rec[rc.RC]{Value: v, Index: r.index}, nil
		case rc.Status:
			head(v.RCID).Status = &v
		case pod.Placement:
			h := head(v.RCID)
			h.Placements = append(h.Placements, store.Rec[pod.Placement]{Value: v, Index: r.index})
		}
	}
	for _, h := range u.Heads {
		slices.SortFunc(h.Placements, func(a, b store.Rec[pod.Placement]) int {
			return a.Value.Identity.Compare(b.Value.Identity)
		})
	}
	return u
}

// simCounter is a counter of drops.
type simCounter struct {
	node  string
	drops int64
}

func (s *simStore) drops() store.Drops {
	key := s.at[simKeys.Drops.Key(simUnit)]
	d := store.Drops{Index: key.index, Created: key.created, Counts: map[string]store.DropCount{}}
	for _, r := range s.at {
		if c, is := r.value.(simCounter); is {
			d.Counts[c.node] = store.DropCount{Created: r.created, Drops: c.drops}
		}
	}
	return d
}

// readDetails reads what a pass wants, as store.Passes does.
func (s *simStore) readDetails(w *store.Wanted) store.Details {
	d := store.Details{
		Reports: map[store.At]store.Report{}, Intents: map[store.At]pod.Intent{},
		Reservations: map[string]store.Rec[node.Reservation]{},
		Others:       map[string]*manifest.Manifest{},
	}
	for _, at := range w.Realities {
		d.Reports[at] = store.Report{}
		if rec := recordAt[pod.Reality](s, realityKey(at)); rec.Index != 0 {
			d.Reports[at] = store.Report{Reality: &rec.Value, Index: rec.Index}
		}
	}
	for _, at := range w.Intents {
		if rec := recordAt[pod.Intent](s, intentKey(at)); rec.Index != 0 {
			d.Intents[at] = rec.Value
		}
	}
	for _, name := range w.Reservations {
		d.Reservations[name] = recordAt[node.Reservation](s, simKeys.Reservations.Key(name))
	}
	if w.Manifest != "" {
		d.Manifest = manifestFor(w.Manifest)
	}
	for _, digest := range w.Others {
		d.Others[digest] = manifestFor(digest)
	}
	return d
}
