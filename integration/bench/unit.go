package main

import (
	"context"
	"fmt"
	"time"

	"github.com/rcfarm/rcfarm/integration/simnode"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/store"
	"github.com/rcfarm/rcfarm/pkg/wait"
)

// The changes have the goal slowestMS.
const (
	unitLookMS = 1000
	unitRSS    = 150
)

// unitBench measures the looks at one large service, of which a tenth crash-loops, and how much the service slows down
// changes of its farm's other units.
func unitBench(ctx context.Context, b *bench) error {
	var sc scope
	defer sc.close()
	unit := store.NewID()
	dev, w, err := b.startWorld(ctx, &sc, manyClients, simnode.Fleet{
		Name: "n", Size: b.nodes, Groups: changeGroups, StartTime: 50 * time.Millisecond,
		LoopEvery: loopEvery, CrashLooping: true,
		Loops: func(id pod.Identity) bool { return rc.UnitOf(id.RCID) == unit && id.Index%loopingShare == 0 },
	})
	if err != nil {
		return err
	}
	farm, err := b.startFarm(ctx, &sc, w, "farm", "", dev.addr)
	if err != nil {
		return err
	}
	if err := farm.events.seen(ctx, syncedLine); err != nil {
		return err
	}
	small, err := w.create(ctx, "web", b.unitRCs, 1, nil)
	if err != nil {
		return err
	}
	if err := w.converged(ctx, len(small)); err != nil {
		return err
	}
	if err := w.startLooping(ctx, unit, b.unitRevisions, b.unitPods); err != nil {
		return err
	}
	if err := wait.Pause(ctx, atRest); err != nil {
		return err
	}
	return b.lookAtUnit(ctx, w, farm, small)
}

func (b *bench) lookAtUnit(ctx context.Context, w *world, farm *process, small []rc.RC) error {
	stop := b.watchLooks(ctx, farm)
	paused := wait.Pause(ctx, b.unitFor)
	alone, err := stop()
	if err == nil {
		err = paused
	}
	if err != nil {
		return err
	}
	stop = b.watchLooks(ctx, farm)
	took, changing := b.changesOf(ctx, w, small)
	beside, err := stop()
	if changing != nil {
		err = changing
	}
	if err != nil {
		return err
	}
	b.report.add("unit/look-median", median(alone.ms), "ms", below(unitLookMS))
	b.report.add("unit/look-worst", percentile(alone.ms, 100), "ms", below(unitLookMS))
	b.report.add("unit/looks", float64(len(alone.ms))/alone.lasted.Seconds(), "1/s", goal{})
	b.report.add("unit/farm-cpu", 100*alone.cpu.Seconds()/alone.lasted.Seconds(), "% of a core", goal{})
	// Unlike the time of a look, this depends little on the machine's other work.
	b.report.add("unit/farm-cpu-per-look", 1000*alone.cpu.Seconds()/float64(len(alone.ms)), "ms", goal{})
	b.report.add("unit/look-worst-beside-changes", percentile(beside.ms, 100), "ms", goal{})
	b.report.add("unit/change-p50", median(took), "ms", goal{})
	b.report.add("unit/change-p99", percentile(took, 99), "ms", below(slowestMS))
	b.report.add("unit/rss", float64(max(alone.rss, beside.rss))/mega, "MiB", below(unitRSS))
	return nil
}

// startLooping makes a service with these pods in each revision. It returns when a share of the pods crash-loops, and
// the others are available.
func (w *world) startLooping(ctx context.Context, unit string, revisions, pods int) error {
	replicas := make([]int, revisions)
	for i := range replicas {
		replicas[i] = pods
	}
	all, err := newService(unit, "large", replicas...)
	if err != nil {
		return err
	}
	rcs, err := w.createAll(ctx, all)
	if err != nil {
		return err
	}
	healthy := pods - (pods+loopingShare-1)/loopingShare
	return every(ctx, 500*time.Millisecond, func() error {
		for _, r := range rcs {
			st, err := w.store.Statuses.Get(ctx, store.Default, r.ID)
			if err != nil {
				return err
			}
			if st.Value.Placed != pods || st.Value.Available != healthy || !st.Value.Is(rc.CrashLooping) {
				placed, available := st.Value.Placed, st.Value.Available
				return fmt.Errorf("%s: %d pods placed, %d available, not %d", r.Name, placed, available, healthy)
			}
		}
		return nil
	})
}
