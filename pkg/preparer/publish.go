package preparer

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/rcfarm/rcfarm/pkg/obs"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/preparer/loop"
	"github.com/rcfarm/rcfarm/pkg/store"
)

const (
	// coalesce is how long a change waits for others of the same pod, which it is then written with.
	coalesce = 20 * time.Millisecond
	// writeTries bounds how often one reality is written again after somebody else changed it.
	writeTries = 3
)

// publisher writes realities, many in one transaction where many have changed, and one transaction after the other: a preparer
// has few connections (P8). stored is what Consul has, as last read or written.
type publisher struct {
	*serving
	stored map[pod.Identity]store.Rec[pod.Reality]
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

// publishRealities makes the stored realities those of the local pods, until ctx ends. Nothing watches the stored ones,
// so they are read again now and then.
func (s *serving) publishRealities(ctx context.Context) error {
	const key = "realities"
	pub := &publisher{serving: s}
	pace := backoff.NewExponentialBackOff()
	pace.InitialInterval, pace.MaxInterval = s.cfg.RetryMin, min(s.cfg.RetryMax, 5*time.Second)
	relistAt := time.Now()
	for {
		var err error
		if !time.Now().Before(relistAt) {
			if err = pub.list(ctx); err == nil {
				relistAt = time.Now().Add(s.cfg.RelistEvery/2 + rand.N(s.cfg.RelistEvery))
			}
		}
		if err == nil {
			err = pub.pass(ctx)
		}
		wait, wake := time.Until(relistAt), s.publish
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err != nil:
			s.trouble.Report(key, "realities cannot be written", err)
			wait, wake = pace.NextBackOff(), nil
			if errors.Is(err, store.ErrLost) {
				s.recheck.Raise() // only taking the lock can tell whether the session or the record is gone
			}
		default:
			s.trouble.Over(key)
			pace.Reset()
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
		case <-wake:
			_ = loop.Pause(ctx, coalesce) // the loop sees the context's end
		case <-s.relist:
			relistAt = time.Now()
		case <-s.renewed:
		case <-timer.C:
		}
		timer.Stop()
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
}

// list reads what Consul has. A record that cannot be read counts as missing; writing it finds its index.
func (pub *publisher) list(ctx context.Context) error {
	recs, corrupt, err := pub.tenure.ListRealities(ctx)
	if err != nil {
		return err
	}
	for _, err := range corrupt {
		pub.log.WithField(obs.Error, err).Warn("reality unreadable; it is written anew when its pod has one")
	}
	pub.stored = make(map[pod.Identity]store.Rec[pod.Reality], len(recs))
	for _, rec := range recs {
		pub.stored[rec.Value.Identity] = rec
	}
	pub.Preparer.mu.Lock()
	defer pub.Preparer.mu.Unlock()
	for _, e := range pub.pods {
		rec, found := pub.stored[e.id]
		if found && e.reality != nil && !e.since && rec.Value.State == e.reality.State {
			e.reality.Since = rec.Value.Since // it was in this state before the preparer was restarted
		}
	}
	return nil
}

// pass writes everything that differs. It goes on after a failure that is about one record only.
func (pub *publisher) pass(ctx context.Context) error {
	alone, failed := pub.writeTogether(ctx, pub.due())
	if failed != nil {
		return failed
	}
	for _, r := range alone {
		err := pub.write(ctx, r)
		switch {
		case err == nil && r.erase:
			pub.erased(r.id)
		case err == nil:
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case errors.Is(err, store.ErrLost):
			return err
		case aboutRecord(err):
			failed = err
		default:
			return err
		}
	}
	return failed
}

// writeTogether writes realities many at a time and returns what has to be written alone: what is to be erased, a single one,
// and all of a transaction that failed because of a record, for each finds out by itself whether it is the one.
func (pub *publisher) writeTogether(ctx context.Context, due []pendingWrite) (alone []pendingWrite, err error) {
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
		index, err := pub.tenure.WriteRealities(ctx, writes...)
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
	return errors.Is(err, store.ErrConflict) || errors.Is(err, store.ErrTooLarge) || errors.Is(err, store.ErrRefused)
}

// wrote notes that Consul has a reality, and at what index.
func (pub *publisher) wrote(r pendingWrite, index uint64) {
	pub.stored[r.id] = store.Rec[pod.Reality]{Value: r.reality, Index: index}
	pub.cfg.Metrics.wrote()
}

// erased notes that Consul has no reality of a pod any more.
func (pub *publisher) erased(id pod.Identity) {
	pub.Preparer.mu.Lock()
	defer pub.Preparer.mu.Unlock()
	if e := pub.pods[id]; e != nil {
		e.erased = e.erase
	}
}

// due returns what differs from what Consul has.
func (pub *publisher) due() []pendingWrite {
	p := pub.Preparer
	p.mu.Lock()
	defer p.mu.Unlock()
	var writes []pendingWrite
	for id, e := range p.pods {
		rec, found := pub.stored[id]
		switch {
		case e.erase && !found:
			e.erased = true
		case e.erase:
			writes = append(writes, pendingWrite{id: id, erase: true})
		case e.reality != nil && !(found && sameReality(rec.Value, *e.reality)):
			writes = append(writes, pendingWrite{id: id, reality: *e.reality, stop: p.world.Stops[id]})
		}
	}
	if !p.contact.Informed() {
		return writes
	}
	for id, rec := range pub.stored {
		_, asked := p.world.Intents[id]
		// The node forgot the pod along with its disk; that it was stopped concerns nobody any more.
		if p.pods[id] == nil && !asked && !p.world.Unreadable[id] && rec.Value.State == pod.StateStopped {
			writes = append(writes, pendingWrite{id: id, erase: true})
		}
	}
	return writes
}

// write carries one write out. After an outcome that is not known the record is read again: the index keeps a write that
// lingers from landing over a later one.
func (pub *publisher) write(ctx context.Context, r pendingWrite) error {
	var err error
	for range writeTries {
		rec, found := pub.stored[r.id]
		switch {
		case r.erase && !found, !r.erase && found && sameReality(rec.Value, r.reality):
			return nil
		case r.erase:
			if err = pub.tenure.DeleteReality(ctx, rec.Value, r.id, rec.Index); err == nil {
				delete(pub.stored, r.id)
			}
		default:
			var index uint64
			if index, err = pub.tenure.WriteRealities(ctx, r.over(rec)); err == nil {
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

func (pub *publisher) reread(ctx context.Context, id pod.Identity) error {
	rec, err := pub.tenure.Reality(ctx, id)
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

// sameReality writes whether two realities say the same. Since is left out: it belongs to the state.
func sameReality(a, b pod.Reality) bool {
	if (a.LastExit == nil) != (b.LastExit == nil) {
		return false
	}
	if a.LastExit != nil {
		x, y := *a.LastExit, *b.LastExit
		if !x.At.Equal(y.At) {
			return false
		}
		if y.At = x.At; x != y {
			return false
		}
	}
	a.LastExit, b.LastExit = nil, nil
	a.Since = b.Since
	return a == b
}
