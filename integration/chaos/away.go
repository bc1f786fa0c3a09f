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

// The fault host-away takes a machine away until its ordered pods stop by themselves and farms give up their indices.

// away is long enough for that: up to 10 s until the machine is known to be lost, 2 s of node_loss.after, the sum (see
// stopAfter), and the longer wait of a new owner that has not seen all of that time.
func away(ttl time.Duration) time.Duration { return ttl + ttl/2 + 46*time.Second }

const (
	longerAway   = 40 * time.Second // how much longer the machine is away at most, until the indices are given up
	awayPatience = 30 * time.Second // how long to wait until a machine has awayWorth such pods
	awayWorth    = 2                // pods that stop by themselves on a machine that is worth it
)

// hostAway cuts off the machine with the most pods that stop by themselves, or pauses its agent. It takes longer if
// farms noticed the loss late.
func hostAway(ctx context.Context, c *chaos, rng *rand.Rand) (string, func(context.Context) error, error) {
	waiting, cancel := context.WithTimeout(ctx, awayPatience)
	defer cancel()
	_ = cluster.Until(waiting, func() error { return c.worthAway(waiting) }) // without such pods it is still a fault
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
		_ = cluster.Until(limited, func() error { return c.givenUp(limited, name) }) // the checker counts them
		return undo(undoing)
	}, err
}

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

// worthAway returns an error if farms would give up no index: too few pods that stop by themselves run on each machine,
// or some nodes have not reported since the store went back in time.
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

// givenUp returns an error while an index waits for its copy on a lost machine.
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
