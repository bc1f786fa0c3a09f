package farm

import (
	"context"
	"time"

	"github.com/rcfarm/rcfarm/pkg/obs"
	"github.com/rcfarm/rcfarm/pkg/wait"
)

// idleLook is how long a loop waits that has nothing to do until somebody wakes it.
const idleLook = time.Hour

// takeOver claims, whenever the members change, what has no owner then.
func (f *Farm) takeOver(ctx context.Context) error {
	for again := idleLook; ; {
		if _, err := wait.PauseUnless(ctx, f.moved, again); err != nil {
			return err
		}
		more, err := f.claimFreed(ctx)
		if err != nil && ctx.Err() == nil {
			f.log.WithError(err).Warn("cannot tell which controllers have no owner")
		}
		if again = idleLook; more || err != nil {
			again = unownedGrace
		}
	}
}

// perClaim is how much longer a farm may take to claim what it should own for each controller that is free.
const perClaim = time.Millisecond

// claimFreed looks at all locks in one request, which with thousands of controllers is one in place of thousands, and has those
// claimed that are free and that this farm should own, those first that rang last: what was changed while nobody could act on it is
// among them. It returns whether there are others, which the farms that should own them have a while to claim.
func (f *Farm) claimFreed(ctx context.Context) (more bool, err error) {
	locked, err := f.cfg.Store.Locks(ctx)
	if err != nil {
		return false, err
	}
	var free []string
	for _, id := range f.cache.lastRung() {
		if !f.roster.listed(id, locked[id]) {
			free = append(free, id)
		}
	}
	patience := time.Duration(len(free)) * perClaim
	var own []string
	for _, id := range free {
		owner, mine, err := f.preferred(ctx, id)
		switch {
		case err != nil:
			return false, err
		case !mine:
		case owner == f.cfg.ID:
			own = append(own, id)
		case f.roster.grace.Left(id, unownedGrace) <= -patience:
			f.enqueue(id)
		default:
			more = true
		}
	}
	f.claimAll(ctx, own)
	for _, id := range own {
		f.enqueue(id)
	}
	return more, nil
}

// manyFree is from how many units on a farm takes their locks before it reads any of them. Fewer are read with their locks.
const manyFree = 64

// claimAll takes the locks of many units that this farm should own. A look at each that it did not get claims it alone, or finds
// out whose it is; so does a worker that is claiming one at this moment: whoever has an older fence is refused, and bumps it.
func (f *Farm) claimAll(ctx context.Context, ids []string) {
	if len(ids) < manyFree {
		return
	}
	fences, err := f.cfg.Store.ClaimAll(ctx, ids)
	if err != nil && ctx.Err() == nil {
		f.log.WithError(err).WithField("controllers", len(ids)-len(fences)).Info("not all controllers could be claimed together; they are claimed one by one")
	}
	for id, fence := range fences {
		if known, _ := f.roster.get(id); known != nil {
			continue
		}
		u := f.kit.newUnit(id, fence)
		f.kit.stops.claimed(id) // before anybody finds it
		if !f.roster.add(u, true) {
			continue // a worker was faster; its next look learns what it has learnt already
		}
		u.log.WithField(obs.ConsulIndex, fence.Index).Info("claimed a controller")
	}
}
