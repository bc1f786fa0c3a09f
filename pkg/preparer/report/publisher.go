package report

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/rcfarm/rcfarm/pkg/obs"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/preparer/loop"
	"github.com/rcfarm/rcfarm/pkg/store"
	"github.com/rcfarm/rcfarm/pkg/wait"
)

const (
	// coalesce is the wait after a change, because more changes often follow at once.
	coalesce = 20 * time.Millisecond
	// writeTries is for one reality that another program changes meanwhile.
	writeTries = 3
)

// Realities reads and writes the realities of the node's pods.
type Realities interface {
	WriteRealities(ctx context.Context, writes ...store.RealityWrite) (index uint64, err error)
	DeleteReality(ctx context.Context, before pod.Reality, id pod.Identity, index uint64) error
	Reality(ctx context.Context, id pod.Identity) (store.Rec[pod.Reality], error)
	ListRealities(ctx context.Context) ([]store.Rec[pod.Reality], []error, error)
}

// Publisher writes the board's realities to Consul. It sends one transaction after the other, because a preparer has
// few connections (P8).
type Publisher struct {
	Board   *Board
	Store   Realities
	Limiter *loop.LogLimiter
	Log     obs.Logger
	Wrote   func() // called for each reality that was written

	Epoch func() string // returns the cluster's epoch, as this node knows it
	// Complete reports whether the board has all realities that matter. available: Consul has the pod as available.
	Complete  func(available func(pod.Identity) bool) bool
	Confirmed func() // called when WrittenIn becomes true for an epoch

	// between two reads of the stored realities, which have no watch; plus or minus half
	RelistEvery time.Duration
	NewPace     func() *backoff.ExponentialBackOff // of retries

	Relist  wait.Signal // the stored realities must be read again
	Renewed wait.Signal // a write can succeed now
	Lost    wait.Signal // raised when only taking the node's lock can show whether session or record are gone

	// Only Run uses these.
	stored   map[pod.Identity]store.Rec[pod.Reality] // in Consul as last read or written
	listed   world                                   // the world when stored was read
	relistAt time.Time                               // when to read stored again

	doubts atomic.Int64          // how often Doubt was called
	world  atomic.Pointer[world] // in which all was written, see WrittenIn; nil: none
}

// world identifies a period in which only this preparer writes the node's realities. When it changes, Consul may have
// others than this node has written.
type world struct {
	epoch  string
	doubts int64
}

func (p *Publisher) now(epoch string) world { return world{epoch: epoch, doubts: p.doubts.Load()} }

// Doubt is called when the node's lock was taken or lost, because another preparer may have written meanwhile.
func (p *Publisher) Doubt() { p.doubts.Add(1) }

// WrittenIn reports whether Consul's realities are right under this epoch: they were read after this node knew the
// epoch and held its lock, and then all differences were written. A reality that Consul will never accept does not
// matter, because one bad record must not keep the node from reporting.
func (p *Publisher) WrittenIn(epoch string) bool {
	in := p.world.Load()
	return in != nil && *in == p.now(epoch)
}

func (p *Publisher) confirm(in world) {
	if before := p.world.Swap(&in); before == nil || *before != in {
		p.Confirmed()
	}
}

func (p *Publisher) available(id pod.Identity) bool {
	rec, found := p.stored[id]
	return found && rec.Value.Available
}

type pendingWrite struct {
	id      pod.Identity
	reality pod.Reality
	erase   bool
	stop    uint64 // index of the pod's present intent if this intent is `stopped` or `standby`
}

func (p *pendingWrite) over(stored store.Rec[pod.Reality]) store.RealityWrite {
	return store.RealityWrite{Reality: p.reality, Index: stored.Index, Before: stored.Value, StopIndex: p.stop}
}

// Run writes realities until ctx ends, and returns the cause.
func (p *Publisher) Run(ctx context.Context) error {
	const key = "realities"
	pace := p.NewPace()
	for {
		err := p.look(ctx)
		pause, wake := time.Until(p.relistAt), p.Board.Changed
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err != nil:
			p.Limiter.Report(key, "realities cannot be written", err)
			pause, wake = pace.NextBackOff(), nil
			if errors.Is(err, store.ErrLost) {
				p.Lost.Raise() // only a try to take the lock shows whether session or record is gone
			}
		default:
			p.Limiter.Over(key)
			pace.Reset()
		}
		select {
		case <-ctx.Done():
		case <-wake:
			_ = wait.Pause(ctx, coalesce) // the check below sees the end of ctx
		case <-p.Relist:
			p.relistAt = time.Now()
		case <-p.Renewed:
		case <-time.After(pause):
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
}

func (p *Publisher) look(ctx context.Context) error {
	if now := p.now(p.Epoch()); now != p.listed || !time.Now().Before(p.relistAt) {
		if err := p.list(ctx); err != nil {
			return err
		}
		p.listed, p.relistAt = now, time.Now().Add(p.RelistEvery/2+rand.N(p.RelistEvery))
	}
	complete := p.Complete(p.available)
	err := p.pass(ctx)
	if complete && (err == nil || refusedForItself(err)) {
		p.confirm(p.listed)
	}
	return err
}

// list omits records that cannot be parsed; write reads their index.
func (p *Publisher) list(ctx context.Context) error {
	recs, corrupt, err := p.Store.ListRealities(ctx)
	if err != nil {
		return err
	}
	for _, err := range corrupt {
		p.Log.WithField(obs.Error, err).Warn("reality unreadable; it is written anew when its pod has one")
	}
	p.stored = make(map[pod.Identity]store.Rec[pod.Reality], len(recs))
	for _, rec := range recs {
		p.stored[rec.Value.Identity] = rec
	}
	return nil
}

// pass writes all differences. After an error about one record it continues with the others.
func (p *Publisher) pass(ctx context.Context) error {
	alone, failed := p.writeTogether(ctx, p.Board.due(p.stored))
	if failed != nil {
		return failed
	}
	for _, r := range alone {
		err := p.write(ctx, r)
		switch {
		case err == nil && r.erase:
			p.Board.Changed.Raise() // the next pass marks it as erased
		case err == nil:
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case errors.Is(err, store.ErrLost):
			return err
		case aboutRecord(err):
			failed = errors.Join(failed, err)
		default:
			return err
		}
	}
	return failed
}

// writeTogether writes many realities in one transaction. alone: deletions, single realities, and the realities of a
// transaction that failed because of one record.
func (p *Publisher) writeTogether(ctx context.Context, due []pendingWrite) (alone []pendingWrite, err error) {
	var together []pendingWrite
	for _, r := range due {
		if r.erase {
			alone = append(alone, r)
		} else {
			together = append(together, r)
		}
	}
	for len(together) > 0 {
		writes := make([]store.RealityWrite, len(together))
		for i := range together {
			writes[i] = together[i].over(p.stored[together[i].id])
		}
		writes = writes[:store.Together(writes)]
		some := together[:len(writes)]
		together = together[len(writes):]
		if len(some) == 1 {
			alone = append(alone, some...)
			continue
		}
		index, err := p.Store.WriteRealities(ctx, writes...)
		switch {
		case err == nil:
			for _, r := range some {
				p.wrote(r, index)
			}
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case errors.Is(err, store.ErrUnknown):
			if listErr := p.list(ctx); listErr != nil {
				return nil, fmt.Errorf("%d realities: %w; read them again: %w", len(some), err, listErr)
			}
			alone = append(alone, some...) // if the transaction was written after all, write finds nothing to do
		case errors.Is(err, store.ErrLost) || !aboutRecord(err):
			return nil, fmt.Errorf("%d realities: %w", len(some), err)
		default:
			alone = append(alone, some...)
		}
	}
	return alone, nil
}

// aboutRecord reports whether an error is about the written record, so that other writes may succeed.
func aboutRecord(err error) bool {
	return errors.Is(err, store.ErrConflict) || errors.Is(err, store.ErrTooLarge) || errors.Is(err, store.ErrInvalid) ||
		errors.Is(err, store.ErrRefused)
}

// refusedForItself reports whether Consul will never accept the record.
func refusedForItself(err error) bool {
	return (errors.Is(err, store.ErrTooLarge) || errors.Is(err, store.ErrInvalid) ||
		errors.Is(err, store.ErrRefused)) &&
		!errors.Is(err, store.ErrConflict) && !errors.Is(err, store.ErrLost)
}

func (p *Publisher) wrote(r pendingWrite, index uint64) {
	p.stored[r.id] = store.Rec[pod.Reality]{Value: r.reality, Index: index}
	p.Wrote()
}

// write carries out one write or deletion. After a conflict or an unknown outcome it writes with the index that it
// reads again, so that an earlier write that arrives late cannot replace a later one.
func (p *Publisher) write(ctx context.Context, r pendingWrite) error {
	var err error
	for range writeTries {
		rec, found := p.stored[r.id]
		switch {
		case r.erase && !found, !r.erase && found && sameReality(rec.Value, r.reality):
			return nil
		case r.erase:
			if err = p.Store.DeleteReality(ctx, rec.Value, r.id, rec.Index); err == nil {
				delete(p.stored, r.id)
			}
		default:
			var index uint64
			if index, err = p.Store.WriteRealities(ctx, r.over(rec)); err == nil {
				p.wrote(r, index)
			}
		}
		if !errors.Is(err, store.ErrConflict) && !errors.Is(err, store.ErrUnknown) {
			break
		}
		// The intent may have changed. An unneeded drop only makes the owner look again.
		r.stop = 0
		if readErr := p.reread(ctx, r.id); readErr != nil {
			return fmt.Errorf("%w; read it again: %w", err, readErr)
		}
	}
	if err != nil {
		return fmt.Errorf("reality of %s: %w", r.id, err)
	}
	return nil
}

func (p *Publisher) reread(ctx context.Context, id pod.Identity) error {
	rec, err := p.Store.Reality(ctx, id)
	var corrupt *store.CorruptError
	switch {
	case errors.Is(err, store.ErrNotFound):
		delete(p.stored, id)
		return nil
	case errors.As(err, &corrupt):
		rec.Value = pod.Reality{Available: true} // assume the worst, because the record cannot be parsed
	case err != nil:
		return err
	}
	p.stored[id] = rec
	return nil
}
