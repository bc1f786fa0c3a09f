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

// sweepLoop sweeps at the start, whenever something vanished that should be there, and every now and then (R4).
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

// sweep makes missing bells, removes stray ones, mends reservations, and looks at every controller that is not known to be in good hands.
// What it finds is the leader's to act on, too.
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
	f.speaker.sweptAll(ids, locks)
	if err := errors.Join(mend.mendFresh(ctx), mend.mendClaims(ctx)); err != nil && ctx.Err() == nil {
		f.log.WithError(err).Warn("cannot look for shares of nodes that are not reserved")
	}
	if err := mend.mendMet(ctx); err != nil && ctx.Err() == nil {
		f.log.WithError(err).Warn("cannot mend the reservation of a node")
	}
	f.resyncSome(time.Now())
	for _, id := range rc.UnitsOf(slices.Concat(ids, asked)) { // whoever asks rings, but a sweep may have taken the bell of what has no record
		u, _ := f.roster.get(id)
		switch {
		case u == nil:
			// A lock of our own session that nobody works under is claimed again (R4). What others hold was found out
			// when the bell was seen; the locks as listed may be older than a change of the members.
			if !locks[id] {
				f.roster.listed(id, false)
				f.queue.Add(id)
			}
		case locks[id]:
			u.looks.Ask()
			f.queue.Add(id) // another's: its next write finds out
		}
	}
	return nil
}

// resyncsAtOnce is how many of the controllers that a farm claims between two sweeps it resyncs at once, and the least that a sweep
// asks for.
const resyncsAtOnce = 64

// resyncClaimed says when a controller that was claimed is resynced first: at once, unless a farm takes over many, which would
// keep all of them from what has to be done. What has no pods needs none, unless there are books that may show some.
func (k *kit) resyncClaimed(c *controller, placements int) {
	switch {
	case placements == 0 && k.books == nil && !c.memory.recordless:
		c.shared.is.lastResync = time.Now()
	case k.resyncsLeft.Add(-1) >= 0 || c.memory.recordless:
		c.shared.is.resync = true
	}
}

// resyncSome asks for the resyncs that are due, spread over the time until the next sweep: those first that have waited longest, and
// so many that all of the farm's controllers would have their turn in half of the time that one may go without.
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

// resyncQuota returns how many of some controllers a sweep resyncs.
func resyncQuota(owned int, sweepEvery, resyncEvery time.Duration) int {
	return max(resyncsAtOnce, int(2*float64(owned)*float64(sweepEvery)/float64(resyncEvery)))
}
