package farm

import (
	"context"
	"errors"
	"time"

	"github.com/rcfarm/rcfarm/pkg/internal/contain"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// brokenLook is the pause after the farm could not work on a controller or a rollout.
const brokenLook = 5 * time.Second

// look reads the whole unit once, and works on its controllers one after the other. It returns when to look again even
// if no bell rings.
func (u *unit) look(ctx context.Context) (again time.Duration, err error) {
	u.looks.Begin()
	if u.unsure {
		if err := u.bump(ctx); err != nil {
			return 0, err
		}
	}
	level := u.level
	u.level = store.Default
	defer func() {
		if err != nil && level == store.Consistent {
			u.level = level
		}
	}()
	v, err := u.read(ctx, level)
	if err != nil {
		return 0, err
	}
	bell := v.BellIndex
	if none, err := u.updateControllers(ctx, v); none || err != nil {
		return 0, err
	}
	if done, err := u.handOver(ctx, v); done || err != nil {
		return 0, err
	}
	if bell == 0 {
		// Without a bell the farm would miss changes, and Owners.Finish would leave the lock and drops of the unit.
		return time.Millisecond, u.kit.writes.Ring(ctx, u.id)
	}
	again, waits, err := u.work(ctx, v)
	if u.waits = waits; err == nil {
		u.looks.Ended(bell)
	}
	return again, err
}

const rounds = 2

// work makes a pass over each controller, and then the next step of the rollout from their results. After a step, or if
// a pass has made more changes possible, work repeats this once.
func (u *unit) work(ctx context.Context, v *view) (again time.Duration, waits bool, err error) {
	for range rounds {
		made, seen, err := u.passes(ctx, v)
		if v = seen; err != nil {
			return 0, false, err
		}
		if v.Rollout.Index != 0 {
			if v, err = u.fresh(ctx, v); err != nil {
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

// passed is the result of a pass, or of the passes over all controllers of a unit.
type passed struct {
	again  time.Duration // when to look again even if no bell rings; zero: when a bell rings
	more   bool          // another pass may find more to do now
	waits  bool          // a pass only wrote intents, and the next work comes with the nodes' reports
	awaits bool          // a controller waits for other revisions of the service
	failed error         // errors of the passes that failed; the rollout can still make a step
}

// passes makes a pass over each controller. It returns a view that includes the reads and writes of these passes.
// After an error the look must end.
func (u *unit) passes(ctx context.Context, v *view) (made passed, seen *view, err error) {
	wrote := false
	for _, id := range v.IDs() {
		if v, err = u.fresh(ctx, v); err != nil {
			return passed{}, nil, errors.Join(made.failed, err)
		}
		h := v.Heads[id]
		if h == nil || !h.Owned() {
			continue // it has no record, and no request is about it
		}
		c := u.ensure(id, h)
		one, left, err := c.makePass(ctx, v)
		wrote = v.add(id, left) || wrote
		made.more, made.waits, made.awaits = made.more || one.more, made.waits || one.waits, made.awaits || one.awaits
		switch {
		case err == nil:
			made.again = soonest(made.again, one.again)
			u.kit.metrics.unreadable("rc/"+id, 0)
		case errors.Is(err, errRecordGone) && v.alone(id):
			return passed{}, nil, err
		case errors.Is(err, errRecordGone):
			u.forget(id)
			made.more, v.stale = true, true
		case ctx.Err() != nil, errors.Is(err, store.ErrLost), errors.Is(err, store.ErrWentBack):
			return passed{}, nil, err
		case contain.Is(err) != nil, store.IsCorrupt(err):
			u.kit.metrics.unreadable("rc/"+id, 1)
			c.log.WithError(err).Error("controller cannot be worked on")
			made.again = soonest(made.again, brokenLook)
			v.stale = true
		default:
			made.failed = errors.Join(made.failed, err)
			v.stale = true
		}
	}
	if wrote && made.awaits { // perhaps a controller waits for what another controller's new status has
		made.more = true
	}
	return made, v, nil
}

// unknown stands for the status of a controller whose pass failed or ended early. It has no generation, so no decision
// relies on it.
var unknown = &rc.Status{}

// fresh reads the unit again if the view lacks a write of this look. If an earlier write may still land, fresh first
// moves the fence (R9).
func (u *unit) fresh(ctx context.Context, v *view) (*view, error) {
	if u.unsure {
		if err := u.bump(ctx); err != nil {
			return nil, err
		}
		v.stale = true
	}
	if !v.stale {
		return v, nil
	}
	if u.level == store.Consistent {
		return u.read(ctx, u.level)
	}
	return u.read(ctx, v.level)
}

// updateControllers takes the controllers from the view. It abandons those that have neither a record nor a request.
// Their pods continue to run, because no record asks for their stop (P4). none means that no controller is left.
func (u *unit) updateControllers(ctx context.Context, v *view) (none bool, err error) {
	var gone []string
	kept := 0
	for id, h := range v.Heads {
		switch {
		case h.Owned():
			kept++
			u.ensure(id, h)
		case h.Status != nil || u.known(id) != nil:
			gone = append(gone, id)
		}
	}
	for _, c := range u.all() {
		if v.Heads[c.ID] == nil {
			gone = append(gone, c.ID)
		}
	}
	none = kept == 0
	u.kit.stops.Read(u.id)
	if len(gone) == 0 && !none {
		return false, nil
	}
	var empty *store.Unit
	if none {
		empty = &v.Unit
	}
	if err := u.kit.lock.Abandon(ctx, u.fence, gone, empty); err != nil {
		u.level = store.Consistent // the unit may have a record that this look did not see
		return false, u.afterFailure(ctx, err)
	}
	for _, id := range gone {
		m := &memory{}
		if c := u.known(id); c != nil {
			m = &c.memory
			c.log.Warn("the controller's record is gone; its pods run on")
		}
		if h := v.Heads[id]; h != nil {
			m.alertGone(ctx, u.kit.notifier, id, h.Status)
		}
		u.forget(id)
	}
	if none {
		return true, errRecordGone
	}
	return false, nil
}

// handOver releases the lock if another farm should own the unit: the unit's labels do not match this farm's selector
// any more, or the members are stable and another farm is preferred.
func (u *unit) handOver(ctx context.Context, v *view) (done bool, err error) {
	handOverAsked := u.handOverAsked.Swap(false)
	owner := u.kit.farm
	if matches := v.matches(u.kit.selector); handOverAsked && matches {
		if owner, _, err = u.kit.peers.preferred(ctx, u.id); err != nil {
			u.handOverAsked.Store(true)
			return false, err
		}
	} else if !matches {
		owner = "a farm whose selector matches it"
	}
	if owner == u.kit.farm || owner == "" {
		return false, nil
	}
	if err := u.kit.lock.Release(ctx, u.id, u.fence); err != nil {
		u.askHandOver()
		return false, u.afterFailure(ctx, err)
	}
	u.log.WithField("to", owner).Info("handed a unit over")
	return true, errHandedOver
}

// holdOff returns how long the next look must still wait: reports of several nodes often arrive together, and after a
// long look other units come first.
func (u *unit) holdOff(busy int64, waiting int) (left time.Duration) {
	if u.waits {
		left = u.looks.Gather(busy)
	}
	if waiting > 0 {
		left = max(left, u.looks.Rest())
	}
	return left
}

// idle reports whether a look now would find nothing to do, and the time until the next look; zero: none is due. bell
// is the index that the watch saw last. Without a bell a look is needed: it makes the bell, or finds that all records
// of the unit are gone.
func (u *unit) idle(bell uint64) (idle bool, left time.Duration) {
	if bell == 0 {
		return false, 0
	}
	return u.looks.Idle(bell)
}
