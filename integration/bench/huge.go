package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/rcfarm/rcfarm/integration/cluster"
	"github.com/rcfarm/rcfarm/integration/simnode"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/wait"
)

// The changes have the goal slowestMS.
const (
	hugeRequests = 4   // per second besides the liveness queries
	hugeCPU      = 2   // percent of a core
	hugeRSS      = 500 // MiB
	hugeTakeover = 3   // seconds from the end of the session until half of all units have another owner
)

// One unit of ten is a service with two revisions. All units have the same number of pods.
const (
	hugeServices = 10
	hugeReplicas = 5
	// perFleet is how many nodes share a client: see changeGroups.
	perFleet = 1000
)

// hugeBench measures one farm that owns a very large cluster, at rest and while single controllers change. Then a
// second farm gets half of the units, the first farm is killed, and the second farm takes over the other half.
func hugeBench(ctx context.Context, b *bench) error {
	var sc scope
	defer sc.close()
	began := time.Now()
	dev, w, err := b.hugeNodes(ctx, &sc)
	if err != nil {
		return err
	}
	b.report.add("huge/nodes-ready", time.Since(began).Seconds(), "s", goal{})
	if err := wait.Pause(ctx, atRest); err != nil {
		return err
	}
	before, err := b.watchRequests(ctx, dev.addr, b.idleFor/3)
	if err != nil {
		return err
	}
	first, err := b.startFarm(ctx, &sc, w, "farm-0", "", dev.addr)
	if err != nil {
		return err
	}
	if err := first.events.seen(ctx, syncedLine); err != nil {
		return err
	}
	rcs, err := b.hugeUnits(ctx, w, spenders{dev, first})
	if err != nil {
		return err
	}
	// Measure soon: five minutes after the last change, the nodes' standing queries end, and would count as the farm's
	// requests.
	if err := wait.Pause(ctx, atRest); err != nil {
		return err
	}
	goals := restGoals{requests: atMost(hugeRequests), cpu: atMost(hugeCPU), rss: atMost(hugeRSS)}
	if err := b.lookAtRest(ctx, "huge/", dev.addr, first, before, goals); err != nil {
		return err
	}
	took, err := b.changesOf(ctx, w, rcs)
	if err != nil {
		return err
	}
	b.report.add("huge/change-p50", median(took), "ms", goal{})
	b.report.add("huge/change-p99", percentile(took, 99), "ms", atMost(slowestMS))
	return b.hugeFailover(ctx, &sc, w, first, rcs)
}

func (b *bench) hugeNodes(ctx context.Context, sc *scope) (dev *agent, w *world, err error) {
	for i := 0; i*perFleet < b.hugeNodeCount; i++ {
		fleet := simnode.Fleet{
			Name: fmt.Sprintf("n%d", i), Size: min(perFleet, b.hugeNodeCount-i*perFleet), Groups: changeGroups,
			StartTime: 50 * time.Millisecond, TTL: 4 * time.Minute, // see idleBench
		}
		if w == nil {
			dev, w, err = b.startWorld(ctx, sc, manyClients, fleet)
		} else {
			_, err = w.fleet(ctx, sc, fleet)
		}
		if err != nil {
			return nil, nil, err
		}
	}
	if w == nil {
		return nil, nil, errors.New("there must be nodes")
	}
	return dev, w, nil
}

// hugeUnits makes the controllers and services, and reports the time and processor time until all have converged.
func (b *bench) hugeUnits(ctx context.Context, w *world, who spenders) ([]rc.RC, error) {
	services := b.hugeUnitCount / hugeServices
	revisions, err := newServices("service", services, hugeReplicas-2, 2)
	if err != nil {
		return nil, err
	}
	before, err := who.now(ctx)
	if err != nil {
		return nil, err
	}
	began := time.Now()
	all, err := w.createAll(ctx, revisions)
	if err != nil {
		return nil, err
	}
	plain, err := w.create(ctx, "web", b.hugeUnitCount-services, hugeReplicas, nil)
	if err != nil {
		return nil, err
	}
	all = append(all, plain...)
	if err := w.converged(ctx, len(all)); err != nil {
		return nil, err
	}
	took := time.Since(began).Seconds()
	after, err := who.now(ctx)
	if err != nil {
		return nil, err
	}
	consulRSS, err := rss(who.consul.proc.Pid)
	if err != nil {
		return nil, err
	}
	nodesRSS, err := rss(os.Getpid())
	b.report.add("huge/pods", float64(b.hugeUnitCount*hugeReplicas), "pods", goal{})
	b.report.add("huge/converged", took, "s", goal{})
	// Show whether the simulated nodes take too much of the machine.
	b.report.add("huge/converged-farm-cpu", (after.farm-before.farm).Seconds()/took, "cores", goal{})
	b.report.add("huge/converged-consul-cpu", (after.consul-before.consul).Seconds()/took, "cores", goal{})
	b.report.add("huge/converged-nodes-cpu", (after.nodes-before.nodes).Seconds()/took, "cores", goal{})
	b.report.add("huge/consul-rss", float64(consulRSS)/mega, "MiB", goal{})
	b.report.add("huge/nodes-rss", float64(nodesRSS)/mega, "MiB", goal{})
	return all, err
}

func (b *bench) hugeFailover(ctx context.Context, sc *scope, w *world, first *process, rcs []rc.RC) error {
	second, err := b.startFarm(ctx, sc, w, "farm-1", "", w.addr)
	if err != nil {
		return err
	}
	began := time.Now()
	err = every(ctx, time.Second, func() error {
		var owned [2]float64
		for i, f := range []*process{first, second} {
			page, err := cluster.Get(ctx, "http://"+f.debug+"/metrics")
			if err != nil {
				return err
			}
			if owned[i], err = sumOf(page, "rcfarm_farm_owned_rcs"); err != nil {
				return err
			}
		}
		if int(owned[0]+owned[1]) != len(rcs) || owned[1] < float64(len(rcs))/3 {
			return fmt.Errorf("of %d controllers one farm has %.0f and the other %.0f", len(rcs), owned[0], owned[1])
		}
		return nil
	})
	if err != nil {
		return err
	}
	b.report.add("huge/handed-over", time.Since(began).Seconds(), "s", goal{})
	if err := wait.Pause(ctx, 2*atRest); err != nil {
		return err
	}
	t, err := w.killFirst(ctx, rcs, []*process{first, second})
	if err != nil {
		return err
	}
	t.report(&b.report, "huge/")
	b.report.add("huge/changes-carried-out", t.lastChange.Seconds(), "s", goal{})
	b.report.add("huge/re-owned-after-session", (t.lastLock - t.session).Seconds(), "s", atMost(hugeTakeover))
	memory, err := rss(second.cmd.Process.Pid)
	b.report.add("huge/rss-after-takeover", float64(memory)/mega, "MiB", atMost(hugeRSS))
	return err
}
