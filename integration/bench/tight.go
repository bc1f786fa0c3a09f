package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/rcfarm/rcfarm/integration/simnode"
	"github.com/rcfarm/rcfarm/pkg/node"
)

const tightShare = 0.5

// CPU of the nodes of tight, in thousandths of a core. First, a pod on each node fills four of five nodes, and part of
// every fifth: 95 % of the CPU are taken.
const (
	tightFill  = 9000
	tightLarge = 11_500 // CPU of each fifth node
	tightEach  = 4      // replicas of a controller
)

// Together the pods take three quarters of what is left.
var tightSizes = []int64{50, 100, 150, 200, 400}

type tightRun struct {
	took, cpu time.Duration
	refused   int
}

// tightBench compares the time to find the little capacity that is left with the time for the same pods on empty nodes.
func tightBench(ctx context.Context, b *bench) error {
	var sc scope
	defer sc.close()
	dev, err := b.startDev(ctx, &sc, manyClients)
	if err != nil {
		return err
	}
	var empty, tight, cpuEmpty, cpuTight []float64
	pods := float64(len(tightSizes) * b.tightRCs * tightEach)
	for i := range b.repeat {
		alone, err := b.placeTight(ctx, dev, fmt.Sprintf("tight-empty-%d", i), false)
		if err != nil {
			return err
		}
		full, err := b.placeTight(ctx, dev, fmt.Sprintf("tight-full-%d", i), true)
		if err != nil {
			return err
		}
		empty, tight = append(empty, alone.took.Seconds()), append(tight, full.took.Seconds())
		cpuEmpty, cpuTight = append(cpuEmpty, alone.cpu.Seconds()), append(cpuTight, full.cpu.Seconds())
		b.report.add(fmt.Sprintf("tight/refused-%d", i), float64(full.refused), "batches", goal{})
	}
	b.report.add("tight/empty", pods/median(empty), "pods/s", goal{})
	b.report.add("tight/full", pods/median(tight), "pods/s", goal{})
	b.report.add("tight/share-of-empty", median(empty)/median(tight), "ratio", atLeast(tightShare))
	b.report.add("tight/cpu-times-empty", median(cpuTight)/median(cpuEmpty), "ratio", goal{})
	return nil
}

func (b *bench) placeTight(ctx context.Context, dev *agent, name string, full bool) (run tightRun, err error) {
	var sc scope
	defer sc.close()
	w, err := newWorld(ctx, &sc, dev.addr)
	if err != nil {
		return run, err
	}
	if _, err := w.fleet(ctx, &sc, simnode.Fleet{Name: "n", Size: b.nodes, Prepare: func(i int, record *node.Node) {
		record.Capacity = node.Capacity{Slots: 100, CPU: tightFill}
		if i%5 == 0 {
			record.Capacity.CPU = tightLarge
		}
	}}); err != nil {
		return run, err
	}
	noted := newCommits(b.nodes)
	if err := b.farmIn(ctx, &sc, w, "farm", dev.addr, noted); err != nil {
		return run, err
	}
	if full {
		if _, err := w.createSized(ctx, "fill", 1, b.nodes, tightFill, nil); err != nil {
			return run, err
		}
		if err := w.converged(ctx, 1); err != nil {
			return run, fmt.Errorf("not all nodes were filled: %w", err)
		}
	}
	stopProfile, err := b.profile(ctx, dev, name)
	if err != nil {
		return run, err
	}
	target := noted.placed() + len(tightSizes)*b.tightRCs*tightEach
	started, before := time.Now(), spent(dev)
	for i, size := range tightSizes {
		if _, err := w.createSized(ctx, fmt.Sprint("size-", i), b.tightRCs, tightEach, size, nil); err != nil {
			return run, err
		}
	}
	const pace = 5 * time.Millisecond
	err = every(ctx, pace, func() error {
		if n := noted.placed(); n < target {
			return fmt.Errorf("%d of %d pods are placed", n, target)
		}
		return nil
	})
	run = tightRun{took: time.Since(started), cpu: spent(dev) - before, refused: noted.refusals()}
	return run, errors.Join(err, stopProfile())
}
