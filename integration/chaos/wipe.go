package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
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
	wipedFor  = 3 * time.Second  // at most until an operator has found out
	wipeLimit = 30 * time.Second // to delete and to write back
)

// undisturbed is how long nothing else happens after a wipe: until everything must have been adopted.
func undisturbed(time.Duration) time.Duration { return checker.AdoptedWithin }

// wipe has an operator delete everything by mistake. The others' work rests until what ran must have been found again.
func wipe(ctx context.Context, c *chaos, rng *rand.Rand) (string, func(context.Context) error, error) {
	c.acting.Lock()
	what, err := c.deleteAll(ctx, upTo(rng, wipedFor))
	return what, func(context.Context) error { c.acting.Unlock(); return nil }, err
}

// deleteAll deletes everything, and after a while writes back what is desired from an export, as docs/operating.md asks for.
func (c *chaos) deleteAll(ctx context.Context, away time.Duration) (what string, err error) {
	export, err := c.export(ctx)
	if err != nil {
		return "", err
	}
	// What has been begun is ended, whatever becomes of the run.
	limited, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), wipeLimit+wipedFor, errors.New("the store cannot be written"))
	defer cancel()
	event := checker.Event{Kind: checker.EventWipe, Call: time.Now().UnixNano()}
	err = cluster.Until(limited, func() error { return c.write(limited, consul.DeleteTree(store.DefaultPrefix)) })
	wait(ctx, away)
	for _, p := range export {
		if err == nil {
			err = cluster.Until(limited, func() error { return c.write(limited, consul.Set(p.Key, p.Value)) })
		}
	}
	event.At = time.Now().UnixNano()
	c.events.write(event)
	return fmt.Sprintf("%d records back after %s", len(export), away.Round(time.Millisecond)), err
}

// export returns what operators desire: controllers, their names and manifests.
func (c *chaos) export(ctx context.Context) (out []consul.Pair, err error) {
	for _, part := range []string{"manifests/", "names/", "rcs/"} {
		pairs, err := c.client[rand.IntN(servers)].List(ctx, store.DefaultPrefix+part, consul.Consistent)
		if err != nil {
			return nil, err
		}
		for _, p := range pairs {
			if !strings.HasSuffix(p.Key, "/") { // markers are the farms' own
				out = append(out, p)
			}
		}
	}
	return out, nil
}

func (c *chaos) write(ctx context.Context, op consul.Op) error {
	_, err := c.client[rand.IntN(servers)].Commit(ctx, []consul.Op{op})
	return err
}
