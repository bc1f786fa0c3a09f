package farm

import (
	"context"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/rcfarm/rcfarm/pkg/farm/janitor"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// LeaderStore has the reads and writes of the leader (ADR 27). Each write is a transaction under the leader's fence.
type LeaderStore interface {
	ReadUnowned(ctx context.Context, rcID string) (u store.Unowned, ok bool, err error)
	ReportUnowned(ctx context.Context, u store.Unowned, st rc.Status) error
	ReadIncidents(ctx context.Context) (store.Rec[store.Incidents], error)
	WriteIncidents(ctx context.Context, rec store.Rec[store.Incidents]) error
	MendReservation(ctx context.Context, nodeName string) (mended bool, err error)
	Census
	Gatekeeper
	janitor.RepairAsker
}

// Lead does the work that exactly one farm does for all farms. ctx must end with the leadership; Lead returns the
// cause. Start must run at the same time, because Lead begins with what the farm has read.
func (f *Farm) Lead(ctx context.Context, as LeaderStore) error {
	if err := f.cache.waitReady(ctx); err != nil {
		return err
	}
	f.cfg.Metrics.leads.Set(1)
	defer f.cfg.Metrics.leads.Set(0)
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return f.leaderReporter.alertUnreadable(ctx, as) })
	group.Go(func() error { return f.afterSweeps(ctx, as) })
	group.Go(func() error { return f.leaderReporter.countCluster(ctx, as) })
	group.Go(func() error { return f.tendGate(ctx, as) })
	return group.Wait()
}

// afterSweeps does the leader's work after each sweep, beginning with the last one.
func (f *Farm) afterSweeps(ctx context.Context, as LeaderStore) error {
	defer f.leaderReporter.reset()
	leaks := janitor.NewLeaks(janitor.LeakConfig{
		Farm: f.cfg.ID, Reads: f.cfg.Store, Asker: as, Nodes: f.Nodes,
		Every: f.cfg.SweepEvery, Round: f.cfg.ResyncEvery, Log: f.log,
	})
	for {
		if swept := f.leaderReporter.lastSweep(); swept != nil {
			f.leaderReporter.reportUnclaimed(ctx, as, swept)
			if err := f.leaderReporter.reportStrays(ctx, swept.ids); err != nil && ctx.Err() == nil {
				f.log.WithError(err).Warn("cannot look for placements without a controller")
			}
			if err := (mender{f.core}).mendDrained(ctx, as); err != nil && ctx.Err() == nil {
				f.log.WithError(err).Warn("cannot mend the reservation of a drained node")
			}
			if err := leaks.Look(ctx, time.Now()); err != nil && ctx.Err() == nil {
				f.log.WithError(err).Warn("cannot look for shares of nodes that no pod uses any more")
			}
		}
		select {
		case <-f.leaderReporter.swept:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
