package farm

import (
	"context"
	"slices"
	"time"

	"github.com/rcfarm/rcfarm/pkg/farm/alert"
	"github.com/rcfarm/rcfarm/pkg/farm/reconcile"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// reportUnreadable writes into the status why the farm cannot work on the controller, and alerts people. Meanwhile the
// farm changes nothing else of the controller.
func (p *pass) reportUnreadable(ctx context.Context, head store.Head, failure error) error {
	if p.mem.recordless {
		return nil
	}
	now := time.Now().UTC()
	st := rc.Status{RCID: p.id}
	if head.Status != nil {
		st = *head.Status
		st.Conditions = slices.Clone(st.Conditions)
	}
	st.Owner, st.LastError = p.kit.farm, reconcile.Few(textsOf(failure))
	st.Conditions = rc.SetCondition(st.Conditions, rc.Unclaimed, false, "", now)
	st.Conditions = rc.SetCondition(st.Conditions, rc.Unreadable, true, st.LastError, now)
	record := &head.RC.Value
	st.Incidents, _ = alert.Track(alert.Input{
		Before: head.Status, After: &st, Now: now, Notified: p.mem.notified,
		Quiet: record.Disabled || record.DeletedAt != nil,
	})
	if statusDiffers(head.Status, &st) {
		b := &batch{Batch: store.Batch{Fence: p.unit.fence, RCID: p.id, RCIndex: head.RC.Index, Status: &st}}
		p.traces.stale = true
		if err := p.writer(nil).commit(ctx, b); err != nil {
			return p.unit.afterFailure(ctx, err)
		}
		p.mem.reported = time.Now()
	}
	p.alert(ctx, &reconcile.Plan{Status: st})
	return nil
}

// track adds the incidents to the plan's status.
func (p *pass) track(plan *reconcile.Plan) {
	record := &p.head.RC.Value
	plan.Status.Conditions = rc.SetCondition(plan.Status.Conditions, rc.Unclaimed, false, "", p.snapshot.Now)
	if st := &plan.Status; st.LastError != "" || st.Is(rc.Unreadable) {
		st.Conditions = rc.SetCondition(st.Conditions, rc.Unreadable, st.LastError != "", st.LastError, p.snapshot.Now)
	}
	incidents, due := alert.Track(alert.Input{
		Before: p.head.Status, After: &plan.Status, Now: p.snapshot.Now, Notified: p.mem.notified,
		Quiet: record.Disabled || record.DeletedAt != nil,
	})
	plan.Status.Incidents = incidents
	if due > 0 && (plan.Again == 0 || due < plan.Again) {
		plan.Again = due
	}
}

// alert sends the alerts that are due by a status that has landed. It reports whether it sent one; the next pass stores
// that.
func (p *pass) alert(ctx context.Context, plan *reconcile.Plan) (alerted bool) {
	now := time.Now()
	pending, fresh, unsent := p.kit.notifier.NotifyDue(ctx, p.id, alert.Due(&plan.Status, now), p.mem.notified)
	p.mem.notified = pending
	if unsent > 0 {
		plan.Again = soonest(plan.Again, alert.AskAgain)
	}
	p.kit.metrics.Alerting(p.id, alert.Active(&plan.Status, now))
	return fresh > 0
}

// alertGone alerts people that the incidents of a controller are over, before its last record is removed.
func (m *memory) alertGone(ctx context.Context, to alert.Notifier, id string, st *rc.Status) {
	if st == nil {
		return
	}
	now := time.Now().UTC()
	for _, i := range st.Incidents {
		tell := alert.Notification{Incident: i, Resolved: true}
		if i.AlertedAt == nil && !m.notified[i.Key] || m.notified[tell.ID()] {
			continue
		}
		if i.ResolvedAt == nil {
			i.ResolvedAt = &now
		}
		if m.notified == nil {
			m.notified = map[string]bool{}
		}
		m.notified[tell.ID()] = true
		to.Notify(ctx, id, alert.Notification{Incident: i, Resolved: true})
	}
}
