package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"

	"github.com/rcfarm/rcfarm/integration/checker"
	"github.com/rcfarm/rcfarm/integration/cluster"
	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// spoilt remembers the overwritten values. Each bad value is unique, so its good one is found even if a restore brings
// the bad one back.
type spoilt struct {
	mu  sync.Mutex
	was map[string][]byte // good values, by the bad value that replaced them
}

// replace returns a new bad value for a record. If the record has a bad value already, replace remembers the good value
// before it.
func (s *spoilt) replace(good []byte, rng *rand.Rand) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.was == nil {
		s.was = map[string][]byte{}
	}
	if first, is := s.was[string(good)]; is {
		good = first
	}
	mark := fmt.Sprintf("%s-%d", checker.HostileMark, len(s.was))
	bad := strings.ReplaceAll(badAnything[rng.IntN(len(badAnything))], "MARK", mark)
	s.was[bad] = good
	return bad
}

func (s *spoilt) good(value []byte) (good []byte, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	good, ok = s.was[string(value)]
	return good, ok
}

// recordGarbage spoils a controller's record, or one of its placements, and mends it later.
func recordGarbage(ctx context.Context, c *chaos,
	rng *rand.Rand,
) (key string, undo func(context.Context) error, err error) {
	limited, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	err = cluster.Until(limited, func() error { // try again, because others write the record, too
		key, err = c.spoil(limited, rng)
		return err
	})
	return key, func(ctx context.Context) error {
		return cluster.Until(ctx, func() error { return c.mend(ctx) })
	}, err
}

func (c *chaos) spoil(ctx context.Context, rng *rand.Rand) (key string, err error) {
	key, err = c.someRecord(ctx, rng)
	if err != nil {
		return "", err
	}
	pair, err := c.anyClient().Get(ctx, key, consul.Consistent)
	if err != nil {
		return key, err
	}
	bad := c.spoilt.replace(pair.Value, rng)
	_, err = c.anyClient().Commit(ctx, []consul.Op{consul.CAS(key, []byte(bad), pair.ModifyIndex)})
	return key, err
}

// someRecord chooses placements more often, because many controllers have none.
func (c *chaos) someRecord(ctx context.Context, rng *rand.Rand) (key string, err error) {
	r, err := c.someController(ctx, rng)
	if err != nil {
		return "", err
	}
	if rng.IntN(3) > 0 {
		placed, _, err := c.stores[rng.IntN(servers)].Pods.List(ctx, store.Default, r.ID)
		if err != nil {
			return "", err
		}
		if len(placed) > 0 {
			return c.keys.Pods.Key(placed[rng.IntN(len(placed))].Value.Identity.String()), nil
		}
	}
	return c.keys.RCs.Key(r.ID), nil
}

// mend restores every spoilt record, and rings its controller's bell.
func (c *chaos) mend(ctx context.Context) error {
	var errs []error
	for _, below := range []string{c.keys.RCs.Key(), c.keys.Pods.Key()} {
		pairs, err := c.anyClient().List(ctx, below, consul.Consistent)
		errs = append(errs, err)
		for _, p := range pairs {
			good, is := c.spoilt.good(p.Value)
			if !is {
				continue
			}
			rcID, _, _ := strings.Cut(strings.TrimPrefix(p.Key, below), "/")
			_, err := c.anyClient().Commit(ctx, []consul.Op{consul.CAS(p.Key, good, p.ModifyIndex)})
			if err == nil {
				err = c.stores[rand.IntN(servers)].Ring(ctx, rcID)
			}
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
