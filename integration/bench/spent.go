package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/rcfarm/rcfarm/integration/cluster"
)

// spenders are the programs whose processor time is counted besides this one's.
type spenders struct {
	consul *agent
	farm   *process
}

// spending is what they have used so far.
type spending struct {
	farm, consul, nodes time.Duration
	requests            float64            // that Consul has answered, those for liveness left out
	did                 map[string]float64 // by the farm, by what; see deeds
}

// deeds are what a farm counts of its work, by what a report calls it: unlike times they do not depend on what else the machine does.
var deeds = map[string]string{
	"passes":  "rcfarm_farm_passes_total",   // looks at controllers
	"batches": "rcfarm_farm_batches_total",  // their write transactions
	"steps":   "rcfarm_rollout_steps_total", // those of rollouts
}

// didSoFar reads the farm's own metrics.
func didSoFar(ctx context.Context, farm *process) (map[string]float64, error) {
	page, err := cluster.Get(ctx, "http://"+farm.debug+"/metrics")
	if err != nil {
		return nil, err
	}
	did := map[string]float64{}
	for what, metric := range deeds {
		if did[what], err = sumOf(page, metric); err != nil {
			return nil, err
		}
	}
	return did, nil
}

// sumOf adds up a metric of a page for Prometheus, whatever its labels, if it has any.
func sumOf(page, metric string) (sum float64, err error) {
	for line := range strings.Lines(page) {
		rest, ok := strings.CutPrefix(strings.TrimSpace(line), metric)
		if !ok || !strings.HasPrefix(rest, "{") && !strings.HasPrefix(rest, " ") {
			continue
		}
		value := rest[strings.LastIndexByte(rest, ' ')+1:]
		n, err := strconv.ParseFloat(value, 64)
		if err != nil {
			return 0, fmt.Errorf("metric %s: %w", metric, err)
		}
		sum += n
	}
	return sum, nil
}

func (s spenders) now(ctx context.Context) (now spending, err error) {
	answered, err := requestsOf(ctx, s.consul.addr)
	now.requests = answered.others
	var unread error
	now.did, unread = didSoFar(ctx, s.farm)
	err = errors.Join(err, unread)
	for pid, to := range map[int]*time.Duration{s.farm.cmd.Process.Pid: &now.farm, s.consul.proc.Pid: &now.consul, os.Getpid(): &now.nodes} {
		used, e := cpu(pid)
		*to, err = used, errors.Join(err, e)
	}
	return now, err
}

// metered carries something out in a number of steps, which it returns, and reports what that took of processor time and requests: times
// depend on what else the machine does. It takes CPU profiles, if these are asked for.
func (b *bench) metered(ctx context.Context, name string, who spenders, do func() (steps int, err error)) error {
	before, err := who.now(ctx)
	if err != nil {
		return err
	}
	stop, err := b.profileAll(ctx, strings.ReplaceAll(name, "/", "-"), who)
	if err != nil {
		return err
	}
	steps, err := do()
	if err := errors.Join(err, stop()); err != nil {
		return err
	}
	after, err := who.now(ctx)
	if err != nil {
		return err
	}
	each := func(d time.Duration) float64 { return 1000 * d.Seconds() / float64(steps) }
	b.report.add(name+"/farm", each(after.farm-before.farm), "ms CPU/stage", goal{})
	b.report.add(name+"/consul", each(after.consul-before.consul), "ms CPU/stage", goal{})
	b.report.add(name+"/nodes", each(after.nodes-before.nodes), "ms CPU/stage", goal{})
	b.report.add(name+"/requests", (after.requests-before.requests)/float64(steps), "1/stage", goal{})
	for _, what := range slices.Sorted(maps.Keys(deeds)) {
		b.report.add(name+"/"+what, (after.did[what]-before.did[what])/float64(steps), "1/stage", goal{})
	}
	return nil
}

// profileAll starts CPU profiles of this program, Consul and a farm, if profiles are asked for.
func (b *bench) profileAll(ctx context.Context, name string, who spenders) (stop func() error, err error) {
	if b.profiles == "" {
		return func() error { return nil }, nil
	}
	own, err := b.profileItself(name)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	var others errgroup.Group
	for of, addr := range map[string]string{"farm": who.farm.debug, "consul": who.consul.addr} {
		others.Go(func() error { return b.profileInPieces(ctx, name+"-"+of, addr) })
	}
	return func() error {
		stopped := own()
		cancel()
		return errors.Join(stopped, others.Wait())
	}, nil
}

// profileInPieces takes one CPU profile of another program after the other until ctx ends: a request has a limit, and what is measured none.
// `go tool pprof` joins them.
func (b *bench) profileInPieces(ctx context.Context, name, addr string) error {
	for i := 0; ctx.Err() == nil; i++ {
		page, err := cluster.Get(ctx, fmt.Sprintf("http://%s/debug/pprof/profile?seconds=1", addr))
		if err == nil {
			err = os.WriteFile(filepath.Join(b.profiles, fmt.Sprintf("%s-%03d.pprof", name, i)), []byte(page), 0o644)
		}
		if err != nil && ctx.Err() == nil {
			return err
		}
	}
	return nil
}
