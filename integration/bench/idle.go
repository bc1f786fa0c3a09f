package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/rcfarm/rcfarm/integration/simnode"
	"github.com/rcfarm/rcfarm/pkg/wait"
)

const (
	idleRequests = 2 // per second besides the liveness queries
	idleCPU      = 1 // percent of a core
	idleRSS      = 150
)

const mega = 1 << 20

// atRest is the wait until all watches are at rest: after a change, each waits for a few seconds (probeWait in
// pkg/consul).
const atRest = 8 * time.Second

// idleBench measures what a farm process costs while nothing changes, with Consul's default limits. Consul also counts
// the simulated nodes' requests, so idleBench subtracts what it measured without a farm.
func idleBench(ctx context.Context, b *bench) error {
	var sc scope
	defer sc.close()
	// With a TTL of minutes, the nodes' own liveness costs nearly nothing.
	dev, w, err := b.startWorld(ctx, &sc, nil, simnode.Fleet{Name: "n", Size: b.nodes, TTL: 4 * time.Minute})
	if err != nil {
		return err
	}
	if err := wait.Pause(ctx, atRest); err != nil {
		return err
	}
	before, err := b.watchRequests(ctx, dev.addr, b.idleFor/3)
	if err != nil {
		return err
	}
	link, err := startProxy(&sc, dev.addr, 0)
	if err != nil {
		return err
	}
	farm, err := b.startFarm(ctx, &sc, w, "farm", "", link.addr)
	if err != nil {
		return err
	}
	if _, err := w.create(ctx, "web", b.idleRCs, b.idlePods, nil); err != nil {
		return err
	}
	if err := w.converged(ctx, b.idleRCs); err != nil {
		return err
	}
	if err := wait.Pause(ctx, atRest); err != nil {
		return err
	}
	bytesFrom, began := link.in.Load()+link.out.Load(), time.Now()
	goals := restGoals{requests: below(idleRequests), cpu: below(idleCPU), rss: atMost(idleRSS)}
	if err := b.lookAtRest(ctx, "idle/", dev.addr, farm, before, goals); err != nil {
		return err
	}
	bytes := float64(link.in.Load() + link.out.Load() - bytesFrom)
	b.report.add("idle/bytes", bytes/time.Since(began).Seconds(), "bytes/s", goal{})
	return nil
}

type rate struct{ liveness, others float64 }

func (b *bench) watchRequests(ctx context.Context, addr string, d time.Duration) (rate, error) {
	from, err := requestsOf(ctx, addr)
	if err != nil {
		return rate{}, err
	}
	if err := wait.Pause(ctx, d); err != nil {
		return rate{}, err
	}
	to, err := requestsOf(ctx, addr)
	if b.logs != "" {
		for path, n := range to.byPath {
			if more := n - from.byPath[path]; more > 0 {
				fmt.Fprintf(os.Stderr, "    %4.0f x %s\n", more, path)
			}
		}
	}
	s := d.Seconds()
	return rate{(to.liveness - from.liveness) / s, (to.others - from.others) / s}, err
}

type restGoals struct{ requests, cpu, rss goal }

// lookAtRest reports what a farm costs while nothing changes, in excess of before.
func (b *bench) lookAtRest(
	ctx context.Context, prefix, addr string, farm *process, before rate, goals restGoals,
) error {
	pid := farm.cmd.Process.Pid
	cpuFrom, err := cpu(pid)
	if err != nil {
		return err
	}
	got, err := b.watchRequests(ctx, addr, b.idleFor)
	if err != nil {
		return err
	}
	cpuTo, err := cpu(pid)
	if err != nil {
		return err
	}
	memory, err := rss(pid)
	if err != nil {
		return err
	}
	seconds := b.idleFor.Seconds()
	b.report.add(prefix+"requests", max(0, got.others-before.others), "requests/s", goals.requests)
	b.report.add(prefix+"liveness-requests", max(0, got.liveness-before.liveness), "requests/s", goal{})
	b.report.add(prefix+"cpu", 100*(cpuTo-cpuFrom).Seconds()/seconds, "% of a core", goals.cpu)
	b.report.add(prefix+"rss", float64(memory)/mega, "MiB", goals.rss)
	return nil
}
