package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"syscall"

	"github.com/rcfarm/rcfarm/integration/checker"
	"github.com/rcfarm/rcfarm/integration/cluster"
	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// boot starts servers, agents and farms. Each farm has its own agent, as documented. So a farm or its agent can fail
// alone, and a heartbeat can succeed at an agent that is cut off from the servers.
func (c *chaos) boot(ctx context.Context) error {
	if err := makeBridge(ctx); err != nil {
		return fmt.Errorf("cannot set up the network: %w", err)
	}
	for i := range servers {
		m, err := makeMachine(ctx, serverName(i), 1+i)
		if err != nil {
			return fmt.Errorf("cannot set up the network: %w", err)
		}
		c.serverMachines = append(c.serverMachines, m)
	}
	var err error
	for _, m := range c.serverMachines {
		if c.servers, err = c.startAgent(c.servers, m, true); err != nil {
			return err
		}
	}
	if err := cluster.Until(ctx, func() error { _, err := c.leader(ctx); return err }); err != nil {
		return fmt.Errorf("the servers elect no leader: %w", err)
	}
	keys, err := store.NewKeys(store.DefaultPrefix)
	if err != nil {
		return err
	}
	c.keys = keys
	for _, m := range c.serverMachines {
		client, err := connect(m, 0)
		if err != nil {
			return err
		}
		c.client, c.stores = append(c.client, client), append(c.stores, store.New(client, keys))
	}
	if c.credentials, err = cluster.NewCredentials(filepath.Join(c.cfg.dir, "credentials")); err != nil {
		return err
	}
	for i := range hosts {
		if err := c.startHost(ctx, i, keys); err != nil {
			return err
		}
	}
	for i := range farms {
		if err := c.startFarm(ctx, i); err != nil {
			return err
		}
	}
	return nil
}

func serverName(i int) string { return fmt.Sprintf("server%d", i+1) }

func connect(m *machine, conns int) (*consul.Client, error) {
	return consul.New(consul.Config{
		Address: fmt.Sprintf("%s:%d", m.ip(), consulPort),
		Token:   managementToken, MaxConns: conns,
	})
}

func (c *chaos) startAgent(list []*process, m *machine, isServer bool) ([]*process, error) {
	p, err := c.agent(m, isServer)
	if err == nil {
		err = p.start()
	}
	return append(list, p), err
}

func (c *chaos) startHost(ctx context.Context, i int, keys *store.Keys) error {
	m, err := makeMachine(ctx, fmt.Sprintf("host%d", i+1), 21+i)
	if err != nil {
		return err
	}
	if c.hosts, err = c.startAgent(c.hosts, m, false); err != nil {
		return err
	}
	if err := agentReady(ctx, m); err != nil {
		return err
	}
	for n := range nodesPer {
		node, err := newSimulated(c, m, i*nodesPer+n, keys)
		if err != nil {
			return err
		}
		c.nodes = append(c.nodes, node)
	}
	return nil
}

func agentReady(ctx context.Context, m *machine) error {
	return cluster.Until(ctx, func() error {
		_, err := request(ctx, m.ip(), http.MethodGet, "/v1/catalog/node/"+m.name, nil)
		return err
	})
}

func (c *chaos) startFarm(ctx context.Context, i int) error {
	name := fmt.Sprintf("farm%d", i+1)
	m, err := makeMachine(ctx, name, 11+i)
	if err != nil {
		return err
	}
	if c.agents, err = c.startAgent(c.agents, m, false); err != nil {
		return err
	}
	if err := agentReady(ctx, m); err != nil {
		return err
	}
	policy, err := c.policy(ctx, "", name, seeing+daemonACL)
	if err != nil {
		return err
	}
	token, err := c.token(ctx, policy)
	if err != nil {
		return err
	}
	file := c.tokenFile(name)
	if err := os.WriteFile(file, []byte(token), 0o600); err != nil {
		return err
	}
	p := &process{name: name, on: m, dir: c.cfg.dir, args: []string{
		c.cfg.farm, "--id", name, "--data-dir", filepath.Join(c.cfg.dir, name+"-data"), "--ttl",
		c.cfg.ttl.String(), "--token-file", file,
		"--forget-node-after", "1m", // then the leader also writes since when nodes are gone
		"--consul-addr", fmt.Sprintf("127.0.0.1:%d", consulPort), "--log-level", "debug",
	}}
	p.args = append(p.args, c.credentials.Flags()...)
	if i == c.byTTL() {
		p.args = append(p.args, "--session", "ttl")
	}
	if i == c.choosy() {
		p.args = append(p.args, "--rc-selector", teamLabel+"=a")
	}
	c.farms, c.policies = append(c.farms, p), append(c.policies, policy)
	return p.start()
}

// byTTL is the number of the farm whose session has its own TTL, and no check.
func (c *chaos) byTTL() int { return newRand(c.cfg.seed, 7).IntN(farms) }

// choosy is the number of the only farm that works on the controllers of one team alone.
func (c *chaos) choosy() int { return newRand(c.cfg.seed, 11).IntN(farms) }

func (c *chaos) tokenFile(farm string) string { return filepath.Join(c.cfg.dir, farm+".token") }

// stop ends the program in order, or by force if that takes too long.
func (p *process) stop() {
	p.signal(syscall.SIGTERM)
	ctx, cancel := context.WithTimeout(context.Background(), shutdownLimit)
	defer cancel()
	select {
	case <-p.ended:
	case <-ctx.Done():
		p.kill()
	}
}

func (c *chaos) healAll(ctx context.Context) error {
	var errs []error
	for _, list := range [][]*process{c.servers, c.agents, c.hosts, c.farms} {
		for _, p := range list {
			errs = append(errs, p.on.heal(ctx))
			p.signal(syscall.SIGCONT)
			if !p.alive() {
				errs = append(errs, p.start())
			}
		}
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if err := c.wake(ctx); err != nil {
		return err
	}
	if err := c.seen(ctx); err != nil {
		return err
	}
	for i, id := range c.policies {
		_, err := c.policy(ctx, id, c.farms[i].name, seeing+daemonACL)
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// wake restarts servers that do not answer, as an operator would, because a server that restores a snapshot sometimes
// hangs; see consultest.ErrHung.
func (c *chaos) wake(ctx context.Context) error {
	answers := func(m *machine) error {
		_, err := request(ctx, m.ip(), http.MethodGet, "/v1/kv/"+store.DefaultPrefix+"schema?stale", nil)
		return err
	}
	for i, p := range c.servers {
		if err := answers(c.serverMachines[i]); !errors.Is(err, context.DeadlineExceeded) || ctx.Err() != nil {
			continue // any other answer shows that the server does not hang
		}
		c.report.hang()
		p.kill()
		if err := p.start(); err != nil {
			return err
		}
		limited, cancel := context.WithTimeoutCause(ctx, bootLimit,
			errors.New(p.name+" does not answer after its restart"))
		err := cluster.Until(limited, func() error { return answers(c.serverMachines[i]) })
		cancel()
		if err != nil {
			return err
		}
	}
	return nil
}

// seen waits until the servers know that every machine lives: no session can be made on a machine that a restored
// catalog shows as failed, and Consul's leader compares with gossip once a minute.
func (c *chaos) seen(ctx context.Context) error {
	limited, cancel := context.WithTimeoutCause(ctx, bootLimit, errors.New("the servers take machines for dead"))
	defer cancel()
	return cluster.Until(limited, func() error {
		data, err := c.anyServer(limited, http.MethodGet, "/v1/health/state/critical", nil)
		if err != nil {
			return err
		}
		var critical []struct{ Node, CheckID string }
		if err := json.Unmarshal(data, &critical); err != nil {
			return err
		}
		for _, check := range critical {
			if check.CheckID == "serfHealth" {
				return fmt.Errorf("%s is critical", check.Node)
			}
		}
		return nil
	})
}

// saveFinal writes down all keys at one index of the Raft log that every server has.
func (c *chaos) saveFinal(ctx context.Context) error {
	leader, err := c.leader(ctx)
	if err != nil {
		return err
	}
	before, applied, err := c.logIndex(ctx, leader)
	if err != nil {
		return err
	}
	data, err := request(ctx, c.serverMachines[leader].ip(), http.MethodGet, "/v1/kv/?recurse&consistent", nil)
	if err != nil {
		return err
	}
	final := checker.Final{Index: before}
	if err := json.Unmarshal(data, &final.Keys); err != nil {
		return err
	}
	after, _, err := c.logIndex(ctx, leader)
	if err != nil || after != before || applied != before {
		return errors.Join(err, fmt.Errorf("the log goes on: %d, %d, %d", before, applied, after))
	}
	for i := range c.servers {
		if last, _, err := c.logIndex(ctx, i); err != nil || last < before {
			return errors.Join(err, fmt.Errorf("%s has the log up to %d of %d", serverName(i), last, before))
		}
	}
	out, err := json.Marshal(final)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(c.cfg.dir, checker.FinalFile), out, 0o600)
}
