package farm

import (
	"context"
	"time"

	"github.com/rcfarm/rcfarm/pkg/obs"
	"github.com/rcfarm/rcfarm/pkg/wait"
)

// idleLook is how long an idle loop waits unless a signal wakes it.
const idleLook = time.Hour

func (c claimer) takeOver(ctx context.Context, moved wait.Signal) error {
	for again := idleLook; ; {
		if _, err := wait.PauseUnless(ctx, moved, again); err != nil {
			return err
		}
		more, err := c.claimFreed(ctx)
		if err != nil && ctx.Err() == nil {
			c.log.WithError(err).Warn("cannot find out which controllers have no owner")
		}
		if again = idleLook; more || err != nil {
			again = unownedGrace
		}
	}
}

// perClaim is how much more time a preferred farm gets for each unit without an owner before other farms claim its
// units.
const perClaim = time.Millisecond

// claimFreed asks for a claim of each unit without an owner for which this farm is preferred. Units whose bells rang
// last come first: some changed while they had no owner. more means that the preferred farms of other units still have
// some time to claim them.
func (c claimer) claimFreed(ctx context.Context) (more bool, err error) {
	locked, err := c.cfg.Store.Locks(ctx)
	if err != nil {
		return false, err
	}
	var free []string
	for _, id := range c.cache.lastRung() {
		if !c.roster.listed(id, locked[id]) {
			free = append(free, id)
		}
	}
	patience := time.Duration(len(free)) * perClaim
	var own []string
	for _, id := range free {
		owner, mine, err := c.preferred(ctx, id)
		switch {
		case err != nil:
			return false, err
		case !mine:
		case owner == c.cfg.ID:
			own = append(own, id)
		case c.roster.grace.Left(id, unownedGrace) <= -patience:
			c.enqueue(id)
		default:
			more = true
		}
	}
	c.claimAll(ctx, own)
	for _, id := range own {
		c.enqueue(id)
	}
	return more, nil
}

func (c claimer) claimsMore(ctx context.Context) (bool, error) {
	for _, id := range c.cache.lastRung() {
		if u, ownedElsewhere := c.roster.get(id); u != nil || ownedElsewhere {
			continue
		}
		if owner, _, err := c.preferred(ctx, id); err != nil || owner == c.cfg.ID {
			return true, err
		}
	}
	return false, nil
}

// manyFree is from how many units on the farm takes all their locks before it reads a unit. For fewer units, one
// request claims and reads one unit.
const manyFree = 64

// claimAll takes the locks of many units. A later look claims the others one by one. If a worker of this farm claims
// the same unit at this moment, Consul refuses the older fence, and the holder of that fence bumps it.
func (c claimer) claimAll(ctx context.Context, ids []string) {
	if len(ids) < manyFree {
		return
	}
	fences, err := c.cfg.Store.ClaimAll(ctx, ids)
	if err != nil && ctx.Err() == nil {
		c.log.WithError(err).WithField("units", len(ids)-len(fences)).
			Info("cannot claim all units together; claiming the others one by one")
	}
	for id, fence := range fences {
		if known, _ := c.roster.get(id); known != nil {
			continue
		}
		u := c.kit.newUnit(id, fence)
		c.kit.stops.Claimed(id) // before a worker can find the unit
		if !c.roster.addNew(u) {
			continue // a worker was faster; its next look repeats what its claim has done
		}
		u.log.WithField(obs.ConsulIndex, fence.Index).Info("claimed a unit")
	}
}
