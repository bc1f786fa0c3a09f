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

// wipeFault is the fault that deletes everything.
const wipeFault = "wipe"

// What is back after a wipe, and when.
const (
	wipedFor     = 3 * time.Second  // at most until an operator has found out
	wipePatience = 30 * time.Second // to delete, or to write back, before servers that hang are restarted
	wipeGivesUp  = 10 * time.Minute // such a run cannot be judged
)

// undisturbed is how long nothing else happens after a wipe: until everything must have been adopted.
func undisturbed(time.Duration) time.Duration { return checker.AdoptedWithin }

// wipe has an operator delete everything by mistake. The others' work rests until what ran must have been found again.
func wipe(ctx context.Context, c *chaos, rng *rand.Rand) (string, func(context.Context) error, error) {
	c.acting.Lock()
	what, err := c.deleteAll(ctx, upTo(rng, wipedFor))
	return what, func(context.Context) error { c.acting.Unlock(); return nil }, err
}

// deleteAll deletes everything, and after a while writes back what is desired from an export, as docs/runbook.md asks for. What has been
// begun is ended, whatever becomes of the run.
func (c *chaos) deleteAll(ctx context.Context, away time.Duration) (what string, err error) {
	export, err := c.export(ctx)
	if err == nil && len(export) == 0 {
		err = errors.New("there is nothing to write back")
	}
	if err != nil {
		return "", err
	}
	lasting, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), wipeGivesUp, errors.New("the store cannot be written"))
	defer cancel()
	event := checker.Event{Kind: checker.EventWipe, Call: time.Now().UnixNano()}
	schema := c.stores[0].Keys().Schema.Key()
	err = insist(lasting, wipePatience, func(ctx context.Context) error {
		return deleteOnce(ctx, store.DefaultPrefix, schema, export, c.anyClient())
	}, c.wake)
	wait(ctx, away)
	for _, p := range export {
		if err == nil {
			err = insist(lasting, wipePatience, func(ctx context.Context) error { return putBack(ctx, p, c.anyClient()) }, c.wake)
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

// untilBelled waits until each controller of an export has its bell, for as long as that may take: only then do farms know of it.
func (c *chaos) untilBelled(ctx context.Context, export []consul.Pair) {
	limited, cancel := context.WithTimeout(ctx, checker.BelledWithin)
	defer cancel()
	keys := c.stores[0].Keys()
	_ = cluster.Until(limited, func() error { // what is missing at the end is judged by the checker
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

// insist tries until it works or ctx ends. Each time that it has tried for longer than patience, help is called; if that fails, it tries
// all the same.
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

// records is what a wipe uses of Consul.
type records interface {
	List(ctx context.Context, prefix string, consistency consul.Consistency) ([]consul.Pair, error)
	Commit(ctx context.Context, ops []consul.Op) (map[string]uint64, error)
}

// deleteOnce deletes everything below a prefix, in which the schema is. It may be tried again after any failure: what was sent before and arrives late is refused,
// because the schema that it speaks of is gone, and an earlier try that worked is seen by what is not there any more.
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

// putBack writes a record back, unless it is there. It may be tried again after any failure.
func putBack(ctx context.Context, p consul.Pair, in records) error {
	_, err := in.Commit(ctx, []consul.Op{consul.CAS(p.Key, p.Value, 0)})
	if errors.Is(err, consul.ErrRefused) {
		return nil
	}
	return err
}

// export returns what operators desire: controllers, their names and manifests, and what services are. Rollouts under way are not among it.
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
			if !strings.HasSuffix(p.Key, "/") { // markers are the farms' own
				out = append(out, p)
			}
		}
	}
	return out, nil
}
