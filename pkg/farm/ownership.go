package farm

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/rcfarm/rcfarm/pkg/farm/looks"
	"github.com/rcfarm/rcfarm/pkg/farm/placement"
	"github.com/rcfarm/rcfarm/pkg/obs"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/store"
	"github.com/rcfarm/rcfarm/pkg/wait"
)

var errRecordGone = errors.New("the controller is gone")

var errHandedOver = errors.New("the unit was handed over")

type claimer struct{ *core }

// ownOrClaim returns the unit if this farm owns it or can claim it now. Otherwise it returns nil and the time until the
// next look; zero: an event or a sweep asks for the look.
func (c claimer) ownOrClaim(ctx context.Context, id string) (*unit, time.Duration, error) {
	u, ownedElsewhere := c.roster.get(id)
	if u != nil {
		return u, 0, nil
	}
	owner, mine, err := c.preferred(ctx, id)
	switch {
	case err != nil:
		return nil, 0, err
	case !mine || ownedElsewhere && owner != c.cfg.ID:
		return nil, 0, nil
	case ownedElsewhere || owner != c.cfg.ID:
		// The owner may still have to hand the unit over, or the preferred farm may be about to claim it.
		if owner != c.cfg.ID {
			// All farms see a new controller at once. The preferred farm gets time to claim it.
			if left := c.roster.grace.Left(id, unownedGrace); left > 0 {
				return nil, left, nil
			}
		}
		if free, err := c.isFree(ctx, id); !free || err != nil {
			return nil, 0, err
		}
	}
	return c.claim(ctx, id)
}

// preferred implements peers. A member that works on this unit alone comes before farms.
func (c claimer) preferred(ctx context.Context, id string) (owner string, mine bool, err error) {
	if c.cfg.RCID != "" && rc.UnitOf(c.cfg.RCID) != id {
		return "", false, nil
	}
	var candidates []string // members that work on this unit alone
	var others []looks.Contender
	for _, m := range c.cache.present().able {
		switch rc.UnitOf(m.rcID) {
		case id:
			candidates = append(candidates, m.ID)
		case "":
			others = append(others, m.Contender)
		}
	}
	if len(candidates) == 0 {
		read := func() (store.Rec[rc.RC], error) { return c.cfg.Store.UnitRC(ctx, id) }
		if candidates, err = looks.Matching(others, read); err != nil {
			return "", false, err
		}
	}
	return placement.Preferred(id, candidates), slices.Contains(candidates, c.cfg.ID), nil
}

func (c claimer) isFree(ctx context.Context, id string) (bool, error) {
	locked, err := c.cfg.Store.IsLocked(ctx, id)
	if err != nil {
		return false, err
	}
	c.roster.heard(id, locked)
	return !locked, nil
}

// claim takes the lock. If no controller of the unit has a record or a request that only an owner can carry out, claim
// gives the lock up and returns errRecordGone.
func (c claimer) claim(ctx context.Context, id string) (*unit, time.Duration, error) {
	got, err := c.cfg.Store.Claim(ctx, id)
	if _, locked := store.LockedBy(err); locked {
		c.roster.markOwnedElsewhere(id)
		return nil, 0, nil
	}
	if err != nil {
		return nil, 0, err
	}
	u := c.kit.newUnit(id, got.Fence)
	u.claimed = &got
	if got.UnitErr == nil {
		v := &view{level: store.Consistent, Unit: got.Unit}
		if none, err := u.updateControllers(ctx, v); none || err != nil {
			return nil, 0, err // the next look claims again
		}
	}
	c.roster.add(u)
	u.log.WithField(obs.ConsulIndex, got.Fence.Index).Info("claimed a unit")
	return u, 0, nil
}

// handOver gives a new farm its units although no other farm has failed, once the members have been stable for a while.
func (c claimer) handOver(ctx context.Context) error {
	done := time.Time{} // the last change of the members that was handled
	for {
		if err := wait.Pause(ctx, c.cfg.StableAfter/4); err != nil {
			return err
		}
		changed := c.cache.present().stable
		if changed.Equal(done) || time.Since(changed) < c.cfg.StableAfter {
			continue
		}
		if err := c.handOverSome(ctx); err != nil {
			if ctx.Err() == nil {
				c.log.WithError(err).Warn("cannot tell for which units other farms are preferred")
			}
			continue
		}
		done = changed
	}
}

// handOverSome asks for a look at each unit for which another farm is preferred. The look checks that again.
func (c claimer) handOverSome(ctx context.Context) error {
	for _, u := range c.roster.units() {
		owner, _, err := c.preferred(ctx, u.id)
		if err != nil {
			return err
		}
		if owner != c.cfg.ID {
			u.askHandOver()
			c.enqueue(u.id)
		}
	}
	return nil
}

// drop forgets a unit that this farm does not own any more.
func (c claimer) drop(id string) {
	if u, _ := c.roster.get(id); u != nil {
		u.rolling.gate.Stop()
		c.cfg.Rollouts.SetState(id, "")
		for _, one := range u.all() {
			c.kit.forget(one.ID)
		}
	}
	c.roster.drop(id)
	c.kit.stops.Read(id)
}

// roster has the units that this farm owns, and what the farm knows of the owners of other units.
type roster struct {
	mu             sync.Mutex
	owned          map[string]*unit
	ownedElsewhere map[string]bool // known to have another owner, until the members change or a sweep finds no lock
	grace          looks.Grace     // of units that another farm should claim, and that are not known to have an owner
}

func newRoster() *roster {
	return &roster{owned: map[string]*unit{}, ownedElsewhere: map[string]bool{}}
}

// get returns nil for a unit that this farm does not own.
func (r *roster) get(id string) (u *unit, ownedElsewhere bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.owned[id], r.ownedElsewhere[id]
}

func (r *roster) units() []*unit {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Collect(maps.Values(r.owned))
}

func (r *roster) all() (all []*controller) {
	for _, u := range r.units() {
		all = append(all, u.all()...)
	}
	return all
}

// count counts controllers. A unit that has not had a look yet counts as one controller.
func (r *roster) count() (n int) {
	for _, u := range r.units() {
		n += max(1, u.count())
	}
	return n
}

func (r *roster) add(u *unit) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.put(u)
}

// addNew does nothing if the roster has the unit.
func (r *roster) addNew(u *unit) (added bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.owned[u.id] != nil {
		return false
	}
	r.put(u)
	return true
}

// put is add for a caller that holds the mutex.
func (r *roster) put(u *unit) {
	r.owned[u.id] = u
	delete(r.ownedElsewhere, u.id)
}

// drop forgets a unit that this farm does not own any more.
func (r *roster) drop(id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.owned, id)
	delete(r.ownedElsewhere, id)
	r.grace.Forget(id)
}

// forget drops what is known of a unit that this farm does not own, and reports whether this farm owns it.
func (r *roster) forget(id string) (owned bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if owned = r.owned[id] != nil; !owned {
		delete(r.ownedElsewhere, id)
		r.grace.Forget(id)
	}
	return owned
}

// heard notes Consul's answer whether another farm owns a unit. The grace begins again.
func (r *roster) heard(id string, another bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ownedElsewhere[id] = another
	r.grace.Forget(id)
}

// listed notes whether a list of locks has another owner of a unit, and reports whether any farm owns the unit.
func (r *roster) listed(id string, another bool) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.owned[id] != nil:
		return true // if that has changed, the next write or sweep will notice
	case another:
		r.ownedElsewhere[id] = true
		r.grace.Forget(id)
	default:
		delete(r.ownedElsewhere, id)
	}
	return another
}

func (r *roster) markFree(id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.ownedElsewhere, id)
}

// markOwnedElsewhere notes that another farm owns a unit, or is about to.
func (r *roster) markOwnedElsewhere(id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ownedElsewhere[id] = true
}

// membersChanged forgets the other owners, because they may be gone.
func (r *roster) membersChanged() {
	r.mu.Lock()
	defer r.mu.Unlock()
	clear(r.ownedElsewhere)
}
