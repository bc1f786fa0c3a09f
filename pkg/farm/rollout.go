package farm

import (
	"context"
	"fmt"

	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/rollout"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// readRollout reads the rollout in charge, where there is one.
func (ps *reader) readRollout(ctx context.Context) (err error) {
	service := ps.head.RC.Value.Rollout()
	if service == "" || ps.mem.recordless {
		return nil
	}
	if ps.view.Service == service {
		ps.rollout = ps.InCharge
	} else if ps.rollout, err = ps.kit.reads.RolloutInCharge(ctx, service, ps.consistent); err != nil {
		return err
	}
	if ps.rollout.Term == ps.head.RC.Value.Mutator {
		ps.snapshot.RolloutIdle = rollout.State(ps.rollout.State).Idle()
	}
	return nil
}

// forsaken reports whether the rollout that a record names is not in charge of it any more. One that cannot be read may be.
func forsaken(r *rc.RC, now store.InCharge) bool {
	return r.Mutator != "" && (now.Index == 0 || now.Term != "" && now.Term != r.Mutator)
}

// releaseMutator takes the controller away from a rollout that is gone, or that another one has replaced, unless the nodes have still to
// say what they run. That it is so is read again from the leader, and a condition of the transaction.
func (ps *pass) releaseMutator(ctx context.Context) (released bool, err error) {
	r := &ps.head.RC.Value
	if ps.mem.recordless || ps.snapshot.Hold != "" || !forsaken(r, ps.rollout) {
		return false, nil
	}
	service := r.Rollout()
	now, err := ps.kit.reads.RolloutInCharge(ctx, service, true)
	if err != nil || !forsaken(r, now) {
		return false, err
	}
	why := "there is none any more"
	if now.Index != 0 {
		why = now.Term + " is in charge"
	}
	a := store.NewAudit(ps.kit.farm, "release", ps.id, []string{fmt.Sprintf("mutator: %s -> none: %s", r.Mutator, why)})
	if err := ps.kit.lock.ReleaseMutator(ctx, ps.mem.fence, ps.head.RC, service, now, ps.schema.Index, a); err != nil {
		return false, ps.unit.afterFailure(ctx, err)
	}
	ps.stale = true
	ps.log.WithField("rollout", r.Mutator).Warn("took a controller away from a rollout that is gone")
	return true, nil
}
