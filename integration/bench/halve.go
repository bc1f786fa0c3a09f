package main

import (
	"context"
	"fmt"
	"time"

	"github.com/rcfarm/rcfarm/integration/simnode"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/store"
)

const (
	largeSeconds = 5
	loopingMost  = 3 // times the controller whose pods do not crash
)

const (
	loopingShare = 10
	loopEvery    = 2 * time.Second
)

// largeBench halves a controller of thousands of replicas, in one part while a tenth of them crash again and again. The
// minimum is one less than the desired number.
func largeBench(ctx context.Context, b *bench) error {
	var plain time.Duration
	for _, part := range []string{"plain", "looping"} {
		if !b.wants(part) {
			continue
		}
		took, err := b.halve(ctx, part == "looping")
		if err != nil {
			return fmt.Errorf("%s: %w", part, err)
		}
		if part == "plain" {
			plain = took
			b.report.add("large/plain/halved", took.Seconds(), "s", atMost(largeSeconds))
			continue
		}
		b.report.add("large/looping/halved", took.Seconds(), "s", goal{})
		if plain > 0 {
			b.report.add("large/looping/times-plain", took.Seconds()/plain.Seconds(), "ratio", atMost(loopingMost))
		}
	}
	return nil
}

func (b *bench) halve(ctx context.Context, looping bool) (time.Duration, error) {
	var sc scope
	defer sc.close()
	fleet := simnode.Fleet{Name: "n", Size: b.nodes, StartTime: 50 * time.Millisecond, LoopEvery: loopEvery}
	healthy := b.onePods
	if looping {
		fleet.Loops = func(id pod.Identity) bool { return id.Index%loopingShare == 0 }
		healthy -= b.onePods / loopingShare
	}
	dev, w, err := b.startWorld(ctx, &sc, manyClients, fleet)
	if err != nil {
		return 0, err
	}
	farm, err := b.startFarm(ctx, &sc, w, "farm", "", dev.addr)
	if err != nil {
		return 0, err
	}
	if err := farm.events.seen(ctx, syncedLine); err != nil {
		return 0, err
	}
	rcs, err := w.create(ctx, "web", 1, b.onePods, func(r *rc.RC) { r.MaxPerNode = 10 })
	if err != nil {
		return 0, err
	}
	id := rcs[0].ID
	err = every(ctx, 500*time.Millisecond, func() error {
		st, err := w.store.Statuses.Get(ctx, store.Default, id)
		if err == nil && (st.Value.Placed < b.onePods || st.Value.Available < healthy) {
			err = fmt.Errorf("%d placed, %d available", st.Value.Placed, st.Value.Available)
		}
		return err
	})
	if err != nil {
		return 0, err
	}
	began := time.Now()
	if err := w.scaleTo(ctx, id, b.onePods/2); err != nil {
		return 0, err
	}
	err = sparingly(ctx, began, func() error {
		pods, err := w.client.Keys(ctx, w.keys.Pods.Below(id))
		if err == nil && len(pods) != b.onePods/2 {
			err = fmt.Errorf("%d placements", len(pods))
		}
		return err
	})
	return time.Since(began), err
}

// scaleTo scales a controller, and allows many stops.
func (w *world) scaleTo(ctx context.Context, id string, replicas int) error {
	rec, err := w.store.RCs.Get(ctx, store.Consistent, id)
	if err != nil {
		return err
	}
	r := rec.Value
	r.Generation++
	r.ReplicaGroups = []rc.ReplicaGroup{{Role: rc.DefaultRole, Count: &replicas}}
	r.AllowMassStop = r.Generation
	return w.store.Operator.ChangeRC(ctx,
		store.RCChange{RC: r, Index: rec.Index, Audit: store.NewAudit("bench", "scale", id, nil)})
}
