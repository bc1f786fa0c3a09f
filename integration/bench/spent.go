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

// spenders are the programs, besides this one, whose processor time is counted.
type spenders struct {
	consul *agent
	farm   *process
}

type spending struct {
	farm, consul, nodes time.Duration
	requests            float64            // that Consul has answered, without requests for liveness
	did                 map[string]float64 // what the farm has done; see deeds
}

// deeds has the metrics of a farm's work, by their names in a report. They do not depend on the machine's other work.
var deeds = map[string]string{
	"passes":  "rcfarm_farm_passes_total",   // looks at controllers
	"batches": "rcfarm_farm_batches_total",  // their write transactions
	"steps":   "rcfarm_rollout_steps_total", // steps of rollouts
}

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

// sumOf adds up a metric's values, of all labels.
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
	for pid, to := range map[int]*time.Duration{
		s.farm.cmd.Process.Pid: &now.farm,
		s.consul.proc.Pid:      &now.consul, os.Getpid(): &now.nodes,
	} {
		used, e := cpu(pid)
		*to, err = used, errors.Join(err, e)
	}
	return now, err
}

// metered reports the processor time, the requests and the deeds for each step of do, because do's own time depends on
// the machine's other work.
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

// profileInPieces takes CPU profiles until ctx ends, because a single request could not be as long as a measurement.
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
