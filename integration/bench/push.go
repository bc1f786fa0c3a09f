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

// Goals of push.
const (
	pushQueries = 0.01 // standing queries for each node: those of the nodes together are no more than a few
	pushCPU     = 1    // of Consul, times that with nodes that watch
	pushSeconds = 1    // until all nodes are informed: a pod takes no less to start
)

// pushSide is a cluster whose nodes all watch their intents, or are all told of them.
type pushSide struct {
	spenders
	name  string
	told  bool
	world *world
	rcID  string
	heard heard

	up, down                          []float64 // seconds until all nodes are informed, of each round
	consulCPU, farmCPU, ownCPU, asked []float64 // seconds, and requests to Consul, of each round
}

// heard is which nodes have learned of what a controller wants of them.
type heard struct {
	mu    sync.Mutex
	state pod.RunState
	nodes map[string]bool
	want  int
	all   chan struct{} // closed when that many have
	at    time.Time     // when they had
}

// expect begins anew: so many nodes are to learn of an intent with a state.
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

// missing says how many have not learned of it.
func (h *heard) missing() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return fmt.Sprintf("%d of %d nodes have learned that it is %s", len(h.nodes), h.want, h.state)
}

// pushBench scales a controller from no replica to one on each node and back, in a cluster whose nodes watch their intents, each with a standing
// query of its own, and in one whose nodes are told of them, in turn.
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
		b.report.add("push/"+s.name+"/first-up", s.up[0], "s", goal{}) // nobody has spoken to the nodes yet
		b.report.add("push/"+s.name+"/up", median(s.up), "s", within)
		b.report.add("push/"+s.name+"/down", median(s.down), "s", within)
		b.report.add("push/"+s.name+"/consul", median(s.consulCPU), "s CPU", goal{})
		b.report.add("push/"+s.name+"/farm", median(s.farmCPU), "s CPU", goal{})
		b.report.add("push/"+s.name+"/nodes", median(s.ownCPU), "s CPU", goal{})
		b.report.add("push/"+s.name+"/requests", median(s.asked), "requests", goal{})
	}
	b.report.add("push/compared/up-times-watch", median(told.up)/median(watch.up), "ratio", goal{})
	b.report.add("push/compared/down-times-watch", median(told.down)/median(watch.down), "ratio", goal{})
	b.report.add("push/compared/consul-times-watch", median(told.consulCPU)/median(watch.consulCPU), "ratio", below(pushCPU))
	b.report.add("push/compared/farm-times-watch", median(told.farmCPU)/median(watch.farmCPU), "ratio", goal{})
	return nil
}

// start starts Consul, nodes and farm, makes a controller without replicas, and returns how many standing queries Consul has for each node.
func (s *pushSide) start(ctx context.Context, b *bench, sc *scope) (queries float64, err error) {
	if s.consul, err = b.startDev(ctx, sc, manyClients); err != nil {
		return 0, err
	}
	if s.world, err = newWorld(ctx, sc, s.consul.addr); err != nil {
		return 0, err
	}
	before, err := standingQueries(ctx, s.consul.addr)
	if err != nil {
		return 0, err
	}
	fleet := simnode.Fleet{Name: "n", Size: b.nodes, Groups: b.nodes, OnIntent: s.heard.note}
	// All nodes share a client here, which must let each have its standing query.
	if fleet.Client, fleet.Store, err = s.world.connectBy(sc, s.consul.addr, b.nodes+consul.DefaultMaxConns); err != nil {
		return 0, err
	}
	var flags []string
	if s.told {
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
	if _, err := s.world.fleet(ctx, sc, fleet); err != nil {
		return 0, err
	}
	if err := wait.Pause(ctx, atRest); err != nil {
		return 0, err
	}
	after, err := standingQueries(ctx, s.consul.addr)
	if err != nil {
		return 0, err
	}
	s.farm, err = b.startFarm(ctx, sc, s.world, "farm-"+s.name, "", s.consul.addr, flags...)
	if err != nil {
		return 0, err
	}
	if err := s.farm.events.seen(ctx, syncedLine); err != nil {
		return 0, err
	}
	rcs, err := s.world.create(ctx, "web", 1, 0, func(r *rc.RC) { r.MaxPerNode = 1 })
	if err != nil {
		return 0, err
	}
	s.rcID = rcs[0].ID
	return (after - before) / float64(b.nodes), s.world.converged(ctx, 1)
}

// round scales the controller to one replica on each node and back, and notes what that takes until everything is at rest again.
func (s *pushSide) round(ctx context.Context, nodes int) error {
	before, err := s.now(ctx)
	if err != nil {
		return err
	}
	up, err := s.scale(ctx, nodes, nodes, pod.Running)
	if err != nil {
		return fmt.Errorf("up: %w", err)
	}
	down, err := s.scale(ctx, 0, nodes, pod.Stopped)
	if err != nil {
		return fmt.Errorf("down: %w", err)
	}
	after, err := s.now(ctx)
	s.up, s.down = append(s.up, up.Seconds()), append(s.down, down.Seconds())
	s.consulCPU = append(s.consulCPU, (after.consul - before.consul).Seconds())
	s.farmCPU = append(s.farmCPU, (after.farm - before.farm).Seconds())
	s.ownCPU = append(s.ownCPU, (after.nodes - before.nodes).Seconds())
	s.asked = append(s.asked, after.requests-before.requests)
	return err
}

// scale returns how long it takes until so many nodes have learned what they are to do, and returns when that is done and all watches wait again.
func (s *pushSide) scale(ctx context.Context, replicas, nodes int, state pod.RunState) (time.Duration, error) {
	informed := s.heard.expect(state, nodes)
	began := time.Now()
	if err := s.world.scaleTo(ctx, s.rcID, replicas); err != nil {
		return 0, err
	}
	select {
	case <-informed:
	case <-ctx.Done():
		return 0, fmt.Errorf("%w: %s", context.Cause(ctx), s.heard.missing())
	}
	took := s.heard.at.Sub(began)
	err := every(ctx, time.Second, func() error {
		st, err := s.world.store.Statuses.Get(ctx, store.Default, s.rcID)
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

// restFor is how long is looked at clusters where nothing happens: as long as two readings are apart that nobody asks for.
const restFor = time.Minute

// restOf reports what Consul takes where nothing happens, on all sides at once.
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
		b.report.add("push/"+s.name+"/rest", 100*(after.consul-before[i].consul).Seconds()/restFor.Seconds(), "% of a core", goal{})
		memory, err := rss(s.consul.proc.Pid)
		if err != nil {
			return err
		}
		b.report.add("push/"+s.name+"/consul-rss", float64(memory)/mega, "MiB", goal{})
		b.report.add("push/"+s.name+"/rest-requests", (after.requests-before[i].requests)/restFor.Seconds(), "requests/s", goal{})
	}
	return nil
}

// standingQueries returns how many queries a Consul server holds open.
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

// memoryDir is where files are kept in memory: a thousand nodes have a thousand disks, and here they would wait for one.
func memoryDir() string {
	const dir = "/dev/shm"
	if info, err := os.Stat(dir); err == nil && info.IsDir() {
		return dir
	}
	return ""
}
