package runner

import (
	"context"
	"errors"
	"time"

	"github.com/rcfarm/rcfarm/pkg/obs"
	"github.com/rcfarm/rcfarm/pkg/rollout"
	"github.com/rcfarm/rcfarm/pkg/store"
)

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
