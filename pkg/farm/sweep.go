package farm

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/wait"
)

// sweepLoop sweeps at the start, whenever a record is missing that should be there, and every SweepEvery (R4).
func (f *Farm) sweepLoop(ctx context.Context) error {
	for {
		if err := f.sweep(ctx); err != nil && ctx.Err() == nil {
			f.log.WithError(err).Warn("sweep failed")
		}
		if _, err := wait.PauseUnless(ctx, f.sweepNow, f.cfg.SweepEvery+rand.N(f.cfg.SweepEvery/4+1)); err != nil {
			return err
		}
	}
}

// sweep makes missing bells, removes stray ones, mends reservations, and asks for a look at each controller that may
// have no owner.
func (f *Farm) sweep(ctx context.Context) error {
	mend := mender{f.core}
	ids, asked, err := f.cfg.Store.SweepBells(ctx)
	if err != nil {
		return err
	}
	locks, err := f.cfg.Store.Locks(ctx)
	if err != nil {
		return err
	}
	f.leaderReporter.sweptAll(ids, locks)
	if err := errors.Join(mend.mendFresh(ctx), mend.mendClaims(ctx)); err != nil && ctx.Err() == nil {
		f.log.WithError(err).Warn("cannot look for shares of nodes that are not reserved")
	}
	if err := mend.mendMismatched(ctx); err != nil && ctx.Err() == nil {
		f.log.WithError(err).Warn("cannot mend the reservation of a node")
	}
	f.resyncSome(time.Now())
	// A request rings a bell, but a sweep may have removed the bell of a controller without a record.
	for _, id := range rc.UnitsOf(slices.Concat(ids, asked)) {
		u, _ := f.roster.get(id)
		switch {
		case u == nil:
			// If this farm's session holds a lock without a unit in the roster, the farm claims the unit again (R4).
			// The farm learns of the locks of other farms when a bell rings, because this list may be older than a
			// change of the members.
			if !locks[id] {
				f.roster.markFree(id)
				f.queue.Add(id)
			}
		case locks[id]:
			u.looks.Ask()
			f.queue.Add(id) // another farm has the lock: the next write will fail
		}
	}
	return nil
}

// resyncsAtOnce is how many of the controllers that are claimed between two sweeps are resynced in their first pass,
// and the least number of due resyncs that a sweep asks for.
const resyncsAtOnce = 64

// resyncClaimed decides whether a claimed controller is resynced in its first pass. If the farm takes over many, most
// resyncs come later, because they would delay urgent work. A controller without pods needs none, unless an outside
// scheduler may still have allocations for it.
func (k *kit) resyncClaimed(c *controller, placements int) {
	switch {
	case placements == 0 && !k.places.KeepsBooks() && !c.memory.recordless:
		c.shared.resynced()
	case k.resyncsLeft.Add(-1) >= 0 || c.memory.recordless:
		c.shared.wantResync()
	}
}

// resyncSome asks for the resyncs that are due, spread over the time until the next sweep, the oldest first. Each
// controller has had one after half of ResyncEvery.
func (f *Farm) resyncSome(now time.Time) {
	f.kit.resyncsLeft.Store(resyncsAtOnce)
	var due []*controller
	last := map[*controller]time.Time{}
	owned := f.roster.all()
	for _, c := range owned {
		if at := c.shared.now().lastResync; now.Sub(at) >= f.cfg.ResyncEvery {
			due, last[c] = append(due, c), at
		}
	}
	slices.SortFunc(due, func(a, b *controller) int {
		return cmp.Or(last[a].Compare(last[b]), cmp.Compare(a.ID, b.ID))
	})
	due = due[:min(len(due), resyncQuota(len(owned), f.cfg.SweepEvery, f.cfg.ResyncEvery))]
	for i, c := range due {
		c.shared.askResync()
		f.queue.AddAfter(c.unit.id, f.cfg.SweepEvery*time.Duration(i)/time.Duration(len(due)))
	}
}

func resyncQuota(owned int, sweepEvery, resyncEvery time.Duration) int {
	return max(resyncsAtOnce, int(2*float64(owned)*float64(sweepEvery)/float64(resyncEvery)))
}
