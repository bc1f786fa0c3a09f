package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/rcfarm/rcfarm/integration/simnode"
	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/store"
	"github.com/rcfarm/rcfarm/pkg/wait"
)

const (
	manyOverFew = 2  // times the median
	slowestMS   = 30 // milliseconds, 99th percentile
)

func changeBench(ctx context.Context, b *bench) error {
	var medians []float64
	for _, n := range []int{10, 1000, 10000} {
		part := fmt.Sprintf("among-%d", n)
		if !b.wants(part) {
			continue
		}
		took, err := b.changesAmong(ctx, n)
		if err != nil {
			return fmt.Errorf("%s: %w", part, err)
		}
		worst := goal{}
		if n == 10000 {
			worst = atMost(slowestMS)
		}
		medians = append(medians, median(took))
		b.report.add("change/"+part+"/p50", median(took), "ms", goal{})
		b.report.add("change/"+part+"/p99", percentile(took, 99), "ms", worst)
		if len(medians) == 3 {
			b.report.add("change/"+part+"/p50-times-among-10", medians[2]/medians[0], "ratio", atMost(manyOverFew))
		}
	}
	return nil
}

// changeGroups is large, so that a simulated node lists few intents for one change. A client has 60 connections.
const changeGroups = 48

func (b *bench) changesAmong(ctx context.Context, n int) (ms []float64, err error) {
	var sc scope
	defer sc.close()
	dev, w, err := b.startWorld(ctx, &sc, manyClients,
		simnode.Fleet{Name: "n", Size: b.nodes, Groups: changeGroups, StartTime: 50 * time.Millisecond})
	if err != nil {
		return nil, err
	}
	farm, err := b.startFarm(ctx, &sc, w, "farm", "", dev.addr)
	if err != nil {
		return nil, err
	}
	if err := farm.events.seen(ctx, syncedLine); err != nil {
		return nil, err
	}
	rcs, err := w.create(ctx, "web", n, 1, nil)
	if err != nil {
		return nil, err
	}
	if err := w.converged(ctx, n); err != nil {
		return nil, err
	}
	return b.changesOf(ctx, w, rcs)
}

func (b *bench) changesOf(ctx context.Context, w *world, rcs []rc.RC) (ms []float64, err error) {
	// The first changes only warm up caches and connections.
	const warm = 5
	step := max(1, len(rcs)/(b.changes+warm))
	for i := range b.changes + warm {
		took, err := w.change(ctx, &rcs[i*step%len(rcs)])
		if err != nil {
			return nil, err
		}
		if i >= warm {
			ms = append(ms, 1000*took.Seconds())
		}
	}
	return ms, nil
}

// betweenChanges is the pause in which the effects of a change end: reports, statuses, and the pauses of the watches.
const betweenChanges = 150 * time.Millisecond

// change adds a replica to a controller, and takes it away again. It returns the time from the operator's write until
// the intent can be read. One transaction writes placement and intent, so change waits for the placement.
func (w *world) change(ctx context.Context, r *rc.RC) (time.Duration, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, 30*time.Second, errors.New("the change had no effect"))
	defer cancel()
	id, n := r.ID, r.Desired()
	counts := make(chan int, 1000) // of placements, as they change
	watching, stop := context.WithCancel(ctx)
	stopped := make(chan struct{})
	defer func() { stop(); <-stopped }()
	go func() {
		defer close(stopped)
		_ = w.client.WatchPrefix(watching, w.keys.Pods.Below(id), consul.WatchOptions{}, func(s consul.Snapshot) error {
			counts <- len(s.Pairs)
			return nil
		})
	}()
	until := func(n int) error {
		for {
			select {
			case got := <-counts:
				if got == n {
					return nil
				}
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
	}
	if err := until(n); err != nil {
		return 0, err
	}
	if err := wait.Pause(ctx, betweenChanges); err != nil { // the watch waits on Consul after this
		return 0, err
	}
	sent := time.Now()
	if err := w.scale(ctx, id, n+1); err != nil {
		return 0, err
	}
	if err := until(n + 1); err != nil {
		return 0, err
	}
	took := time.Since(sent)
	if err := w.scale(ctx, id, n); err != nil {
		return 0, err
	}
	return took, until(n)
}

func (w *world) scale(ctx context.Context, id string, n int) error {
	rec, err := w.store.RCs.Get(ctx, store.Consistent, id)
	if err != nil {
		return err
	}
	rec.Value.ReplicaGroups = []rc.ReplicaGroup{{Role: rc.DefaultRole, Count: &n}}
	rec.Value.Generation++
	rec.Value.AllowMassStop = rec.Value.Generation // otherwise these stops would trip the breaker
	data, err := json.Marshal(rec.Value)
	if err == nil {
		_, err = w.client.Commit(ctx, []consul.Op{
			consul.CAS(w.keys.RCs.Key(id), data, rec.Index), consul.Set(w.keys.Bells.Key(id), []byte(store.NewID())),
		})
	}
	return err
}
