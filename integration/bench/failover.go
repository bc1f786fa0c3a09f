package main

import (
	"context"
	"fmt"
	"slices"
	"syscall"
	"time"

	"github.com/rcfarm/rcfarm/integration/simnode"
	"github.com/rcfarm/rcfarm/pkg/consul"
)

const (
	killedLimit     = 3
	terminatedLimit = 0.2
	restartedLimit  = 3
)

const ownedRCs = 100

// failoverBench measures how long controllers lack a working owner while nothing else changes.
func failoverBench(ctx context.Context, b *bench) error {
	var sc scope
	defer sc.close()
	// Consul keeps a killed client's connections until its standing queries end, so a few kills reach the default
	// limit.
	_, w, err := b.startWorld(ctx, &sc, manyClients,
		simnode.Fleet{Name: "n", Size: 20, StartTime: 10 * time.Millisecond})
	if err != nil {
		return err
	}
	f := &failover{bench: b, world: w, sc: &sc}
	if f.owner, err = f.start(ctx, ""); err != nil {
		return err
	}
	if _, err := w.create(ctx, "web", ownedRCs, 1, nil); err != nil {
		return err
	}
	if err := w.converged(ctx, ownedRCs); err != nil {
		return err
	}
	for _, kind := range []struct {
		name  string
		limit float64
		end   func(ctx context.Context) (handed, error)
	}{
		{"killed", killedLimit, func(ctx context.Context) (handed, error) { return f.replaced(ctx, syscall.SIGKILL) }},
		{"terminated", terminatedLimit, func(ctx context.Context) (handed, error) {
			return f.replaced(ctx, syscall.SIGTERM)
		}},
		{"restarted", restartedLimit, f.restarted},
	} {
		if !b.wants(kind.name) {
			continue
		}
		if err := b.failoversOf(ctx, "failover/"+kind.name+"/", kind.limit, kind.end); err != nil {
			return fmt.Errorf("%s: %w", kind.name, err)
		}
	}
	return nil
}

func (b *bench) failoversOf(ctx context.Context, prefix string, limit float64,
	end func(ctx context.Context) (handed, error),
) error {
	var first, all []float64
	for range b.failovers {
		h, err := end(ctx)
		if err != nil {
			return err
		}
		first, all = append(first, h.first.Seconds()), append(all, h.all.Seconds())
	}
	b.report.add(prefix+"first-write-median", median(first), "s", goal{})
	b.report.add(prefix+"first-write-worst", slices.Max(first), "s", atMost(limit))
	b.report.add(prefix+"all-owned-median", median(all), "s", goal{})
	b.report.add(prefix+"all-owned-worst", slices.Max(all), "s", atMost(limit))
	return nil
}

type failover struct {
	*bench
	*world
	sc    *scope
	owner *process
	made  int
}

// handed has the times from the owner's end until the successor's first write, and until it owned everything.
type handed struct{ first, all time.Duration }

func (f *failover) start(ctx context.Context, dir string) (*process, error) {
	id := fmt.Sprintf("farm-%d", f.made)
	if dir != "" {
		id = f.owner.id
	} else {
		f.made++
	}
	return f.startFarm(ctx, f.sc, f.world, id, dir, f.addr)
}

func (f *failover) replaced(ctx context.Context, sig syscall.Signal) (handed, error) {
	next, err := f.start(ctx, "")
	if err != nil {
		return handed{}, err
	}
	if err := f.quiet(ctx); err != nil {
		return handed{}, err
	}
	locks, err := f.locks(ctx)
	if err != nil {
		return handed{}, err
	}
	started := time.Now()
	if err := f.owner.cmd.Process.Signal(sig); err != nil {
		return handed{}, err
	}
	h, err := f.follow(ctx, started, locks)
	<-f.owner.ended
	f.owner = next
	return h, err
}

func (f *failover) restarted(ctx context.Context) (handed, error) {
	if err := f.quiet(ctx); err != nil {
		return handed{}, err
	}
	locks, err := f.locks(ctx)
	if err != nil {
		return handed{}, err
	}
	started := time.Now()
	if err := f.owner.cmd.Process.Kill(); err != nil {
		return handed{}, err
	}
	<-f.owner.ended
	failed := make(chan error, 1)
	old := f.owner
	go func() {
		p, err := f.start(ctx, old.dir)
		f.owner = p
		failed <- err
	}()
	h, err := f.follow(ctx, started, locks)
	if startErr := <-failed; startErr != nil {
		return handed{}, startErr
	}
	return h, err
}

// quiet waits until the index of the records has not moved for half a second. A longer wait would let the owner hand
// controllers over, because the members were stable for a while.
func (f *failover) quiet(ctx context.Context) error {
	const pace, rest = 20 * time.Millisecond, 500 * time.Millisecond
	var last uint64
	since := time.Now()
	return every(ctx, pace, func() error {
		pairs, err := f.client.List(ctx, f.keys.Prefix(), consul.Default)
		if err != nil {
			return err
		}
		var newest uint64
		for _, p := range pairs {
			newest = max(newest, p.ModifyIndex)
		}
		if newest != last {
			last, since = newest, time.Now()
		}
		if time.Since(since) < rest {
			return fmt.Errorf("the records still change")
		}
		return nil
	})
}

func (f *failover) locks(ctx context.Context) (map[string]string, error) {
	pairs, err := f.client.List(ctx, f.keys.Locks.Key(), consul.Default)
	locked := map[string]string{}
	for _, p := range pairs {
		if p.Session != "" {
			locked[p.Key] = p.Session
		}
	}
	if err == nil && len(locked) != ownedRCs {
		err = fmt.Errorf("%d of %d controllers are owned before the run", len(locked), ownedRCs)
	}
	return locked, err
}

// follow reads the locks until each is held by another session than before. The successor's first write takes the first
// lock.
func (f *failover) follow(ctx context.Context, started time.Time, before map[string]string) (handed, error) {
	var h handed
	const pace = 2 * time.Millisecond
	err := every(ctx, pace, func() error {
		pairs, err := f.client.List(ctx, f.keys.Locks.Key(), consul.Default)
		if err != nil {
			return err
		}
		taken := 0
		for _, p := range pairs {
			if p.Session != "" && p.Session != before[p.Key] {
				taken++
			}
		}
		now := time.Since(started)
		if taken > 0 && h.first == 0 {
			h.first = now
		}
		if taken < len(before) {
			return fmt.Errorf("%d of %d controllers have a new owner", taken, len(before))
		}
		h.all = now
		return nil
	})
	return h, err
}

func median(values []float64) float64 { return percentile(values, 50) }

func percentile(values []float64, p int) float64 {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[max(0, (len(sorted)*p+99)/100-1)]
}
