package farm

import (
	"context"
	"errors"
	"time"

	"github.com/rcfarm/rcfarm/pkg/internal/contain"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// troubled is when a unit is looked at again of which a controller cannot be worked on, unless something rings.
const troubled = 5 * time.Second

// look looks at a unit once: it reads all of it, and works on its controllers one after the other, each with what is so
// by then. A controller that cannot be worked on keeps none of the others waiting. It returns when to look again even
// if nothing rings.
func (u *unit) look(ctx context.Context) (again time.Duration, err error) {
	u.looks.Begin()
	if u.unsure {
		if err := u.bump(ctx); err != nil {
			return 0, err
		}
	}
	consistent := u.consistent
	u.consistent = false
	defer func() { u.consistent = u.consistent || consistent && err != nil }()
	v, err := u.read(ctx, consistent)
	if err != nil {
		return 0, err
	}
	bell := v.BellIndex
	if gone, err := u.settle(ctx, v); gone || err != nil {
		return 0, err
	}
	if left, err := u.leave(ctx, v); left || err != nil {
		return 0, err
	}
	if bell == 0 {
		// Without a bell nobody could tell us of a change, and no write could depend on there being none.
		return time.Millisecond, u.kit.writes.Ring(ctx, u.id)
	}
	again, waits, err := u.work(ctx, v, consistent)
	if u.waits = waits; err == nil {
		u.looks.Ended(bell)
	}
	return again, err
}

// rounds is how often one look makes a pass over each controller at most.
const rounds = 2

// work makes a pass over each controller of a unit, and the next step of its rollout from what these have found. After
// a step, and where a pass has made more possible, it does so once more, over the same view. What follows then is left
// to another look.
func (u *unit) work(ctx context.Context, v *view, consistent bool) (again time.Duration, waits bool, err error) {
	for range rounds {
		made, err := u.passes(ctx, &v, consistent)
		if err != nil {
			return 0, false, err
		}
		if v.Rollout.Index != 0 {
			if v, err = u.fresh(ctx, v, consistent); err != nil {
				return 0, false, errors.Join(made.failed, err)
			}
		}
		stepped, after, err := u.roll(ctx, v)
		if err = errors.Join(made.failed, err); err != nil || !stepped && !made.more {
			return soonest(made.again, after), made.waits && after == 0, err
		}
	}
	return time.Millisecond, false, nil
}

// passed is what a pass over a controller, or those over all of a unit, came to.
type passed struct {
	again  time.Duration // when to look again even if nothing rings; zero: not at all
	more   bool          // another pass may find more to do at once
	waits  bool          // one asked nodes for something, and for nothing else
	awaits bool          // one waits for other revisions of the service
	failed error         // of those that failed; the others went well, and so may the rollout
}

// passes makes a pass over each controller of a unit. It leaves the view that the last of them has seen. With an error
// nothing more can be done for the unit.
func (u *unit) passes(ctx context.Context, seen **view, consistent bool) (made passed, err error) {
	wrote := false
	v := *seen
	defer func() {
		if v != nil {
			*seen = v
		}
	}()
	for _, id := range v.IDs() {
		if v, err = u.fresh(ctx, v, consistent); err != nil {
			return passed{}, errors.Join(made.failed, err)
		}
		h := v.Heads[id]
		if h == nil || !h.Owned() {
			continue // what is left of it belongs to nobody
		}
		c := u.meet(id, h)
		before := v.writes
		one, err := c.look(ctx, v)
		made.more, made.waits, made.awaits = made.more || one.more, made.waits || one.waits, made.awaits || one.awaits
		wrote = wrote || v.stale || v.writes > before
		switch {
		case err == nil:
			made.again = soonest(made.again, one.again)
			u.kit.metrics.unreadable("rc/"+id, 0)
		case errors.Is(err, errRecordGone) && v.alone(id):
			return passed{}, err
		case errors.Is(err, errRecordGone):
			u.forget(id)
			made.more, v.stale = true, true
		case ctx.Err() != nil, errors.Is(err, store.ErrLost), errors.Is(err, store.ErrWentBack):
			return passed{}, err
		case contain.Is(err) != nil, store.IsCorrupt(err):
			u.kit.metrics.unreadable("rc/"+id, 1)
			c.log.WithError(err).Error("controller cannot be worked on")
			made.again = soonest(made.again, troubled)
			v.stale = true
		default:
			made.failed = errors.Join(made.failed, err)
			v.stale = true
		}
	}
	if wrote && made.awaits { // what one controller waits for may be what another one's status says by now
		made.more = true
	}
	return made, nil
}

// unknown stands for the status of a controller whose pass failed or ended early. It has no generation, so no decision
// relies on it.
var unknown = &rc.Status{}

// fresh returns the view, or another one where something of it was written. Where a write may linger the fence moves
// before anything is read (R9).
func (u *unit) fresh(ctx context.Context, v *view, consistent bool) (*view, error) {
	if u.unsure {
		if err := u.bump(ctx); err != nil {
			return nil, err
		}
		v.stale = true
	}
	if !v.stale {
		return v, nil
	}
	return u.read(ctx, consistent || u.consistent)
}

// settle takes in which controllers there are, and gives up those that have no record any more. Their pods, if any, run
// on: nothing says that they should stop (P4). It reports whether no controller is left.
func (u *unit) settle(ctx context.Context, v *view) (gone bool, err error) {
	var left []string
	kept := 0
	for id, h := range v.Heads {
		switch {
		case h.Owned():
			kept++
			u.meet(id, h)
		case h.Status != nil || u.known(id) != nil:
			left = append(left, id)
		}
	}
	for _, c := range u.all() {
		if v.Heads[c.ID] == nil {
			left = append(left, c.ID)
		}
	}
	none := kept == 0
	u.kit.stops.read(u.id)
	if len(left) == 0 && !none {
		return false, nil
	}
	var alone *store.Unit
	if none {
		alone = &v.Unit
	}
	if err := u.kit.lock.Abandon(ctx, u.fence, left, alone); err != nil {
		u.consistent = true // a record may be there after all
		return false, u.afterFailure(ctx, err)
	}
	for _, id := range left {
		m := &memory{}
		if c := u.known(id); c != nil {
			m = &c.memory
			c.log.Warn("the controller's record is gone; its pods are left alone")
		}
		if h := v.Heads[id]; h != nil {
			m.alertGone(ctx, u.kit.teller, id, h.Status)
		}
		u.forget(id)
	}
	if none {
		return true, errRecordGone
	}
	return false, nil
}

// leave gives the unit up if another farm should have it: its labels do not match this farm's selector any more, or the
// members have been stable and another one prefers it.
func (u *unit) leave(ctx context.Context, v *view) (left bool, err error) {
	leaving := u.leaving.Swap(false)
	owner := u.kit.farm
	if matches := v.matches(u.kit.selector); leaving && matches {
		if owner, _, err = u.kit.fleet.preferred(ctx, u.id); err != nil {
			u.leaving.Store(true)
			return false, err
		}
	} else if !matches {
		owner = "a farm whose selector matches it"
	}
	if owner == u.kit.farm || owner == "" {
		return false, nil
	}
	if err := u.kit.lock.Release(ctx, u.id, u.fence); err != nil {
		u.rebalance()
		return false, u.afterFailure(ctx, err)
	}
	u.log.WithField("to", owner).Info("handed a controller over")
	return true, errHandedOver
}

// afterFailure makes sure of the fence before anybody reads on: after an unknown outcome it is bumped, so that a write
// that lingers somewhere can no longer land; where the fence itself was refused, bumping tells whether the lock is
// still ours (R9).
func (u *unit) afterFailure(ctx context.Context, failure error) error {
	if !errors.Is(failure, store.ErrUnknown) && !store.LockRefused(failure, u.fence) {
		return failure
	}
	u.unsure = true
	if err := u.bump(ctx); err != nil {
		return errors.Join(err, failure)
	}
	u.log.WithError(failure).Info("bumped the fence")
	return failure
}

// gather returns how long a look should wait that reports have asked for, zero for no longer.
func (u *unit) gather(busy int64) time.Duration {
	if !u.waits {
		return 0
	}
	return u.looks.Gather(busy)
}

// idle reports whether a look now would find nothing, and then when one is due, zero for never: bell is that of the
// unit, as heard last. A bell that is gone must be made, or the records went with it.
func (u *unit) idle(bell uint64) (idle bool, left time.Duration) {
	if bell == 0 {
		return false, 0
	}
	return u.looks.Idle(bell)
}
