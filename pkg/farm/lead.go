package farm

import (
	"context"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// Duties are the writes of the leader (ADR 27), each in a transaction that bears the leader's fence: how it speaks for controllers that nobody
// owns, where it keeps what it told about records that belong to no controller, and how it mends reservations.
type Duties interface {
	ReadUnowned(ctx context.Context, rcID string) (u store.Unowned, ok bool, err error)
	ReportUnowned(ctx context.Context, u store.Unowned, st rc.Status) error
	ReadIncidents(ctx context.Context) (store.Rec[store.Incidents], error)
	WriteIncidents(ctx context.Context, rec store.Rec[store.Incidents]) error
	MendReservation(ctx context.Context, nodeName string) (mended bool, err error)
	Census
	Gatekeeper
	RepairAsker
}

// Lead does what exactly one farm does for all, until the leadership, which is ctx, ends. It begins with what the farm knows; Start must run
// beside it. It returns why ctx ended.
func (f *Farm) Lead(ctx context.Context, as Duties) error {
	if err := f.cache.waitReady(ctx); err != nil {
		return err
	}
	f.cfg.Metrics.leads.Set(1)
	defer f.cfg.Metrics.leads.Set(0)
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return f.speaker.tellUnreadable(ctx, as) })
	group.Go(func() error { return f.afterSweeps(ctx, as) })
	group.Go(func() error { return f.speaker.countFleet(ctx, as) })
	group.Go(func() error { return f.tendGate(ctx, as) })
	return group.Wait()
}

// afterSweeps does what follows from the farm's sweeps, at once from the last one.
func (f *Farm) afterSweeps(ctx context.Context, as Duties) error {
	defer f.speaker.reset()
	leaks := leaks{core: f.core, as: as}
	for {
		if swept := f.speaker.lastSweep(); swept != nil {
			f.speaker.reportUnclaimed(ctx, as, swept)
			if err := f.speaker.reportStrays(ctx, swept.ids); err != nil && ctx.Err() == nil {
				f.log.WithError(err).Warn("cannot look for placements without a controller")
			}
			if err := (mender{f.core}).mendDrained(ctx, as); err != nil && ctx.Err() == nil {
				f.log.WithError(err).Warn("cannot mend the reservation of a drained node")
			}
			if err := leaks.look(ctx, time.Now()); err != nil && ctx.Err() == nil {
				f.log.WithError(err).Warn("cannot look for shares of nodes that nobody has any more")
			}
		}
		select {
		case <-f.speaker.swept:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
