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

// errRecordGone means that there is no such controller, or no such unit, any more.
var errRecordGone = errors.New("the controller is gone")

// errHandedOver means that the unit was given to a farm that prefers it.
var errHandedOver = errors.New("the controller was handed over")

// unit returns the unit if this farm owns it or can claim it now. Otherwise it returns nil, and when to look
// again (zero: something will ring).
func (f *Farm) unit(ctx context.Context, id string) (*unit, time.Duration, error) {
	u, ownedElsewhere := f.roster.get(id)
	if u != nil {
		return u, 0, nil
	}
	owner, mine, err := f.preferred(ctx, id)
	switch {
	case err != nil:
		return nil, 0, err
	case !mine || ownedElsewhere && owner != f.cfg.ID:
		return nil, 0, nil
	case ownedElsewhere || owner != f.cfg.ID:
		// Ours to take only if nobody has it: the holder has not handed it over yet, or the preferred farm does not come.
		free, again, err := f.isFree(ctx, id, owner != f.cfg.ID)
		if !free || err != nil {
			return nil, again, err
		}
	}
	return f.claim(ctx, id)
}

// preferred returns the farm that should own a unit, "" for none, and whether this farm may own it at all. One that works on no other
// comes before all that work on many.
func (f *Farm) preferred(ctx context.Context, id string) (owner string, mine bool, err error) {
	if f.cfg.RCID != "" && rc.UnitOf(f.cfg.RCID) != id {
		return "", false, nil
	}
	var candidates []string // those of which it is the only one
	var others []looks.Contender
	for _, m := range f.cache.now().able {
		switch rc.UnitOf(m.rcID) {
		case id:
			candidates = append(candidates, m.ID)
		case "":
			others = append(others, m.Contender)
		}
	}
	if len(candidates) == 0 {
		if candidates, err = looks.Matching(others, func() (store.Rec[rc.RC], error) { return f.cfg.Store.UnitRC(ctx, id) }); err != nil {
			return "", false, err
		}
	}
	return placement.PreferredOwner(id, candidates), slices.Contains(candidates, f.cfg.ID), nil
}

// isFree reports whether a unit lacks an owner, and with grace: still does some time after it was first seen. If it
// does not, it says when to look again; zero when somebody holds it, which a bell or the members will change. Within the
// grace Consul is not asked: every farm sees every new controller, and the one that should take it is about to.
func (f *Farm) isFree(ctx context.Context, id string, grace bool) (free bool, again time.Duration, err error) {
	if grace {
		if left := f.roster.grace.Left(id, unownedGrace); left > 0 {
			return false, left, nil
		}
	}
	locked, err := f.cfg.Store.IsLocked(ctx, id)
	if err != nil {
		return false, 0, err
	}
	f.roster.heard(id, locked)
	return !locked, 0, nil
}

// claim takes the lock. Where there is no controller, and nobody asks for what only an owner may do, such as stopping what
// runs without one, it leaves no lock behind and returns errRecordGone.
func (f *Farm) claim(ctx context.Context, id string) (*unit, time.Duration, error) {
	got, err := f.cfg.Store.Claim(ctx, id)
	if _, locked := store.LockedBy(err); locked {
		f.roster.markOwnedElsewhere(id)
		return nil, 0, nil
	}
	if err != nil {
		return nil, 0, err
	}
	u := f.kit.newUnit(id, got.Fence)
	u.claimed = &got
	if got.UnitErr == nil {
		v := &view{consistent: true, Unit: got.Unit}
		if gone, err := u.settle(ctx, v); gone || err != nil {
			return nil, 0, err // the next look claims again
		}
	}
	f.roster.add(u, false)
	u.log.WithField(obs.ConsulIndex, got.Fence.Index).Info("claimed a controller")
	return u, 0, nil
}

// handOver gives units to farms that prefer them, once the members have been stable for a while: a farm that joins
// takes over its share without a failure.
func (f *Farm) handOver(ctx context.Context) error {
	done := time.Time{} // the change of the members that was dealt with
	for {
		if err := wait.Pause(ctx, f.cfg.StableAfter/4); err != nil {
			return err
		}
		changed := f.cache.now().stable
		if changed.Equal(done) || time.Since(changed) < f.cfg.StableAfter {
			continue
		}
		if err := f.handOverSome(ctx); err != nil {
			if ctx.Err() == nil {
				f.log.WithError(err).Warn("cannot tell which controllers other farms prefer")
			}
			continue
		}
		done = changed
	}
}

// handOverSome asks for a look at each unit that another farm prefers. The look makes sure of it.
func (f *Farm) handOverSome(ctx context.Context) error {
	for _, u := range f.roster.units() {
		owner, _, err := f.preferred(ctx, u.id)
		if err != nil {
			return err
		}
		if owner != f.cfg.ID {
			u.rebalance()
			f.enqueue(u.id)
		}
	}
	return nil
}

// drop forgets a unit that is not ours any more.
func (f *Farm) drop(id string) {
	if u, _ := f.roster.get(id); u != nil {
		u.rolling.gate.Stop()
		f.cfg.Rollouts.Carries(id, "")
		for _, c := range u.all() {
			f.kit.forget(c.ID)
		}
	}
	f.roster.drop(id)
	f.kit.stops.read(id)
}

// roster is which units this farm owns, and what it knows of the owners of others.
type roster struct {
	mu             sync.Mutex
	owned          map[string]*unit
	ownedElsewhere map[string]bool // known to be owned by another farm, until the members change or a sweep
	grace          looks.Grace     // of those that are another farm's to claim, and not known to be owned
}

func newRoster() *roster {
	return &roster{owned: map[string]*unit{}, ownedElsewhere: map[string]bool{}}
}

// get returns a unit that this farm owns, nil for another one, and whether another farm is known to own it.
func (r *roster) get(id string) (u *unit, ownedElsewhere bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.owned[id], r.ownedElsewhere[id]
}

// units returns the units that this farm owns.
func (r *roster) units() []*unit {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Collect(maps.Values(r.owned))
}

// all returns the controllers of these units, as far as looks have found them.
func (r *roster) all() (all []*controller) {
	for _, u := range r.units() {
		all = append(all, u.all()...)
	}
	return all
}

// count returns how many controllers these are. A unit that no look has seen yet has one at the least.
func (r *roster) count() (n int) {
	for _, u := range r.units() {
		n += max(1, u.count())
	}
	return n
}

// add takes in a unit that this farm owns now, in place of what it knew, or with fresh only where it knew none.
func (r *roster) add(u *unit, fresh bool) (added bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if fresh && r.owned[u.id] != nil {
		return false
	}
	r.owned[u.id] = u
	delete(r.ownedElsewhere, u.id)
	return true
}

// drop forgets a unit that is not ours any more.
func (r *roster) drop(id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.owned, id)
	delete(r.ownedElsewhere, id)
	r.grace.Forget(id)
}

// forget drops what is known of a unit that is not ours, and reports whether it is.
func (r *roster) forget(id string) (ours bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if ours = r.owned[id] != nil; !ours {
		delete(r.ownedElsewhere, id)
		r.grace.Forget(id)
	}
	return ours
}

// heard notes whether another farm has a unit. The time that it lacks an owner begins anew.
func (r *roster) heard(id string, another bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ownedElsewhere[id] = another
	r.grace.Forget(id)
}

// listed notes whether another farm is listed as a unit's owner, and reports whether any farm is.
func (r *roster) listed(id string, another bool) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.owned[id] != nil:
		return true // if it is not any more the next write finds out, or a sweep
	case another:
		r.ownedElsewhere[id] = true
		r.grace.Forget(id)
	default:
		delete(r.ownedElsewhere, id)
	}
	return another
}

// markOwnedElsewhere notes that another farm has, or will have, a unit.
func (r *roster) markOwnedElsewhere(id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ownedElsewhere[id] = true
}

// membersChanged forgets what is known of other farms' units: their owners may be gone.
func (r *roster) membersChanged() {
	r.mu.Lock()
	defer r.mu.Unlock()
	clear(r.ownedElsewhere)
}
