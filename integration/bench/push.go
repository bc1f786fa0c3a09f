package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/rcfarm/rcfarm/integration/cluster"
	"github.com/rcfarm/rcfarm/integration/simnode"
	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/store"
	"github.com/rcfarm/rcfarm/pkg/wait"
)

const (
	pushQueries = 0.01 // standing queries for each node: all nodes together have only a few
	pushCPU     = 1    // of Consul, as a multiple of the cluster whose nodes watch
	pushSeconds = 1    // until all nodes have read their intents; a pod takes at least as long to start
)

type pushSide struct {
	spenders
	name  string
	told  bool
	world *world
	rcID  string
	heard heard

	up, down                          []float64 // seconds until all nodes have read their intents, of each round
	consulCPU, farmCPU, ownCPU, asked []float64 // seconds, and requests to Consul, of each round
}

type heard struct {
	mu    sync.Mutex
	state pod.RunState
	nodes map[string]bool
	want  int
	all   chan struct{} // closed when so many nodes as want have read the intents
	at    time.Time     // when want nodes had
}

// expect starts a new count. The channel closes when want nodes have read an intent with this state.
func (h *heard) expect(state pod.RunState, want int) <-chan struct{} {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.state, h.want, h.nodes, h.all = state, want, map[string]bool{}, make(chan struct{})
	return h.all
}

func (h *heard) note(node string, in pod.Intent) {
	now := time.Now()
	h.mu.Lock()
	defer h.mu.Unlock()
	if in.State != h.state || h.nodes[node] {
		return
	}
	h.nodes[node] = true
	if len(h.nodes) == h.want {
		h.at = now
		close(h.all)
	}
}

func (h *heard) missing() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return fmt.Sprintf("%d of %d nodes have learned that it is %s", len(h.nodes), h.want, h.state)
}

// pushBench scales a controller from no replica to one on each node and back, in two clusters in turn: with a standing
// query for each node's intents, and with pushes.
func pushBench(ctx context.Context, b *bench) error {
	var sc scope
	defer sc.close()
	watch, told := &pushSide{name: "watch"}, &pushSide{name: "told", told: true}
	sides := []*pushSide{watch, told}
	var queries []float64
	for _, s := range sides {
		n, err := s.start(ctx, b, &sc)
		if err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		queries = append(queries, n)
	}
	if err := b.restOf(ctx, sides); err != nil {
		return err
	}
	for range b.repeat {
		for _, s := range sides {
			stop, err := b.profileAll(ctx, "push-"+s.name, s.spenders)
			if err != nil {
				return err
			}
			if err := errors.Join(s.round(ctx, b.nodes), stop()); err != nil {
				return fmt.Errorf("%s: %w", s.name, err)
			}
		}
	}
	b.report.add("push/watch/standing-queries", queries[0], "1/node", goal{})
	b.report.add("push/told/standing-queries", queries[1], "1/node", below(pushQueries))
	for _, s := range sides {
		within := goal{}
		if s.told {
			within = atMost(pushSeconds)
		}
		b.report.add("push/"+s.name+"/first-up", s.up[0], "s", goal{}) // farms have not pushed to the nodes before
		b.report.add("push/"+s.name+"/up", median(s.up), "s", within)
		b.report.add("push/"+s.name+"/down", median(s.down), "s", within)
		b.report.add("push/"+s.name+"/consul", median(s.consulCPU), "s CPU", goal{})
		b.report.add("push/"+s.name+"/farm", median(s.farmCPU), "s CPU", goal{})
		b.report.add("push/"+s.name+"/nodes", median(s.ownCPU), "s CPU", goal{})
		b.report.add("push/"+s.name+"/requests", median(s.asked), "requests", goal{})
	}
	b.report.add("push/compared/up-times-watch", median(told.up)/median(watch.up), "ratio", goal{})
	b.report.add("push/compared/down-times-watch", median(told.down)/median(watch.down), "ratio", goal{})
	b.report.add("push/compared/consul-times-watch", median(told.consulCPU)/median(watch.consulCPU), "ratio",
		below(pushCPU))
	b.report.add("push/compared/farm-times-watch", median(told.farmCPU)/median(watch.farmCPU), "ratio", goal{})
	return nil
}

// start makes the cluster and a controller without replicas, and returns Consul's standing queries for each node.
func (p *pushSide) start(ctx context.Context, b *bench, sc *scope) (queries float64, err error) {
	if p.consul, err = b.startDev(ctx, sc, manyClients); err != nil {
		return 0, err
	}
	if p.world, err = newWorld(ctx, sc, p.consul.addr); err != nil {
		return 0, err
	}
	before, err := standingQueries(ctx, p.consul.addr)
	if err != nil {
		return 0, err
	}
	fleet := simnode.Fleet{Name: "n", Size: b.nodes, Groups: b.nodes, OnIntent: p.heard.note}
	// All nodes share this client, which needs a connection for each node's standing query.
	if fleet.Client, fleet.Store, err = p.world.connectBy(sc, p.consul.addr,
		b.nodes+consul.DefaultMaxConns); err != nil {
		return 0, err
	}
	var flags []string
	if p.told {
		dir, err := os.MkdirTemp(memoryDir(), "rcfarm-bench-")
		if err != nil {
			return 0, err
		}
		sc.add(func() { _ = os.RemoveAll(dir) })
		creds, err := cluster.NewCredentials(filepath.Join(dir, "credentials"))
		if err != nil {
			return 0, err
		}
		fleet.Told, flags = &simnode.Told{Credentials: creds, Dir: dir, Addr: "127.0.0.1:0"}, creds.Flags()
	}
	if _, err := p.world.fleet(ctx, sc, fleet); err != nil {
		return 0, err
	}
	if err := wait.Pause(ctx, atRest); err != nil {
		return 0, err
	}
	after, err := standingQueries(ctx, p.consul.addr)
	if err != nil {
		return 0, err
	}
	p.farm, err = b.startFarm(ctx, sc, p.world, "farm-"+p.name, "", p.consul.addr, flags...)
	if err != nil {
		return 0, err
	}
	if err := p.farm.events.seen(ctx, syncedLine); err != nil {
		return 0, err
	}
	rcs, err := p.world.create(ctx, "web", 1, 0, func(r *rc.RC) { r.MaxPerNode = 1 })
	if err != nil {
		return 0, err
	}
	p.rcID = rcs[0].ID
	return (after - before) / float64(b.nodes), p.world.converged(ctx, 1)
}

// round scales the controller to one replica on each node and back, until everything is at rest again.
func (p *pushSide) round(ctx context.Context, nodes int) error {
	before, err := p.now(ctx)
	if err != nil {
		return err
	}
	up, err := p.scale(ctx, nodes, nodes, pod.Running)
	if err != nil {
		return fmt.Errorf("up: %w", err)
	}
	down, err := p.scale(ctx, 0, nodes, pod.Stopped)
	if err != nil {
		return fmt.Errorf("down: %w", err)
	}
	after, err := p.now(ctx)
	p.up, p.down = append(p.up, up.Seconds()), append(p.down, down.Seconds())
	p.consulCPU = append(p.consulCPU, (after.consul - before.consul).Seconds())
	p.farmCPU = append(p.farmCPU, (after.farm - before.farm).Seconds())
	p.ownCPU = append(p.ownCPU, (after.nodes - before.nodes).Seconds())
	p.asked = append(p.asked, after.requests-before.requests)
	return err
}

// scale returns the time until this number of nodes has read the new intents, after all watches are at rest again.
func (p *pushSide) scale(ctx context.Context, replicas, nodes int, state pod.RunState) (time.Duration, error) {
	informed := p.heard.expect(state, nodes)
	began := time.Now()
	if err := p.world.scaleTo(ctx, p.rcID, replicas); err != nil {
		return 0, err
	}
	select {
	case <-informed:
	case <-ctx.Done():
		return 0, fmt.Errorf("%w: %s", context.Cause(ctx), p.heard.missing())
	}
	took := p.heard.at.Sub(began)
	err := every(ctx, time.Second, func() error {
		st, err := p.world.store.Statuses.Get(ctx, store.Default, p.rcID)
		if err == nil && (st.Value.Placed != replicas || st.Value.Available != replicas) {
			err = fmt.Errorf("%d placed, %d available", st.Value.Placed, st.Value.Available)
		}
		return err
	})
	if err == nil {
		err = wait.Pause(ctx, atRest)
	}
	return took, err
}

// A node reads its intents again after restFor if no farm pushes.
const restFor = time.Minute

func (b *bench) restOf(ctx context.Context, sides []*pushSide) error {
	before := make([]spending, len(sides))
	for i, s := range sides {
		var err error
		if before[i], err = s.now(ctx); err != nil {
			return err
		}
	}
	if err := wait.Pause(ctx, restFor); err != nil {
		return err
	}
	for i, s := range sides {
		after, err := s.now(ctx)
		if err != nil {
			return err
		}
		b.report.add("push/"+s.name+"/rest", 100*(after.consul-before[i].consul).Seconds()/restFor.Seconds(),
			"% of a core", goal{})
		memory, err := rss(s.consul.proc.Pid)
		if err != nil {
			return err
		}
		b.report.add("push/"+s.name+"/consul-rss", float64(memory)/mega, "MiB", goal{})
		b.report.add("push/"+s.name+"/rest-requests", (after.requests-before[i].requests)/restFor.Seconds(),
			"requests/s", goal{})
	}
	return nil
}

func standingQueries(ctx context.Context, addr string) (float64, error) {
	const gauge = "consul_rpc_queries_blocking "
	page, err := cluster.Get(ctx, "http://"+addr+"/v1/agent/metrics?format=prometheus")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(page) {
		if n, is := strings.CutPrefix(strings.TrimSpace(line), gauge); is {
			return strconv.ParseFloat(n, 64)
		}
	}
	return 0, fmt.Errorf("telemetry of %s has no %s", addr, gauge)
}

// memoryDir returns a directory in memory, or "": all simulated nodes would wait for one disk, and real ones have their
// own.
func memoryDir() string {
	const dir = "/dev/shm"
	if info, err := os.Stat(dir); err == nil && info.IsDir() {
		return dir
	}
	return ""
}
