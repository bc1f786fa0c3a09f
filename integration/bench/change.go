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
)

// Goals of change.
const (
	manyOverFew = 2  // times the median
	slowestMS   = 30 // milliseconds, 99th percentile
)

// changeBench measures how long one controller's change takes to become an intent, among few and among many controllers.
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

func (b *bench) changesAmong(ctx context.Context, n int) (ms []float64, err error) {
	var sc scope
	defer sc.close()
	dev, err := b.startDev(ctx, &sc, manyClients)
	if err != nil {
		return nil, err
	}
	w, err := newWorld(ctx, &sc, dev.addr)
	if err != nil {
		return nil, err
	}
	if _, err := w.fleet(ctx, &sc, simnode.Fleet{Name: "n", Size: b.nodes, StartTime: 50 * time.Millisecond}); err != nil {
		return nil, err
	}
	farm, err := b.startFarm(ctx, &sc, w, "farm", "", dev.addr)
	if err != nil {
		return nil, err
	}
	if err := farm.events.seen(ctx, settledLine); err != nil {
		return nil, err
	}
	rcs, err := w.create(ctx, "web", n, 1, nil)
	if err != nil {
		return nil, err
	}
	if err := w.converged(ctx, n); err != nil {
		return nil, err
	}
	// The first changes only warm up caches and connections.
	const warm = 5
	for i := range b.changes + warm {
		took, err := w.toggle(ctx, rcs[i*len(rcs)/(b.changes+warm)].ID)
		if err != nil {
			return nil, err
		}
		if i >= warm {
			ms = append(ms, 1000*took.Seconds())
		}
	}
	return ms, nil
}

// betweenChanges lets what a change entails come to rest: its report, status, and the pauses of the watches.
const betweenChanges = 150 * time.Millisecond

// toggle adds a replica to a controller and returns how long it takes from the operator's write being sent until its intent
// can be read. The placement that this waits for is written in the same transaction.
func (w *world) toggle(ctx context.Context, id string) (time.Duration, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, 30*time.Second, errors.New("the change had no effect"))
	defer cancel()
	rec, err := w.store.RC(ctx, id, true)
	if err != nil {
		return 0, err
	}
	want := rec.Value.Desired() + 1
	rec.Value.ReplicaGroups = []rc.ReplicaGroup{{Role: rc.DefaultRole, Count: &want}}
	rec.Value.Generation++
	data, err := json.Marshal(rec.Value)
	if err != nil {
		return 0, err
	}
	armed, done := make(chan struct{}), make(chan time.Time, 1)
	errSeen := errors.New("seen")
	go func() {
		first := true
		_ = w.client.WatchPrefix(ctx, w.keys.Pods(id), consul.WatchOptions{}, func(s consul.Snapshot) error {
			if first {
				first = false
				close(armed)
			}
			if len(s.Pairs) < want {
				return nil
			}
			done <- time.Now()
			return errSeen
		})
	}()
	select {
	case <-armed:
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	}
	if err := pause(ctx, betweenChanges); err != nil { // the watch waits on Consul after this
		return 0, err
	}
	sent := time.Now()
	_, err = w.client.Commit(ctx, []consul.Op{
		consul.CAS(w.keys.RC(id), data, rec.Index), consul.Set(w.keys.Bell(id), []byte(store.NewID())),
	})
	if err != nil {
		return 0, err
	}
	select {
	case at := <-done:
		return at.Sub(sent), nil
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	}
}

func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
