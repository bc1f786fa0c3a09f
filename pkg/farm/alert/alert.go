// Package alert alerts people when a controller needs them, and when the incident is over. Only the controller's status
// decides what is an incident. It has the delivered alerts, for the next farm.
package alert

import (
	"context"
	"time"

	"github.com/rcfarm/rcfarm/pkg/obs"
	"github.com/rcfarm/rcfarm/pkg/rc"
)

// Alerter alerts people, or the system that wakes them. Both methods return at once, and report whether the alert was
// delivered; if not, later looks call again. If a farm died before it recorded a delivery, the next one calls again,
// too, so the receiver must use the key as the identity of the incident.
type Alerter interface {
	Raise(ctx context.Context, in Incident) (delivered bool)
	Resolve(ctx context.Context, in Incident) (delivered bool)
}

// Incident is an incident as an alerter gets it.
type Incident struct {
	rc.Incident
	RCID string // empty: it is about a record that belongs to no controller
	Farm string // that sends it
}

// Notifier sends notifications in the name of a farm.
type Notifier struct {
	Farm string // id
	To   Alerter
}

// Notify sends one notification about a controller, "" for none.
func (n Notifier) Notify(ctx context.Context, rcID string, what Notification) (delivered bool) {
	in := Incident{Incident: what.Incident, RCID: rcID, Farm: n.Farm}
	if what.Resolved {
		return n.To.Resolve(ctx, in)
	}
	return n.To.Raise(ctx, in)
}

// AskAgain is the time to the next look if a delivery is not known.
const AskAgain = 30 * time.Second

// NotifyDue sends the due notifications that were not delivered before. It returns three results: all due notifications
// that are delivered by now, which the caller stores and passes as before the next time; how many of them this call has
// delivered; and how many could not be delivered. Maps are by Notification.ID.
func (n Notifier) NotifyDue(
	ctx context.Context, rcID string, due []Notification, before map[string]bool,
) (delivered map[string]bool, fresh, undelivered int) {
	delivered = map[string]bool{}
	for _, what := range due {
		switch {
		case before[what.ID()]:
			delivered[what.ID()] = true
		case n.Notify(ctx, rcID, what):
			delivered[what.ID()] = true
			fresh++
		default:
			undelivered++
		}
	}
	return delivered, fresh, undelivered
}

// Log is an Alerter that logs.
type Log struct{ Logger obs.Logger }

// Raise implements Alerter.
func (l Log) Raise(_ context.Context, in Incident) bool {
	l.Logger.WithFields(in.Fields()).Warn("alert raised")
	return true
}

// Resolve implements Alerter.
func (l Log) Resolve(_ context.Context, in Incident) bool {
	l.Logger.WithFields(in.Fields()).Info("alert resolved")
	return true
}

// Fields returns the incident's fields for the log.
func (i Incident) Fields() obs.Fields {
	f := obs.Fields{
		obs.Incident: i.Key, obs.Condition: string(i.Type), obs.Reason: i.Reason, "since": i.Since.Format(time.RFC3339),
	}
	if i.RCID != "" {
		f[obs.RCID] = i.RCID
	}
	if i.ResolvedAt != nil {
		f[obs.Took] = i.ResolvedAt.Sub(i.Since).Round(time.Second).String()
	}
	return f
}
