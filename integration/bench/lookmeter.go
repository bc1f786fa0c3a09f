package main

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/rcfarm/rcfarm/integration/cluster"
	"github.com/rcfarm/rcfarm/pkg/wait"
)

// passMetric has how long a farm's looks took, for all units together.
const passMetric = "rcfarm_farm_pass_duration_seconds"

// longLook is a bound of that histogram, in seconds. Looks at units of a few pods take a tenth of it.
const longLook = "0.05"

type looked struct {
	ms     []float64 // of each look at the large unit
	all    float64   // number of looks at any unit
	rss    int64     // the most memory of the farm that was seen, in bytes
	cpu    time.Duration
	lasted time.Duration
}

type lookSample struct{ count, sum, long float64 }

func sampleLooks(ctx context.Context, farm *process) (s lookSample, err error) {
	page, err := cluster.Get(ctx, "http://"+farm.debug+"/metrics")
	if err != nil {
		return s, err
	}
	var errs [3]error
	s.count, errs[0] = sumOf(page, passMetric+"_count")
	s.sum, errs[1] = sumOf(page, passMetric+"_sum")
	short, err := sumOf(page, passMetric+`_bucket{le="`+longLook+`"}`)
	s.long, errs[2] = s.count-short, err
	return s, errors.Join(errs[:]...)
}

// watchLooks times each look at the one large unit among small ones. It reads the metric more often than the farm looks
// at the large unit. If one more look took longer than longLook, the growth of the sum is the time of this look, plus a
// few milliseconds for small units. If none does, for example because the sizes are small, watchLooks measures all
// looks, and takes several looks between two readings for one.
func (b *bench) watchLooks(ctx context.Context, farm *process) (stop func() (looked, error)) {
	ctx, cancel := context.WithCancel(ctx)
	var got looked
	var failed error
	done := make(chan struct{})
	go func() {
		defer close(done)
		got, failed = followLooks(ctx, farm)
	}()
	return func() (looked, error) { cancel(); <-done; return got, failed }
}

func followLooks(ctx context.Context, farm *process) (got looked, err error) {
	const pace = 50 * time.Millisecond
	asking := context.WithoutCancel(ctx) // the last request is not cut off
	pid := farm.cmd.Process.Pid
	began := time.Now()
	cpuFrom, err := cpu(pid)
	if err != nil {
		return got, err
	}
	last, err := sampleLooks(asking, farm)
	if err != nil {
		return got, err
	}
	var long, every []float64
	for wait.Pause(ctx, pace) == nil {
		now, err := sampleLooks(asking, farm)
		if err != nil {
			return got, err
		}
		memory, err := rss(pid)
		if err != nil {
			return got, err
		}
		got.rss = max(got.rss, memory)
		if looks := now.count - last.count; looks > 0 {
			got.all += looks
			took := 1000 * (now.sum - last.sum)
			every = append(every, took)
			if n := now.long - last.long; n > 0 {
				long = append(long, slices.Repeat([]float64{took / n}, int(n))...)
			}
		}
		last = now
	}
	if got.ms = long; len(long) == 0 {
		got.ms = every
	}
	cpuTo, err := cpu(pid)
	got.cpu, got.lasted = cpuTo-cpuFrom, time.Since(began)
	if len(got.ms) == 0 {
		err = errors.Join(err, errors.New("the farm has not looked at anything"))
	}
	return got, err
}
