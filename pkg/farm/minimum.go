package farm

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/rcfarm/rcfarm/pkg/farm/reconcile"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// minimum lets the batches of one pass land only while they leave the minimum (P6, ADR 11). What counted when the pass read it
// counts until a drop says otherwise: the drops listed before the realities and those listed last tell how many do not any more,
// and Consul refuses each batch if there has been another one since. Batches in flight together count as landed.
type minimum struct {
	before store.Drops // of the unit, as listed before the realities
	least  int         // that must be left

	mu     sync.Mutex
	now    store.Drops
	relied []store.Reported      // copies of different pods that counted, the newest report first
	taken  map[pod.Identity]bool // of these, by batches that have landed or may
}

// newMinimum begins a pass that has listed drops and then read which copies count, one of each pod.
func newMinimum(drops store.Drops, counting []store.Reported, least int) *minimum {
	slices.SortFunc(counting, func(a, b store.Reported) int { return cmp.Compare(b.Index, a.Index) })
	return &minimum{before: drops, now: drops, least: least, relied: counting, taken: map[pod.Identity]bool{}}
}

// conditions are what must still be so when a batch lands.
type conditions struct {
	drops  store.Drops     // as listed last
	newest *store.Reported // of what is relied on; nil: nothing is
}

// admit returns the conditions of a batch that takes pods which counted, or false when the minimum might not be left. A batch that
// was admitted and did not land must be withdrawn.
func (m *minimum) admit(takes []pod.Identity) (conditions, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	dropped, known := m.now.Since(m.before)
	if left := len(m.relied) - int(dropped) - len(m.taken) - len(takes); !known || left < m.least {
		return conditions{}, false
	}
	for _, id := range takes {
		m.taken[id] = true
	}
	return conditions{drops: m.now, newest: m.newestLeft()}, true
}

// newest returns what is relied on now and was reported last, nil for nothing.
func (m *minimum) newest() *store.Reported {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.newestLeft()
}

// newestLeft is newest for who holds the mutex. Whatever else is relied on was reported earlier: a store that went back and still has
// this one has all.
func (m *minimum) newestLeft() *store.Reported {
	i := slices.IndexFunc(m.relied, func(r store.Reported) bool { return !m.taken[r.Identity] })
	if i < 0 {
		return nil
	}
	newest := m.relied[i]
	return &newest
}

// withdraw says that a batch which was admitted has not landed and never will.
func (m *minimum) withdraw(takes []pod.Identity) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, id := range takes {
		delete(m.taken, id)
	}
}

// listed takes in drops that were listed later. Batches list side by side: with drops that are not the last ones a batch is refused.
func (m *minimum) listed(drops store.Drops) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.now = drops
}

// forgo gives a copy up whose reality is not as it was read: it is relied on no more, whatever became of it. A drop of it that
// is counted, too, counts twice.
func (m *minimum) forgo(r *store.Reported) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.relied = slices.DeleteFunc(slices.Clone(m.relied), func(o store.Reported) bool { return o == *r })
}

// guardMinimum prepares what batches need that depend on the minimum. It reports whether the key of the unit's drops was missing and has been
// made: what was read before says nothing then.
func (ps *writer) guardMinimum(ctx context.Context, plan *reconcile.Plan) (made bool, err error) {
	if len(plan.Counting) == 0 {
		return false, nil
	}
	counting := make([]store.Reported, len(plan.Counting))
	for i, copied := range plan.Counting {
		at := store.At(copied)
		counting[i] = store.Reported{At: at, Index: ps.reports[at].Index}
	}
	ps.minimum = newMinimum(ps.Drops, counting, plan.Minimum)
	if ps.Drops.Index != 0 {
		return false, nil
	}
	ps.stale = true
	return true, ps.kit.writes.MakeDrops(ctx, ps.unit.id)
}

// dropTries is how often a batch is sent in a pass while pods drop.
const dropTries = 10

// errShort says that a batch was not sent because the minimum might not be left any more. What counts must be read again.
var errShort = fmt.Errorf("%w: the minimum might not be left, as pods have dropped meanwhile", store.ErrRefused)

// commitLeaving carries a batch out if that leaves the minimum.
func (ps *writer) commitLeaving(ctx context.Context, b *batch) error {
	if !b.relies {
		b.Newest = nil
		return ps.commit(ctx, b)
	}
	var err error
	for range dropTries {
		cond, ok := ps.minimum.admit(b.takes)
		if !ok {
			return cmp.Or(err, errShort)
		}
		b.Newest, b.DropsIndex = cond.newest, cond.drops.Index
		err = ps.commit(ctx, b)
		if err == nil || errors.Is(err, store.ErrUnknown) {
			return err
		}
		ps.minimum.withdraw(b.takes)
		switch {
		case errors.Is(err, store.ErrReported):
			ps.minimum.forgo(cond.newest)
		case !errors.Is(err, store.ErrDropped):
			return err
		}
		drops, listErr := ps.kit.reads.DropsOf(ctx, ps.unit.id)
		if listErr != nil {
			return errors.Join(err, listErr)
		}
		ps.minimum.listed(drops)
	}
	return err
}
