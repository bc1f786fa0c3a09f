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

// minimum lets the batches of one pass land only if enough available copies remain (P6, docs/design/minimum.md). The
// pass lists the drops, then reads which copies are available, and later lists the drops again. The difference is the
// number of copies that have dropped since. Consul refuses a batch if there was a drop after the last list. A batch
// that is on its way to Consul is taken for landed.
type minimum struct {
	before store.Drops // of the unit, as listed before the realities
	least  int         // how many available copies must remain

	mu     sync.Mutex
	now    store.Drops
	relied []store.Reported      // available copies, one of each pod, the newest report first
	taken  map[pod.Identity]bool // available pods that landed batches, or batches that may land, stop or move
}

// newMinimum needs drops that were listed before available was read. available has one copy of each pod.
func newMinimum(drops store.Drops, available []store.Reported, least int) *minimum {
	slices.SortFunc(available, func(a, b store.Reported) int { return cmp.Compare(b.Index, a.Index) })
	return &minimum{before: drops, now: drops, least: least, relied: available, taken: map[pod.Identity]bool{}}
}

type conditions struct {
	drops  store.Drops     // no drop since this list
	newest *store.Reported // this report is unchanged; nil: the batch relies on none
}

// admit returns the conditions of a batch that stops available pods, or false if too few might remain. If the batch
// does not land, the caller must withdraw it.
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

// newest returns the newest report that batches rely on; nil: there is none.
func (m *minimum) newest() *store.Reported {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.newestLeft()
}

// newestLeft is newest for a caller that holds the mutex. One report is enough: if the store went back in time and
// still has it, it has all older ones.
func (m *minimum) newestLeft() *store.Reported {
	i := slices.IndexFunc(m.relied, func(r store.Reported) bool { return !m.taken[r.Identity] })
	if i < 0 {
		return nil
	}
	newest := m.relied[i]
	return &newest
}

func (m *minimum) withdraw(takes []pod.Identity) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, id := range takes {
		delete(m.taken, id)
	}
}

// listed records a later list of the drops. Batches list at the same time; Consul refuses a batch with an older list.
func (m *minimum) listed(drops store.Drops) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.now = drops
}

// exclude removes a copy whose reality has changed since it was read. If its drop is listed too, it is subtracted
// twice, and the minimum is kept all the same.
func (m *minimum) exclude(r *store.Reported) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.relied = slices.DeleteFunc(slices.Clone(m.relied), func(o store.Reported) bool { return o == *r })
}

// guardMinimum returns the minimum for the batches that depend on it; nil: none does. made means that it has made the
// missing key of the unit's drops. Then the earlier reads prove nothing, and another pass must read again.
func (p *pass) guardMinimum(ctx context.Context, plan *reconcile.Plan) (m *minimum, made bool, err error) {
	if len(plan.Available) == 0 {
		return nil, false, nil
	}
	available := make([]store.Reported, len(plan.Available))
	for i, copied := range plan.Available {
		at := store.At(copied)
		available[i] = store.Reported{At: at, Index: p.traces.reports.copies[at].Index}
	}
	if p.Drops.Index == 0 {
		p.traces.stale = true
		return nil, true, p.kit.writes.MakeDrops(ctx, p.unit.id)
	}
	return newMinimum(p.Drops, available, plan.Minimum), false, nil
}

const dropTries = 10

// errBelowMinimum means that a batch was not sent. The next pass reads again which pods are available.
var errBelowMinimum = fmt.Errorf("%w: the minimum might not remain, because pods have dropped", store.ErrRefused)

// commitAboveMinimum writes a batch, if it keeps the minimum.
func (w *writer) commitAboveMinimum(ctx context.Context, b *batch) error {
	if !b.relies {
		b.Newest = nil
		return w.commit(ctx, b)
	}
	var err error
	for range dropTries {
		cond, ok := w.minimum.admit(b.takes)
		if !ok {
			return cmp.Or(err, errBelowMinimum)
		}
		b.Newest, b.DropsIndex = cond.newest, cond.drops.Index
		err = w.commit(ctx, b)
		if err == nil || errors.Is(err, store.ErrUnknown) {
			return err
		}
		w.minimum.withdraw(b.takes)
		switch {
		case errors.Is(err, store.ErrReported):
			w.minimum.exclude(cond.newest)
		case !errors.Is(err, store.ErrDropped):
			return err
		}
		drops, listErr := w.kit.reads.DropsOf(ctx, w.unit)
		if listErr != nil {
			return errors.Join(err, listErr)
		}
		w.minimum.listed(drops)
	}
	return err
}
