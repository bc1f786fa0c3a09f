package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/rcfarm/rcfarm/integration/cluster"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// A machine that is away for long: pods of ordered groups that run there stop by themselves, and their indices are given up for that.

// away is long enough for it: up to 10 s until the machine is known to be lost, 2 s of their node_loss.after, the sum of stopAfter, and what a
// new owner waits that has not seen all of it.
func away(ttl time.Duration) time.Duration { return ttl + ttl/2 + 46*time.Second }

const (
	longerAway   = 40 * time.Second // for how much longer the machine is away at most, until it has happened
	awayPatience = 30 * time.Second // until there is something that can happen
	awayWorth    = 2                // pods that stop by themselves, on the machine
)

// hostAway takes the machine with the most such pods off the network, or stops its agent: for longer where indices wait yet, as where farms were
// late to see the loss.
func hostAway(ctx context.Context, c *chaos, rng *rand.Rand) (string, func(context.Context) error, error) {
	waiting, cancel := context.WithTimeout(ctx, awayPatience)
	defer cancel()
	_ = cluster.Until(waiting, func() error { return c.worthAway(waiting) }) // it is a fault without that, too
	p := c.hosts[0]
	for _, other := range c.hosts {
		if c.runStopping(other.on.name) > c.runStopping(p.on.name) {
			p = other
		}
	}
	name, undo, err := p.on.name, p.on.heal, error(nil)
	if rng.IntN(2) == 0 {
		err = p.on.cut(ctx)
	} else {
		_, undo, err = paused(p)
	}
	return name, func(undoing context.Context) error {
		limited, cancel := context.WithTimeout(ctx, longerAway)
		defer cancel()
		_ = cluster.Until(limited, func() error { return c.givenUp(limited, name) }) // the checker counts how many were
		return undo(undoing)
	}, err
}

// runStopping returns how many pods run on a machine that stop by themselves.
func (c *chaos) runStopping(host string) (n int) {
	for _, node := range c.nodes {
		if node.host != host {
			continue
		}
		for _, in := range node.Running() {
			if _, stops := c.stopsAfter(in.Digest); stops {
				n++
			}
		}
	}
	return n
}

// worthAway says why no index would be given up if a machine were away: too few pods that stop by themselves run on each, or nodes have not said what
// they run since the store went back in time, so that nobody knows what else they run.
func (c *chaos) worthAway(ctx context.Context) error {
	most := 0
	for _, p := range c.hosts {
		most = max(most, c.runStopping(p.on.name))
	}
	if most < awayWorth {
		return errors.New("too few pods stop by themselves")
	}
	st := c.stores[rand.IntN(servers)]
	schema, err := st.EnsureSchema(ctx)
	if err != nil {
		return err
	}
	recs, _, err := st.Nodes.List(ctx, store.Default)
	for _, r := range recs {
		if r.Value.Epoch != schema.Value.Epoch || r.Session == "" {
			err = fmt.Errorf("%s has not spoken", r.Value.Name)
		}
	}
	return err
}

// givenUp says which index waits yet for its copy on a machine that is lost to have stopped by itself.
func (c *chaos) givenUp(ctx context.Context, host string) error {
	placed, _, err := c.stores[rand.IntN(servers)].Pods.List(ctx, store.Default)
	if err != nil {
		return err
	}
	for _, n := range c.nodes {
		for _, p := range placed {
			_, stops := c.stopsAfter(p.Value.Digest)
			if n.host == host && p.Value.Node == n.Record.Name && p.Value.LostSince != nil && stops {
				return fmt.Errorf("%s waits for %s", p.Value.Identity, n.Record.Name)
			}
		}
	}
	return nil
}
