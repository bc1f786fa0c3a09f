package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/rcfarm/rcfarm/integration/checker"
	"github.com/rcfarm/rcfarm/integration/simnode"
	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// registerClients take locks through the farms' agents and write values under fences, by the farms' own code and under
// the same faults. The checker checks their history for linearizability.
const (
	registerClients = 3
	registerCount   = 2
	registerPause   = 150 * time.Millisecond
)

type registerClient struct {
	c      *chaos
	n      int
	client *consul.Client
	rng    *rand.Rand
	values int
}

// startRegisters starts clients that use the registers until disturbed ends.
func (c *chaos) startRegisters(ctx, disturbed context.Context, group *errgroup.Group) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	for n := range registerClients {
		group.Go(func() error {
			client, err := connect(c.agents[n%farms].on, 0)
			if err != nil {
				return err
			}
			r := &registerClient{c: c, n: n, client: client, rng: newRand(c.cfg.seed, 100+uint64(n))}
			cfg := consul.SessionConfig{
				Kind: "register", Name: fmt.Sprint(n),
				TTL: c.cfg.ttl, Journal: &simnode.Journal{},
			}
			err = client.RunSession(ctx, cfg, func(ctx context.Context, s *consul.Session) error {
				return r.use(ctx, disturbed, s)
			})
			if errors.Is(err, context.Canceled) {
				return nil
			}
			return err
		})
	}
	return cancel
}

func (r *registerClient) use(ctx, disturbed context.Context, s *consul.Session) error {
	for wait(ctx, upTo(r.rng, registerPause)) && disturbed.Err() == nil {
		if err := r.turn(ctx, s); err != nil {
			return err
		}
	}
	<-ctx.Done()
	return context.Cause(ctx)
}

// turn takes a register, writes to it, and releases it. If another client holds it, turn reads it.
func (r *registerClient) turn(ctx context.Context, s *consul.Session) error {
	// A restore takes registers back. So it waits for the end of a turn, and clients then use other registers.
	r.c.keeping.RLock()
	defer r.c.keeping.RUnlock()
	name := fmt.Sprintf("%d-%d", r.c.epoch, r.rng.IntN(registerCount))
	lock := "register/lock-" + name
	f, err := r.acquire(ctx, name, lock, s.Releasing)
	if _, locked := store.LockedBy(err); locked {
		r.read(ctx, name)
		return nil
	}
	if err != nil {
		return err
	}
	for range 1 + r.rng.IntN(6) {
		if !wait(ctx, upTo(r.rng, registerPause)) {
			return context.Cause(ctx)
		}
		if err := r.put(ctx, name, f); errors.Is(err, consul.ErrRefused) {
			return nil // another client has taken the lock
		} else if err != nil {
			if f, err = r.acquire(ctx, name, lock, s.Releasing); err != nil {
				return ignoreLocked(err)
			}
		}
		r.read(ctx, name)
	}
	_ = r.client.Locks.Release(ctx, f, []byte(store.NewID())) // the lock also ends with the session
	return nil
}

func ignoreLocked(err error) error {
	if _, locked := store.LockedBy(err); locked {
		return nil
	}
	return err
}

func (r *registerClient) note(op checker.LockOp) {
	op.Client = r.n
	op.Return = time.Now().UnixNano()
	r.c.events.write(checker.Event{At: op.Return, Kind: checker.EventLock, Lock: &op})
	r.c.report.operation("register "+op.Op+" "+op.Outcome, nil)
}

func (r *registerClient) acquire(ctx context.Context, name, lock, session string) (consul.Fence, error) {
	op := checker.LockOp{Key: name, Op: checker.LockAcquire, Outcome: checker.LockDone, Call: time.Now().UnixNano()}
	f, err := r.client.Locks.Acquire(ctx, lock, session, func() []byte { return []byte(store.NewID()) })
	if err == nil {
		op.Fence = f.Index
		r.note(op)
	}
	return f, err
}

func (r *registerClient) put(ctx context.Context, name string, f consul.Fence) error {
	r.values++
	op := checker.LockOp{
		Key: name, Op: checker.LockWrite, Fence: f.Index, Value: fmt.Sprintf("%d.%d", r.n, r.values),
		Outcome: checker.LockDone, Call: time.Now().UnixNano(),
	}
	_, err := r.client.Commit(ctx, append(f.Ops(), consul.Set("register/value-"+name, []byte(op.Value))))
	switch {
	case errors.Is(err, consul.ErrRefused):
		op.Outcome = checker.LockRefused
	case err != nil:
		op.Outcome = checker.LockUnknown
	}
	r.note(op)
	return err
}

func (r *registerClient) read(ctx context.Context, name string) {
	op := checker.LockOp{Key: name, Op: checker.LockRead, Outcome: checker.LockDone, Call: time.Now().UnixNano()}
	pair, err := r.c.client[r.rng.IntN(servers)].Get(ctx, "register/value-"+name, consul.Consistent)
	if err == nil || errors.Is(err, consul.ErrNotFound) {
		op.Value = string(pair.Value)
		r.note(op)
	}
}
