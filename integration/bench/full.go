package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/rcfarm/rcfarm/integration/simnode"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/wait"
)

const (
	besideShare   = 0.8 // of the rate without a controller that fits nowhere
	stuckRequests = 20  // per second
)

// CPU of the nodes of full, and of their large pods, in thousandths of a core. A node has no capacity for two of these.
const (
	fullCPU  = 1000
	largeCPU = 800
)

// fullBench measures how much a controller that fits nowhere slows the others down. Each run has a new such controller:
// while the farm places the other pods, it looks at all nodes for this one.
func fullBench(ctx context.Context, b *bench) error {
	var sc scope
	defer sc.close()
	nodes := simnode.Fleet{Name: "n", Size: b.fullNodes, Prepare: func(_ int, record *node.Node) {
		record.Capacity = node.Capacity{Slots: 100, CPU: fullCPU}
	}}
	dev, w, err := b.startWorld(ctx, &sc, manyClients, nodes)
	if err != nil {
		return err
	}
	noted := newCommits(b.fullNodes)
	if err := b.farmIn(ctx, &sc, w, "farm", dev.addr, noted); err != nil {
		return err
	}
	if _, err := w.createSized(ctx, "fill", 1, b.fullNodes, largeCPU, nil); err != nil {
		return err
	}
	select {
	case <-noted.reached:
	case <-ctx.Done():
		return fmt.Errorf("not all nodes were filled: %w", context.Cause(ctx))
	}
	if err := w.converged(ctx, 1); err != nil {
		return err
	}
	var without, with []float64
	for i := range b.repeat {
		took, err := b.placeSmall(ctx, dev, w, noted, fmt.Sprintf("full-alone-%d", i))
		if err != nil {
			return err
		}
		without = append(without, took.Seconds())
		if _, err := w.createSized(ctx, fmt.Sprintf("stuck-%d", i), 1, 1, largeCPU+1+int64(i), nil); err != nil {
			return err
		}
		if took, err = b.placeSmall(ctx, dev, w, noted, fmt.Sprintf("full-beside-%d", i)); err != nil {
			return err
		}
		with = append(with, took.Seconds())
	}
	b.report.add("full/alone", float64(3*b.smallRCs)/median(without), "pods/s", goal{})
	b.report.add("full/beside", float64(3*b.smallRCs)/median(with), "pods/s", goal{})
	b.report.add("full/share-of-rate-alone", median(without)/median(with), "ratio", atLeast(besideShare))
	return b.stuckAtRest(ctx, w)
}

func (b *bench) stuckAtRest(ctx context.Context, w *world) error {
	if err := wait.Pause(ctx, atRest); err != nil {
		return err
	}
	got, err := b.watchRequests(ctx, w.addr, b.idleFor)
	if err != nil {
		return err
	}
	b.report.add("full/requests", got.others, "requests/s", below(stuckRequests))
	return nil
}

// placeSmall returns the time to place small controllers. Its profiles have their name.
func (b *bench) placeSmall(ctx context.Context, a *agent, w *world, noted *commits,
	name string,
) (time.Duration, error) {
	const each = 3
	stopProfile, err := b.profile(ctx, a, name)
	if err != nil {
		return 0, err
	}
	started, target := time.Now(), noted.placed()+each*b.smallRCs
	if _, err := w.create(ctx, name, b.smallRCs, each, nil); err != nil {
		return 0, err
	}
	const pace = 5 * time.Millisecond
	err = every(ctx, pace, func() error {
		if n := noted.placed(); n < target {
			return fmt.Errorf("%d of %d pods are placed", n, target)
		}
		return nil
	})
	took := time.Since(started)
	if err := errors.Join(err, stopProfile()); err != nil {
		return 0, err
	}
	return took, wait.Pause(ctx, time.Second+startTime) // until their reports come to rest
}
