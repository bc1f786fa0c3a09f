package alert

import (
	"slices"
	"time"

	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/rc"
)

// Input is what Track needs to know.
type Input struct {
	Before *rc.Status // as stored; nil: there is none
	After  *rc.Status // the status that is about to be stored, with its conditions
	Now    time.Time
	Quiet  bool // the controller is disabled or deleted: people are not alerted if it does not converge
	// Notified has the notifications about Before that this farm has delivered since it read Before, by ID.
	Notified map[string]bool
}

// Notification is sent after the status was stored.
type Notification struct {
	rc.Incident
	Resolved bool
}

// ID differs between the beginning and the end of an incident.
func (n Notification) ID() string {
	if n.Resolved {
		return n.Key + "/resolved"
	}
	return n.Key
}

// Track returns the incidents for the next status. due is the time until the first of them alerts people; zero: none
// waits.
//
// Each step of an incident is stored before the next one:
//   - the incident was seen;
//   - people are alerted, after the incident has lasted long enough (AlertedAt);
//   - the incident is over (ResolvedAt);
//   - the incident is removed, after the notification of its end was delivered.
//
// An incident that ends too early for an alert is removed without one. If a farm dies between a notification and the
// record of its delivery, the next owner sends it again, or sends the end, so each arrives at least once. A new
// incident of a kind waits until the last one's end was delivered.
func Track(in Input) (incidents []rc.Incident, due time.Duration) {
	known := map[rc.ConditionType]bool{} // kinds that have an incident already
	if in.Before != nil {
		for _, old := range in.Before.Incidents {
			next, keep := in.step(old)
			if !keep {
				continue
			}
			incidents = append(incidents, next)
			known[next.Type] = true
		}
	}
	for _, rule := range rc.Alerts {
		reason, since, is := in.state(rule.Type)
		if is && !known[rule.Type] {
			incidents = append(incidents, rc.Incident{
				Key: rc.IncidentKey(in.After.RCID, rule.Type, since), Type: rule.Type, Reason: reason, Since: since,
			})
		}
	}
	for _, i := range incidents {
		if i.AlertedAt != nil || i.ResolvedAt != nil {
			continue
		}
		wait, _ := after(i.Type)
		if left := wait - in.Now.Sub(i.Since); left > 0 && (due == 0 || left < due) {
			due = left
		}
	}
	return incidents, due
}

// step returns whether to keep an incident.
func (in *Input) step(i rc.Incident) (next rc.Incident, keep bool) {
	i.Reason = field.Cut(i.Reason, rc.MaxReason) // another version may have written a longer reason
	field.NotAhead(&i.Since, in.Now)             // a time in the future would delay the alert until then
	if i.AlertedAt == nil && in.Notified[Notification{Incident: i}.ID()] {
		now := in.Now
		i.AlertedAt = &now
	}
	if i.ResolvedAt != nil {
		return i, !in.Notified[Notification{Incident: i, Resolved: true}.ID()]
	}
	wait, known := after(i.Type)
	if reason, _, still := in.state(i.Type); still {
		if i.AlertedAt == nil && known && wait > 0 && in.Now.Sub(i.Since) >= wait {
			i.Reason = field.Cut(reason, rc.MaxReason) // the alert has the present reason, not the first one
		}
		return i, true
	}
	if i.AlertedAt == nil && (!known || in.Now.Sub(i.Since) < wait) {
		return i, false
	}
	// A farm may have sent the alert, and died before it stored the delivery.
	now := in.Now
	i.ResolvedAt = &now
	return i, true
}

// Due returns the notifications that a stored status asks for, in order.
func Due(st *rc.Status, now time.Time) []Notification {
	var due []Notification
	for _, i := range st.Incidents {
		switch {
		case i.ResolvedAt != nil:
			due = append(due, Notification{Incident: i, Resolved: true})
		case i.AlertedAt == nil && isDue(i, now):
			due = append(due, Notification{Incident: i})
		}
	}
	return due
}

// Active returns the kinds of incidents that have lasted long enough and are not over.
func Active(st *rc.Status, now time.Time) []rc.ConditionType {
	var types []rc.ConditionType
	for _, i := range st.Incidents {
		if i.ResolvedAt == nil && (i.AlertedAt != nil || isDue(i, now)) {
			types = append(types, i.Type)
		}
	}
	return types
}

func isDue(i rc.Incident, now time.Time) bool {
	wait, known := after(i.Type)
	return known && now.Sub(i.Since) >= wait
}

// after returns how long an incident must last before people are alerted. An unknown kind is from another version,
// whose farms send its alert.
func after(t rc.ConditionType) (wait time.Duration, known bool) {
	for _, rule := range rc.Alerts {
		if rule.Type == t {
			return rule.After, true
		}
	}
	return 0, false
}

func (in *Input) state(t rc.ConditionType) (reason string, since time.Time, is bool) {
	switch t {
	case rc.NodeLost: // the condition is about lost and unmanaged nodes
		c, _ := condition(in.After, rc.NodeLost)
		return c.Reason, in.Now, in.After.Lost > 0
	case rc.PreparerGone:
		c, _ := condition(in.After, rc.NodeLost)
		return c.Reason, in.Now, in.After.Unmanaged > 0
	case rc.NotConverged:
		c, found := condition(in.After, rc.Converged)
		return c.Reason, c.Since, found && !c.True && !in.Quiet
	default:
		c, found := condition(in.After, t)
		return c.Reason, c.Since, found && c.True
	}
}

func condition(st *rc.Status, t rc.ConditionType) (rc.Condition, bool) {
	i := slices.IndexFunc(st.Conditions, func(c rc.Condition) bool { return c.Type == t })
	if i < 0 {
		return rc.Condition{}, false
	}
	return st.Conditions[i], true
}
