package farm

import (
	"context"
	"time"

	"github.com/rcfarm/rcfarm/pkg/alert"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/reconcile"
)

// alertGone tells that what is wrong with a controller is over, before the last of its records goes.
func (m *memory) alertGone(ctx context.Context, to alert.Teller, id string, st *rc.Status) {
	if st == nil {
		return
	}
	now := time.Now().UTC()
	for _, i := range st.Incidents {
		tell := alert.Tell{Incident: i, Resolved: true}
		if i.AlertedAt == nil && !m.told[i.Key] || m.told[tell.ID()] {
			continue
		}
		if i.ResolvedAt == nil {
			i.ResolvedAt = &now
		}
		if m.told == nil {
			m.told = map[string]bool{}
		}
		m.told[tell.ID()] = true
		to.One(ctx, id, alert.Tell{Incident: i, Resolved: true})
	}
}

// track completes the plan's status with the incidents that follow from it, before it is stored.
func (ps *pass) track(plan *reconcile.Plan) {
	record := &ps.head.RC.Value
	plan.Status.Conditions = rc.SetCondition(plan.Status.Conditions, rc.Unclaimed, false, "", ps.snapshot.Now)
	if st := &plan.Status; st.LastError != "" || st.Is(rc.Unreadable) {
		st.Conditions = rc.SetCondition(st.Conditions, rc.Unreadable, st.LastError != "", st.LastError, ps.snapshot.Now)
	}
	incidents, due := alert.Track(alert.Input{
		Before: ps.head.Status, After: &plan.Status, Now: ps.snapshot.Now, Told: ps.mem.told,
		Quiet: record.Disabled || record.DeletedAt != nil,
	})
	plan.Status.Incidents = incidents
	if due > 0 && (plan.Again == 0 || due < plan.Again) {
		plan.Again = due
	}
}

// alert tells what the stored status says has to be told. It is called when the status has landed, and reports whether it
// told anything, which the next pass then stores.
func (ps *pass) alert(ctx context.Context, plan *reconcile.Plan) (told bool) {
	now := time.Now()
	pending, fresh := ps.kit.teller.Due(ctx, ps.id, alert.Due(&plan.Status, now), ps.mem.told)
	ps.mem.told = pending
	ps.kit.metrics.Alerting(ps.id, alert.Active(&plan.Status, now))
	return fresh > 0
}
