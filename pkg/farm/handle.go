package farm

import (
	"context"
	"errors"
	"time"

	"github.com/rcfarm/rcfarm/pkg/internal/contain"
	"github.com/rcfarm/rcfarm/pkg/obs"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// handle claims a unit if this farm should own it, looks at it, and decides when to look again.
func (f *Farm) handle(ctx context.Context, id string) {
	if ctx.Err() != nil {
		return
	}
	u, again, err := f.ownOrClaim(ctx, id)
	if err == nil && u != nil {
		if f.postponed(u) {
			return
		}
		again, err = f.lookUntilWritten(ctx, u)
	}
	switch {
	case err == nil:
		f.queue.Forget(id)
		f.lookAgain(id, u, again)
	case ctx.Err() != nil:
	case !f.doneWith(ctx, id, err):
		f.reportFailure(id, err)
		f.queue.AddRateLimited(id)
	}
}

// ownOrClaim is claimer.ownOrClaim with panics contained.
func (f *Farm) ownOrClaim(ctx context.Context, id string) (u *unit, again time.Duration, err error) {
	err = contain.Do(func() (err error) {
		u, again, err = f.claims.ownOrClaim(ctx, id)
		return err
	})
	if panicked := contain.Is(err); panicked != nil {
		u = nil // the claim may have taken the lock before it panicked; the next claim moves the fence
		f.cfg.Metrics.panics.Inc()
		f.log.WithField(obs.RCID, id).WithField(obs.Stack, panicked.Stack).Error("a claim of a unit panicked")
	}
	return u, again, err
}

// postponed reports whether a look at a unit is not due yet. The unit is in the queue again, unless only an event can
// make a look due.
func (f *Farm) postponed(u *unit) bool {
	if u.takenOver() && f.queue.Len() > 0 {
		// The units that wait may lack an owner, too. Claim them all before working on the first.
		f.queue.Add(u.id)
		return true
	}
	idle, left := u.idle(f.cache.rung(u.id))
	if !idle {
		left = u.holdOff(f.busy.Load(), f.waiting())
	}
	if left > 0 {
		f.queue.AddAfter(u.id, left)
	}
	return idle || left > 0
}

// lookAgain puts a unit into the queue after a look; u is nil if this farm does not own it. If again is zero, only an
// event does that.
func (f *Farm) lookAgain(id string, u *unit, again time.Duration) {
	if again <= 0 {
		return
	}
	again += f.backlog()
	if u != nil {
		u.looks.Again(again)
	}
	f.queue.AddAfter(id, again)
}

// doneWith reports whether this farm has no more work with the unit: it is gone, it was handed over, or the farm ends.
func (f *Farm) doneWith(ctx context.Context, id string, err error) bool {
	switch {
	case errors.Is(err, store.ErrWentBack):
		f.log.WithField(obs.RCID, id).WithError(err).Warn("a controller's records are older than before")
		f.startOver(f.cache.wentBack(ctx))
		return true
	case errors.Is(err, errHandedOver):
		f.claims.drop(id)
		f.roster.markOwnedElsewhere(id)
	case errors.Is(err, errRecordGone):
		f.claims.drop(id)
	default:
		return false
	}
	f.queue.Forget(id)
	return true
}

// reportFailure logs a failed look. If the lock is lost, it drops the unit.
func (f *Farm) reportFailure(id string, err error) {
	f.failureQueue.add(err)
	log := f.log.WithField(obs.RCID, id).WithError(err)
	switch {
	case errors.Is(err, store.ErrLost):
		// Another farm has the lock, or the session is dead, which the session's keeper notices.
		f.claims.drop(id)
		log.Warn("lost a unit")
	case store.Denied(err):
		log.Warn("the token may not write the records of a unit")
	case contain.Is(err) != nil:
		log.Error("unit cannot be worked on")
	case errors.Is(err, store.ErrRefused), errors.Is(err, store.ErrUnknown):
		log.Debug("pass did not land")
	default:
		log.Warn("pass failed")
	}
}

const lookTries = 4

// lookUntilWritten repeats a look at once if Consul refuses a write because another write came first. In the queue, the
// unit would wait for all other units.
func (f *Farm) lookUntilWritten(ctx context.Context, u *unit) (again time.Duration, err error) {
	f.busy.Add(1)
	defer f.busy.Add(-1)
	began := time.Now()
	defer func() { u.looks.Took(time.Since(began)) }()
	for range lookTries {
		started := time.Now()
		again, err = u.look(ctx)
		f.cfg.Metrics.passed(time.Since(started), err)
		if ctx.Err() != nil || !errors.Is(err, store.ErrRefused) || errors.Is(err, store.ErrLost) {
			break
		}
	}
	return again, err
}

// backlog estimates how long the workers need for the queue. A look without an event waits that much longer: it often
// only updates the status, and other units are more urgent.
func (f *Farm) backlog() time.Duration {
	return min(time.Duration(f.waiting())*time.Millisecond, time.Second)
}

// startOver ends the farm. The caller of Start begins again with a new session.
func (f *Farm) startOver(why error) {
	select {
	case f.fatal <- why:
	default: // another reason is already there
	}
}
