package farm

import (
	"context"
	"time"

	"github.com/rcfarm/rcfarm/pkg/alert"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/reconcile"
)

// alertGone tells that what is wrong with a controller is over, before the last of its records goes.
func (c *ReplicationController) alertGone(ctx context.Context, st *rc.Status) {
	if st == nil {
		return
	}
	now := time.Now().UTC()
	for _, i := range st.Incidents {
		tell := alert.Tell{Incident: i, Resolved: true}
		if i.AlertedAt == nil && !c.told[i.Key] || c.told[tell.ID()] {
			continue
		}
		if i.ResolvedAt == nil {
			i.ResolvedAt = &now
		}
		if c.told == nil {
			c.told = map[string]bool{}
		}
		c.told[tell.ID()] = true
		c.farm.tell(ctx, c.ID, alert.Tell{Incident: i, Resolved: true})
	}
}

// track completes the plan's status with the incidents that follow from it, before it is stored.
func (c *ReplicationController) track(v *view, plan *reconcile.Plan) {
	record := &v.head.RC.Value
	plan.Status.Conditions = rc.SetCondition(plan.Status.Conditions, rc.Unclaimed, false, "", v.snapshot.Now)
	if st := &plan.Status; st.LastError != "" || st.Is(rc.Unreadable) {
		st.Conditions = rc.SetCondition(st.Conditions, rc.Unreadable, st.LastError != "", st.LastError, v.snapshot.Now)
	}
	incidents, due := alert.Track(alert.Input{
		Before: v.head.Status, After: &plan.Status, Now: v.snapshot.Now, Told: c.told,
		Quiet: record.Disabled || record.DeletedAt != nil,
	})
	plan.Status.Incidents = incidents
	if due > 0 && (plan.Again == 0 || due < plan.Again) {
		plan.Again = due
	}
}

// alert tells what the stored status says has to be told. It is called when the status has landed, and reports whether it
// told anything, which the next pass then stores.
func (c *ReplicationController) alert(ctx context.Context, plan *reconcile.Plan) (told bool) {
	now := time.Now()
	pending := map[string]bool{}
	for _, tell := range alert.Due(&plan.Status, now) {
		id := tell.ID()
		pending[id] = true
		if c.told[id] {
			continue // told, and not stored yet
		}
		told = true
		c.farm.tell(ctx, c.ID, tell)
	}
	c.told = pending
	c.farm.cfg.Metrics.alerting(c.ID, alert.Active(&plan.Status, now))
	return told
}
