package farm

import (
	"context"
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

// sweep makes missing bells, removes stray ones, and looks at every controller that is not known to be in good hands.
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
	deepBefore := time.Now().Add(-f.cfg.DeepEvery)
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, id := range ids {
		c := f.owned[id]
		switch {
		case c == nil:
			f.foreign[id] = locks[id]
			if !locks[id] {
				f.queue.Add(id)
			}
		case !locks[id]:
			f.queue.Add(id) // its next pass finds out
		case c.deepDue(deepBefore):
			f.queue.Add(id)
		}
	}
	return nil
}
