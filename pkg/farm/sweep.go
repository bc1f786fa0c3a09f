package farm

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"
)

// sweepLoop sweeps at the start, whenever something vanished that should be there, and every now and then (R4).
func (f *Farm) sweepLoop(ctx context.Context) error {
	for {
		if err := f.sweep(ctx); err != nil && ctx.Err() == nil {
			f.log.WithError(err).Warn("sweep failed")
		}
		timer := time.NewTimer(f.cfg.SweepEvery + rand.N(f.cfg.SweepEvery/4+1))
		select {
		case <-ctx.Done():
			timer.Stop()
			return context.Cause(ctx)
		case <-timer.C:
		case <-f.sweepNow:
			timer.Stop()
		}
	}
}

// sweep makes missing bells, removes stray ones, reports placements without a controller, mends reservations, and looks at
// every controller that is not known to be in good hands.
func (f *Farm) sweep(ctx context.Context) error {
	ids, err := f.cfg.Store.SweepBells(ctx)
	if err != nil {
		return err
	}
	locks, err := f.cfg.Store.Locks(ctx)
	if err != nil {
		return err
	}
	f.reportUnclaimed(ctx, ids, locks)
	if err := f.reportStrays(ctx, ids); err != nil && ctx.Err() == nil {
		f.log.WithError(err).Warn("cannot look for placements without a controller")
	}
	if err := errors.Join(f.mendFresh(ctx), f.mendShares(ctx)); err != nil && ctx.Err() == nil {
		f.log.WithError(err).Warn("cannot look for shares of nodes that are not reserved")
	}
	if err := f.mendClosed(ctx); err != nil && ctx.Err() == nil {
		f.log.WithError(err).Warn("cannot mend the reservation of a node")
	}
	deepBefore := time.Now().Add(-f.cfg.DeepEvery)
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, id := range ids {
		c := f.owned[id]
		switch {
		case c == nil:
			// A lock of our own session that nobody works under is claimed again (R4). What others hold was found out
			// when the bell was seen; the locks as listed may be older than a change of the members.
			if !locks[id] {
				delete(f.foreign, id)
				f.queue.Add(id)
			}
		case locks[id]:
			f.queue.Add(id) // another's: its next write finds out
		case c.deepDue(deepBefore):
			f.queue.Add(id)
		}
	}
	return nil
}
