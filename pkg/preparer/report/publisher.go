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
	// coalesce is how long a change waits for others of the same pod, which it is then written with.
	coalesce = 20 * time.Millisecond
	// writeTries bounds how often one reality is written again after somebody else changed it.
	writeTries = 3
)

// Realities are what came of the node's pods, as Consul has it; *store.NodeSession are.
type Realities interface {
	WriteRealities(ctx context.Context, writes ...store.RealityWrite) (index uint64, err error)
	DeleteReality(ctx context.Context, before pod.Reality, id pod.Identity, index uint64) error
	Reality(ctx context.Context, id pod.Identity) (store.Rec[pod.Reality], error)
	ListRealities(ctx context.Context) ([]store.Rec[pod.Reality], []error, error)
}

// Publisher makes the stored realities those on the board, many in one transaction where many have changed, and one transaction after the
// other: a preparer has few connections (P8).
type Publisher struct {
	Board   *Board
	Store   Realities
	Limiter *loop.LogLimiter
	Log     obs.Logger
	Wrote   func() // is called for each reality that was written

	Epoch func() string // returns the cluster's epoch, as far as this node knows it
	// Complete reports whether the board has all pods that the node has, where those that Consul has as available matter.
	Complete  func(available func(pod.Identity) bool) bool
	Confirmed func() // is told that the realities are written under another epoch than before, see WrittenIn

	RelistEvery time.Duration                      // between two looks at what is stored, which nothing watches; spread by half
	NewPace     func() *backoff.ExponentialBackOff // of tries

	Relist  wait.Signal // what is stored must be read again
	Renewed wait.Signal // writes are worth a try
	Lost    wait.Signal // is raised when only taking the node's lock can tell whether session or record are gone

	// Only Run uses these.
	stored   map[pod.Identity]store.Rec[pod.Reality] // what Consul has, as last read or written
	listed   world                                   // as it was when that was read
	relistAt time.Time                               // when it is read again

	doubts atomic.Int64          // how often Doubt was called
	world  atomic.Pointer[world] // see WrittenIn; nil: none
}

// world is what realities are written in: after a change of it Consul may have others than this node wrote.
type world struct {
	epoch  string
	doubts int64
}

func (pub *Publisher) now(epoch string) world { return world{epoch: epoch, doubts: pub.doubts.Load()} }

// Doubt says that another preparer may have written realities, because the node's lock was not held.
func (pub *Publisher) Doubt() { pub.doubts.Add(1) }

// WrittenIn reports whether the stored realities were read after this node knew the epoch and had its lock, and what
// differed was written. With a new epoch the store may have gone back, and the realities with it: farms must not believe
// those of then. A reality that Consul refuses for itself counts as written, because one bad record must not silence the
// node.
func (pub *Publisher) WrittenIn(epoch string) bool {
	in := pub.world.Load()
	return in != nil && *in == pub.now(epoch)
}

// confirm notes that the realities are written.
func (pub *Publisher) confirm(in world) {
	if before := pub.world.Swap(&in); before == nil || *before != in {
		pub.Confirmed()
	}
}

// available reports whether Consul has a pod as available.
func (pub *Publisher) available(id pod.Identity) bool {
	rec, found := pub.stored[id]
	return found && rec.Value.Available
}

// pendingWrite is one reality that should be in Consul, or should not.
type pendingWrite struct {
	id      pod.Identity
	reality pod.Reality
	erase   bool
	stop    uint64 // index of the pod's present intent if it says `stopped` or `standby`
}

// over returns what is to be written over what Consul has.
func (r *pendingWrite) over(stored store.Rec[pod.Reality]) store.RealityWrite {
	return store.RealityWrite{Reality: r.reality, Index: stored.Index, Before: stored.Value, StopIndex: r.stop}
}

// Run writes until ctx ends, and returns its cause.
func (pub *Publisher) Run(ctx context.Context) error {
	const key = "realities"
	pace := pub.NewPace()
	for {
		err := pub.look(ctx)
		pause, wake := time.Until(pub.relistAt), pub.Board.Changed
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err != nil:
			pub.Limiter.Report(key, "realities cannot be written", err)
			pause, wake = pace.NextBackOff(), nil
			if errors.Is(err, store.ErrLost) {
				pub.Lost.Raise() // only taking the lock can tell whether the session or the record is gone
			}
		default:
			pub.Limiter.Over(key)
			pace.Reset()
		}
		select {
		case <-ctx.Done():
		case <-wake:
			_ = wait.Pause(ctx, coalesce) // the loop sees the context's end
		case <-pub.Relist:
			pub.relistAt = time.Now()
		case <-pub.Renewed:
		case <-time.After(pause):
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
}

// look writes what differs from what Consul has, which it reads first where that may have changed.
func (pub *Publisher) look(ctx context.Context) error {
	if now := pub.now(pub.Epoch()); now != pub.listed || !time.Now().Before(pub.relistAt) {
		if err := pub.list(ctx); err != nil {
			return err
		}
		pub.listed, pub.relistAt = now, time.Now().Add(pub.RelistEvery/2+rand.N(pub.RelistEvery))
	}
	complete := pub.Complete(pub.available)
	err := pub.pass(ctx)
	if complete && (err == nil || refusedForItself(err)) {
		pub.confirm(pub.listed)
	}
	return err
}

// list reads what Consul has. A record that cannot be read counts as missing; writing it finds its index.
func (pub *Publisher) list(ctx context.Context) error {
	recs, corrupt, err := pub.Store.ListRealities(ctx)
	if err != nil {
		return err
	}
	for _, err := range corrupt {
		pub.Log.WithField(obs.Error, err).Warn("reality unreadable; it is written anew when its pod has one")
	}
	pub.stored = make(map[pod.Identity]store.Rec[pod.Reality], len(recs))
	for _, rec := range recs {
		pub.stored[rec.Value.Identity] = rec
	}
	return nil
}

// pass writes everything that differs. It goes on after a failure that is about one record only.
func (pub *Publisher) pass(ctx context.Context) error {
	alone, failed := pub.writeTogether(ctx, pub.Board.due(pub.stored))
	if failed != nil {
		return failed
	}
	for _, r := range alone {
		err := pub.write(ctx, r)
		switch {
		case err == nil && r.erase:
			pub.Board.Changed.Raise() // the next pass notes that it is gone
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

// writeTogether writes realities many at a time and returns what has to be written alone: what is to be erased, a single one,
// and all of a transaction that failed because of a record, for each finds out by itself whether it is the one.
func (pub *Publisher) writeTogether(ctx context.Context, due []pendingWrite) (alone []pendingWrite, err error) {
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
			writes[i] = together[i].over(pub.stored[together[i].id])
		}
		writes = writes[:store.Together(writes)]
		some := together[:len(writes)]
		together = together[len(writes):]
		if len(some) == 1 {
			alone = append(alone, some...)
			continue
		}
		index, err := pub.Store.WriteRealities(ctx, writes...)
		switch {
		case err == nil:
			for _, r := range some {
				pub.wrote(r, index)
			}
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case errors.Is(err, store.ErrUnknown):
			if listErr := pub.list(ctx); listErr != nil {
				return nil, fmt.Errorf("%d realities: %w; read them again: %w", len(some), err, listErr)
			}
			alone = append(alone, some...) // of which those that were written after all are not written again
		case errors.Is(err, store.ErrLost) || !aboutRecord(err):
			return nil, fmt.Errorf("%d realities: %w", len(some), err)
		default:
			alone = append(alone, some...)
		}
	}
	return alone, nil
}

// aboutRecord reports whether an error is about what is written, so that other writes may do better.
func aboutRecord(err error) bool {
	return errors.Is(err, store.ErrConflict) || errors.Is(err, store.ErrTooLarge) || errors.Is(err, store.ErrInvalid) || errors.Is(err, store.ErrRefused)
}

// refusedForItself reports whether an error says that Consul takes no such record, now or later.
func refusedForItself(err error) bool {
	return (errors.Is(err, store.ErrTooLarge) || errors.Is(err, store.ErrInvalid) || errors.Is(err, store.ErrRefused)) &&
		!errors.Is(err, store.ErrConflict) && !errors.Is(err, store.ErrLost)
}

// wrote notes that Consul has a reality, and at what index.
func (pub *Publisher) wrote(r pendingWrite, index uint64) {
	pub.stored[r.id] = store.Rec[pod.Reality]{Value: r.reality, Index: index}
	pub.Wrote()
}

// write carries one write out. After an outcome that is not known the record is read again: the index keeps a write that
// lingers from landing over a later one.
func (pub *Publisher) write(ctx context.Context, r pendingWrite) error {
	var err error
	for range writeTries {
		rec, found := pub.stored[r.id]
		switch {
		case r.erase && !found, !r.erase && found && sameReality(rec.Value, r.reality):
			return nil
		case r.erase:
			if err = pub.Store.DeleteReality(ctx, rec.Value, r.id, rec.Index); err == nil {
				delete(pub.stored, r.id)
			}
		default:
			var index uint64
			if index, err = pub.Store.WriteRealities(ctx, r.over(rec)); err == nil {
				pub.wrote(r, index)
			}
		}
		if !errors.Is(err, store.ErrConflict) && !errors.Is(err, store.ErrUnknown) {
			break
		}
		r.stop = 0 // it may be the intent that has changed; what is counted without need only makes the owner look again
		if readErr := pub.reread(ctx, r.id); readErr != nil {
			return fmt.Errorf("%w; read it again: %w", err, readErr)
		}
	}
	if err != nil {
		return fmt.Errorf("reality of %s: %w", r.id, err)
	}
	return nil
}

func (pub *Publisher) reread(ctx context.Context, id pod.Identity) error {
	rec, err := pub.Store.Reality(ctx, id)
	var corrupt *store.CorruptError
	switch {
	case errors.Is(err, store.ErrNotFound):
		delete(pub.stored, id)
		return nil
	case errors.As(err, &corrupt):
		rec.Value = pod.Reality{Available: true} // as far as anybody knows
	case err != nil:
		return err
	}
	pub.stored[id] = rec
	return nil
}
