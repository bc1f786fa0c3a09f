package runner

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/rcfarm/rcfarm/pkg/farm/looks"
	"github.com/rcfarm/rcfarm/pkg/farm/placement"
	"github.com/rcfarm/rcfarm/pkg/obs"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/rollout"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// acquire returns the rollout if this farm carries it out or can claim it now. Otherwise it returns nil, and when to look again (zero:
// something will ring).
func (r *Runner) acquire(ctx context.Context, service string) (*carried, time.Duration, error) {
	r.mu.Lock()
	c, rec := r.carried[service], r.records[service]
	r.mu.Unlock()
	if c != nil {
		if gone, err := r.handOver(ctx, c, rec); gone || err != nil {
			return nil, r.cfg.Look, err
		}
	}
	if c != nil || rec == nil {
		return c, 0, nil
	}
	owner, mine, err := r.preferred(ctx, &rec.Value)
	r.matched(service, owner != "" || err != nil || len(r.cfg.Members()) == 0)
	if !mine || err != nil {
		return nil, r.cfg.Look, err // the labels of a controller may change, and nothing rings here then
	}
	locked, err := r.cfg.Store.IsRolloutLocked(ctx, service)
	if locked || err != nil {
		r.grace.Forget(service)
		return nil, r.requeueAfter(), err
	}
	if left := r.grace.Left(service, r.cfg.Grace); owner != r.cfg.ID && left > 0 {
		return nil, left, nil
	}
	return r.claim(ctx, service)
}

// requeueAfter is when to look again at a rollout that another farm holds. For a moment after a farm has left, its locks are held although
// it is no member any more.
func (r *Runner) requeueAfter() time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	if time.Since(r.moved) < r.cfg.Look {
		return min(afterLeft, r.cfg.Look)
	}
	return r.cfg.Look
}

// afterLeft is between two looks at a rollout whose runner may just have left.
const afterLeft = 50 * time.Millisecond

// preferred returns the farm that should carry a rollout out, "" for none, and whether this farm may at all: a farm that works on all of
// its controllers.
func (r *Runner) preferred(ctx context.Context, record *rollout.Record) (owner string, mine bool, err error) {
	var farms []looks.Contender
	for _, m := range r.cfg.Members() {
		if selector, err := rc.ParseSelector(m.RCSelector); err == nil {
			farms = append(farms, looks.Contender{ID: m.ID, Selector: selector})
		}
	}
	candidates, err := looks.Matching(ctx, r.cfg.Store, farms, store.RolloutRCs(record)...)
	return placement.PreferredOwner(record.Term(), candidates), slices.Contains(candidates, r.cfg.ID), err
}

// claim takes the lock. What is read under it first is consistent: the watch may be behind, and the rollout be over.
func (r *Runner) claim(ctx context.Context, service string) (*carried, time.Duration, error) {
	fence, err := r.cfg.Store.ClaimRollout(ctx, service)
	if _, locked := store.LockedBy(err); locked {
		return nil, r.requeueAfter(), nil
	}
	if err != nil {
		return nil, 0, err
	}
	c := &carried{fence: fence, consistent: true}
	if changed, left := r.membersSince(); left <= 0 {
		c.judged = changed
	}
	r.mu.Lock()
	r.carried[service] = c
	r.grace.Forget(service)
	r.mu.Unlock()
	r.log.WithField(obs.Service, service).WithField(obs.ConsulIndex, fence.Index).Info("claimed a rollout")
	return c, 0, nil
}

// abandon gives up a rollout that there is none of any more, with the lock.
func (r *Runner) abandon(ctx context.Context, service string, c *carried) {
	if c == nil {
		return
	}
	err := r.cfg.Store.AbandonRollout(ctx, service, c.fence)
	switch {
	case err == nil:
		r.drop(service)
		return
	case ctx.Err() != nil:
		return
	case errors.Is(err, store.ErrUnknown), store.LockRefused(err, c.fence):
		if err := r.bump(ctx, c); err != nil {
			r.drop(service) // somebody else's, or the session is over
			return
		}
	}
	r.queue.AddRateLimited(service) // another rollout may have begun
}

// bump moves the fence: what was sent under the old one cannot land any more.
func (r *Runner) bump(ctx context.Context, c *carried) error {
	fence, err := r.cfg.Store.Bump(ctx, c.fence)
	if err != nil {
		return err
	}
	c.fence, c.consistent, c.unsure = fence, true, false
	return nil
}

// drop forgets a rollout that is not this farm's any more.
func (r *Runner) drop(service string) {
	r.mu.Lock()
	c := r.carried[service]
	delete(r.carried, service)
	r.grace.Forget(service)
	r.mu.Unlock()
	if c != nil {
		c.gate.put(nil)
	}
	r.cfg.Metrics.carries(service, "")
}

// membersSince returns when the members changed last, and how long they have to stay as they are until rollouts are handed over.
func (r *Runner) membersSince() (changed time.Time, left time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.moved, r.cfg.StableAfter - time.Since(r.moved)
}

// handOver gives a rollout to the farm that is preferred, once the members have been stable for a while, and reports whether it did. Each
// change of the members is judged once: a farm that takes a rollout because the preferred one does not come keeps it.
func (r *Runner) handOver(ctx context.Context, c *carried, rec *store.Rec[rollout.Record]) (gone bool, err error) {
	changed, left := r.membersSince()
	if rec == nil || left > 0 || c.judged.Equal(changed) {
		return false, nil
	}
	service := rec.Value.Service
	owner, _, err := r.preferred(ctx, &rec.Value)
	if err != nil {
		return false, err
	}
	if owner == "" || owner == r.cfg.ID {
		c.judged = changed
		return false, nil
	}
	err = r.cfg.Store.ReleaseRollout(ctx, service, c.fence, rec.Index)
	switch {
	case err == nil:
		r.drop(service)
		r.log.WithField(obs.Service, service).WithField("to", owner).Info("handed a rollout over")
		return true, nil
	case errors.Is(err, store.ErrRefused) && !store.LockRefused(err, c.fence) && !store.Denied(err):
		return false, nil // the record is newer than the watch: the next look hands it over
	default:
		return false, r.afterFailure(ctx, c, err)
	}
}
