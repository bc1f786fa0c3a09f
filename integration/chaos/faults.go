package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/rcfarm/rcfarm/integration/checker"
	"github.com/rcfarm/rcfarm/integration/cluster"
	"github.com/rcfarm/rcfarm/pkg/consul"
)

type fault struct {
	name string
	hits target
	hold func(ttl time.Duration) time.Duration // how long the fault lasts, at least
	// machine: farms may take a machine of nodes for lost. do then returns its name.
	machine bool
	// do causes the fault, describes it, and returns what ends it, or nil.
	do func(ctx context.Context, c *chaos, rng *rand.Rand) (what string, undo func(context.Context) error, err error)
}

// Two faults at the same time hit different targets, so at most one server is away.
type target string

const (
	hitsFarm   target = "farm"
	hitsAgent  target = "agent"
	hitsServer target = "server"
	hitsHost   target = "host"
	hitsRecord target = "record"
	hitsStore  target = "store" // everything; no other fault at the same time
)

// brief faults end before a daemon counts as dead, long faults after that.
func brief(time.Duration) time.Duration    { return 0 }
func long(ttl time.Duration) time.Duration { return ttl + ttl/2 }
func medium(time.Duration) time.Duration   { return 4 * time.Second }

// past is longer than a session lives after its last renewal: at most twice its TTL.
func past(ttl time.Duration) time.Duration { return 2*max(ttl, consul.MinSessionTTL) + time.Second }

var faults = []fault{
	{name: "farm-kill", hits: hitsFarm, hold: long, do: farmKill},
	{name: "farm-restart", hits: hitsFarm, hold: brief, do: farmRestart},
	{name: "farm-pause", hits: hitsFarm, hold: long, do: farmPause},
	{name: "farm-pause-ttl", hits: hitsFarm, hold: past, do: farmPauseTTL},
	{name: "agent-pause", hits: hitsAgent, hold: long, do: agentPause},
	{name: "agent-pause-busy", hits: hitsAgent, hold: long, do: agentPauseBusy},
	{name: "agent-kill", hits: hitsAgent, hold: brief, do: agentKill},
	{name: "farm-cut", hits: hitsAgent, hold: long, do: farmCut},
	{name: "server-cut", hits: hitsServer, hold: medium, do: serverCut},
	{name: "servers-cut", hits: hitsServer, hold: medium, do: serversCut},
	{name: "leader-kill", hits: hitsServer, hold: medium, do: leaderKill},
	{name: "leader-pause", hits: hitsServer, hold: medium, do: leaderPause},
	{name: "leader-transfer", hits: hitsServer, hold: brief, do: leaderTransfer},
	{name: restoreFault, hits: hitsStore, hold: brief, do: snapshotRestore},
	{name: wipeFault, hits: hitsStore, hold: undisturbed, do: wipe},
	{name: "blind-token", hits: hitsFarm, hold: medium, do: blindToken},
	{name: "slow-network", hits: hitsServer, hold: medium, do: slowNetwork},
	{name: "host-cut", hits: hitsHost, hold: long, do: hostCut, machine: true},
	{name: "host-away", hits: hitsHost, hold: away, do: hostAway, machine: true},
	{name: "host-pause", hits: hitsHost, hold: long, do: hostPause, machine: true},
	{name: "host-loss", hits: hitsHost, hold: long, do: hostLoss, machine: true},
	{name: "preparer-stop", hits: hitsHost, hold: long, do: preparerStop},
	{name: "node-garbage", hits: hitsHost, hold: long, do: nodeGarbage},
	{name: "record-garbage", hits: hitsRecord, hold: long, do: recordGarbage},
}

func faultNames() []string {
	var names []string
	for _, f := range faults {
		names = append(names, f.name)
	}
	return names
}

// deck returns the faults that a run names. Without names it returns all, but host-away only with ordered groups.
func deck(cfg config) ([]fault, error) {
	if cfg.faults == "" && cfg.ordered {
		return faults, nil
	}
	if cfg.faults == "" {
		return slices.DeleteFunc(slices.Clone(faults), func(f fault) bool { return f.name == "host-away" }), nil
	}
	var out []fault
	for name := range strings.SplitSeq(cfg.faults, ",") {
		i := slices.IndexFunc(faults, func(f fault) bool { return f.name == name })
		if i < 0 {
			return nil, fmt.Errorf("no fault %q: allowed %s", name, strings.Join(faultNames(), ","))
		}
		out = append(out, faults[i])
	}
	return out, nil
}

func pick(list []*process, rng *rand.Rand) *process { return list[rng.IntN(len(list))] }

func restart(p *process) func(context.Context) error {
	return func(context.Context) error { return p.start() }
}

func farmKill(_ context.Context, c *chaos, rng *rand.Rand) (string, func(context.Context) error, error) {
	p := pick(c.farms, rng)
	p.kill()
	return p.name, restart(p), nil
}

func farmRestart(_ context.Context, c *chaos, rng *rand.Rand) (string, func(context.Context) error, error) {
	p := pick(c.farms, rng)
	p.kill()
	return p.name, nil, p.start()
}

func paused(p *process) (string, func(context.Context) error, error) {
	p.signal(syscall.SIGSTOP)
	return p.name, func(context.Context) error { p.signal(syscall.SIGCONT); return nil }, nil
}

func farmPause(_ context.Context, c *chaos, rng *rand.Rand) (string, func(context.Context) error, error) {
	return paused(pick(c.farms, rng))
}

func farmPauseTTL(_ context.Context, c *chaos, _ *rand.Rand) (string, func(context.Context) error, error) {
	return paused(c.farms[c.byTTL()])
}

func agentPause(_ context.Context, c *chaos, rng *rand.Rand) (string, func(context.Context) error, error) {
	return paused(pick(c.agents, rng))
}

// agentPauseBusy pauses all agents except one while their farms are in many passes. Afterwards the agents deliver what
// the farms had sent long before another farm took over, and the fence must refuse it. Operators do nothing until then.
func agentPauseBusy(ctx context.Context, c *chaos, rng *rand.Rand) (string, func(context.Context) error, error) {
	c.acting.Lock()
	c.hurry(ctx, rng, busyFor+upTo(rng, busyFor))
	spared := rng.IntN(farms) // its farm takes over
	var names []string
	for i, p := range c.agents {
		if i != spared {
			p.signal(syscall.SIGSTOP)
			names = append(names, p.name)
		}
	}
	return strings.Join(names, ", "), func(context.Context) error {
		defer c.acting.Unlock()
		for _, p := range c.agents {
			p.signal(syscall.SIGCONT)
		}
		return nil
	}, nil
}

const busyFor = 300 * time.Millisecond

func hostPause(_ context.Context, c *chaos, rng *rand.Rand) (string, func(context.Context) error, error) {
	p := pick(c.hosts, rng)
	_, undo, err := paused(p)
	return p.on.name, undo, err
}

// hostLoss ends a machine with all its nodes and pods. It comes back like a new machine.
func hostLoss(_ context.Context, c *chaos, rng *rand.Rand) (string, func(context.Context) error, error) {
	host := rng.IntN(hosts)
	nodes := c.nodes[host*nodesPer : (host+1)*nodesPer]
	c.hosts[host].kill()
	halt(nodes)
	var names []string
	for _, n := range nodes {
		n.Die()
		c.events.write(checker.Event{At: time.Now().UnixNano(), Kind: checker.EventLost, Node: n.Record.Name})
		names = append(names, n.Record.Name)
	}
	c.setDead(names)
	return c.hosts[host].on.name, func(ctx context.Context) error {
		c.setDead(nil)
		err := c.hosts[host].start()
		for _, n := range nodes {
			err = errors.Join(err, n.resume(ctx, n.Run))
		}
		return err
	}, nil
}

// preparerStop ends some preparers, whose pods continue to run.
func preparerStop(_ context.Context, c *chaos, rng *rand.Rand) (string, func(context.Context) error, error) {
	const most = 4
	first := rng.IntN(len(c.nodes) - most)
	nodes := c.nodes[first : first+1+rng.IntN(most)]
	halt(nodes)
	return fmt.Sprintf("%s and %d more", nodes[0].Record.Name, len(nodes)-1), func(ctx context.Context) error {
		var errs []error
		for _, n := range nodes {
			errs = append(errs, n.resume(ctx, n.Resume))
		}
		return errors.Join(errs...)
	}, nil
}

func halt(nodes []*simulated) {
	var all sync.WaitGroup
	for _, n := range nodes {
		all.Go(n.halt)
	}
	all.Wait()
}

func (c *chaos) setDead(names []string) {
	c.deadMu.Lock()
	defer c.deadMu.Unlock()
	c.deadNodes = names
}

func agentKill(_ context.Context, c *chaos, rng *rand.Rand) (string, func(context.Context) error, error) {
	p := pick(c.agents, rng)
	p.kill()
	return p.name, nil, p.start()
}

func cutOff(ctx context.Context, p *process) (string, func(context.Context) error, error) {
	return p.on.name, p.on.heal, p.on.cut(ctx)
}

func farmCut(ctx context.Context, c *chaos, rng *rand.Rand) (string, func(context.Context) error, error) {
	return cutOff(ctx, pick(c.agents, rng))
}

func serverCut(ctx context.Context, c *chaos, rng *rand.Rand) (string, func(context.Context) error, error) {
	return cutOff(ctx, pick(c.servers, rng))
}

func hostCut(ctx context.Context, c *chaos, rng *rand.Rand) (string, func(context.Context) error, error) {
	return cutOff(ctx, pick(c.hosts, rng))
}

// serversCut separates two servers. The others reach both.
func serversCut(ctx context.Context, c *chaos, rng *rand.Rand) (string, func(context.Context) error, error) {
	first := rng.IntN(servers)
	a, b := c.serverMachines[first], c.serverMachines[(first+1)%servers]
	return a.name + " from " + b.name, a.heal, errors.Join(a.cutFrom(ctx, b))
}

func leaderKill(ctx context.Context, c *chaos, _ *rand.Rand) (string, func(context.Context) error, error) {
	n, err := c.leaderSoon(ctx)
	if err != nil {
		return "", nil, err
	}
	c.servers[n].kill()
	return c.servers[n].on.name, restart(c.servers[n]), nil
}

func leaderPause(ctx context.Context, c *chaos, _ *rand.Rand) (string, func(context.Context) error, error) {
	n, err := c.leaderSoon(ctx)
	if err != nil {
		return "", nil, err
	}
	return paused(c.servers[n])
}

func leaderTransfer(ctx context.Context, c *chaos, _ *rand.Rand) (string, func(context.Context) error, error) {
	n, err := c.leaderSoon(ctx)
	if err == nil {
		_, err = request(ctx, c.serverMachines[n].ip(), http.MethodPost, "/v1/operator/raft/transfer-leader", nil)
	}
	return serverName(n), nil, err
}

// blindToken takes away a farm's right to read the records.
func blindToken(ctx context.Context, c *chaos, rng *rand.Rand) (string, func(context.Context) error, error) {
	i := rng.IntN(farms)
	name := c.farms[i].name
	_, err := c.policy(ctx, c.policies[i], name, blind+daemonACL)
	undo := func(ctx context.Context) error {
		return cluster.Until(ctx, func() error {
			_, err := c.policy(ctx, c.policies[i], name, seeing+daemonACL)
			return err
		})
	}
	return name, undo, err
}

func slowNetwork(ctx context.Context, c *chaos, rng *rand.Rand) (string, func(context.Context) error, error) {
	p := pick(slices.Concat(c.servers, c.agents), rng)
	how, err := p.on.slow(ctx)
	if err == nil {
		c.report.slowBy(how)
	}
	return p.on.name, p.on.heal, err
}

// snapshotRestore restores a snapshot after a while. Other faults would hide whether a failed restore had an effect.
func snapshotRestore(ctx context.Context, c *chaos, rng *rand.Rand) (string, func(context.Context) error, error) {
	archive, err := c.anyServer(ctx, http.MethodGet, "/v1/snapshot", nil)
	if err != nil {
		return "", nil, err
	}
	index, err := snapshotIndex(archive)
	if err != nil {
		return "", nil, err
	}
	age := time.Second + upTo(rng, 6*time.Second)
	if !wait(ctx, age) {
		return "", nil, context.Cause(ctx)
	}
	c.keeping.Lock()
	defer c.keeping.Unlock()
	c.epoch++
	call := time.Now().UnixNano()
	n, err := c.leaderSoon(ctx)
	if err == nil {
		_, err = request(ctx, c.serverMachines[n].ip(), http.MethodPut, "/v1/snapshot", archive)
	}
	c.events.write(checker.Event{At: time.Now().UnixNano(), Kind: checker.EventRestore, Index: index, Call: call})
	return fmt.Sprintf("index %d, %s old", index, age.Round(time.Millisecond)), nil, err
}
