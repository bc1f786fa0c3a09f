package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/rcfarm/rcfarm/integration/checker"
	"github.com/rcfarm/rcfarm/integration/cluster"
	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/store"
)

const wipeFault = "wipe"

const (
	wipedFor     = 3 * time.Second  // longest time until an operator notices the mistake
	wipePatience = 30 * time.Second // how long to try to delete or write back, before servers that hang are restarted
	wipeGivesUp  = 10 * time.Minute // when even this fails, the run cannot be judged
)

// undisturbed: no other fault comes until everything must be adopted.
func undisturbed(time.Duration) time.Duration { return checker.AdoptedWithin }

// wipe deletes everything by mistake. Other operators pause until everything that ran must be adopted.
func wipe(ctx context.Context, c *chaos, rng *rand.Rand) (string, func(context.Context) error, error) {
	c.acting.Lock()
	what, err := c.deleteAll(ctx, upTo(rng, wipedFor))
	return what, func(context.Context) error { c.acting.Unlock(); return nil }, err
}

// deleteAll deletes everything, and after a while writes the desired records back from an export, as docs/runbook.md
// describes, even if the run ends meanwhile.
func (c *chaos) deleteAll(ctx context.Context, away time.Duration) (what string, err error) {
	export, err := c.export(ctx)
	if err == nil && len(export) == 0 {
		err = errors.New("there is nothing to write back")
	}
	if err != nil {
		return "", err
	}
	lasting, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), wipeGivesUp,
		errors.New("the store cannot be written"))
	defer cancel()
	event := checker.Event{Kind: checker.EventWipe, Call: time.Now().UnixNano()}
	schema := c.stores[0].Keys().Schema.Key()
	err = insist(lasting, wipePatience, func(ctx context.Context) error {
		return deleteOnce(ctx, store.DefaultPrefix, schema, export, c.anyClient())
	}, c.wake)
	wait(ctx, away)
	for _, p := range export {
		if err == nil {
			err = insist(lasting, wipePatience, func(ctx context.Context) error {
				return putBack(ctx, p, c.anyClient())
			}, c.wake)
		}
	}
	event.At = time.Now().UnixNano()
	c.events.write(event)
	if err != nil {
		c.lost = fmt.Errorf("the records of a wipe are not back: %w", err)
	} else {
		c.untilBelled(ctx, export)
	}
	return fmt.Sprintf("%d records back after %s", len(export), away.Round(time.Millisecond)), err
}

// untilBelled waits until each controller of an export has its bell: without one, farms do not notice it.
func (c *chaos) untilBelled(ctx context.Context, export []consul.Pair) {
	limited, cancel := context.WithTimeout(ctx, checker.BelledWithin)
	defer cancel()
	keys := c.stores[0].Keys()
	_ = cluster.Until(limited, func() error { // the checker judges what is missing at the end
		for _, p := range export {
			id, isRC := strings.CutPrefix(p.Key, store.DefaultPrefix+"rcs/")
			if !isRC {
				continue
			}
			if _, err := c.anyClient().Get(limited, keys.Bells.Key(id), consul.Default); err != nil {
				return err
			}
		}
		return nil
	})
}

func (c *chaos) anyClient() *consul.Client { return c.client[rand.IntN(servers)] }

// insist calls try until it succeeds or ctx ends. Each time that try has failed for the length of patience, insist
// calls help. It continues even if help fails.
func insist(ctx context.Context, patience time.Duration, try, help func(context.Context) error) error {
	for {
		limited, cancel := context.WithTimeout(ctx, patience)
		err := cluster.Until(limited, func() error { return try(limited) })
		cancel()
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return fmt.Errorf("%w: %w", context.Cause(ctx), err)
		}
		_ = help(ctx)
	}
}

type records interface {
	List(ctx context.Context, prefix string, consistency consul.Consistency) ([]consul.Pair, error)
	Commit(ctx context.Context, ops []consul.Op) (map[string]uint64, error)
}

// deleteOnce deletes everything below a prefix on condition of the schema, and may be called again after any failure:
// Consul refuses a late request, because the schema is gone. If an earlier one has worked, the exported keys are gone.
func deleteOnce(ctx context.Context, prefix, schema string, export []consul.Pair, in records) error {
	there, err := in.List(ctx, prefix, consul.Consistent)
	if err != nil {
		return err
	}
	exported := map[string]bool{}
	for _, p := range export {
		exported[p.Key] = true
	}
	if !slices.ContainsFunc(there, func(p consul.Pair) bool { return exported[p.Key] }) {
		return nil // an earlier try worked
	}
	at := slices.IndexFunc(there, func(p consul.Pair) bool { return p.Key == schema })
	if at < 0 {
		return fmt.Errorf("%s is not there", schema)
	}
	_, err = in.Commit(ctx, []consul.Op{consul.CheckIndex(schema, there[at].ModifyIndex), consul.DeleteTree(prefix)})
	return err
}

// putBack writes a record unless it exists, so it may be called again after any failure.
func putBack(ctx context.Context, p consul.Pair, in records) error {
	_, err := in.Commit(ctx, []consul.Op{consul.CAS(p.Key, p.Value, 0)})
	if errors.Is(err, consul.ErrRefused) {
		return nil
	}
	return err
}

// export returns what operators desire: controllers, their names and manifests, and services. It leaves out rollouts.
func (c *chaos) export(ctx context.Context) (out []consul.Pair, err error) {
	for _, part := range []string{"deployments/", "manifests/", "names/", "rcs/"} {
		pairs, err := c.client[rand.IntN(servers)].List(ctx, store.DefaultPrefix+part, consul.Consistent)
		if err != nil {
			return nil, err
		}
		for _, p := range pairs {
			if good, is := c.spoilt.good(p.Value); is {
				p.Value = good
			}
			if !strings.HasSuffix(p.Key, "/") { // farms write the markers
				out = append(out, p)
			}
		}
	}
	return out, nil
}
