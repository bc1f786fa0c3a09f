// Package alert tells somebody, once, when something about a controller needs them, and once when it is over. What is an
// incident follows from the controller's status alone; what was told is kept in that status, so that it outlives farms.
package alert

import (
	"context"
	"time"

	"github.com/rcfarm/rcfarm/pkg/obs"
	"github.com/rcfarm/rcfarm/pkg/rc"
)

// Alerter tells people, or the system that wakes them. Both methods may be called again with the same key when a farm
// died between telling and recording that it told: receivers take the key as the identity of the incident. Both wait
// for nobody, and report whether it was told. What was not yet is asked for again by later looks, until it was.
type Alerter interface {
	Raise(ctx context.Context, in Incident) (told bool)
	Resolve(ctx context.Context, in Incident) (told bool)
}

// Incident is what an alerter is told.
type Incident struct {
	rc.Incident
	RCID string // empty: it is about a record that belongs to no controller
	Farm string // that tells it
}

// Teller tells people of incidents, in the name of a farm.
type Teller struct {
	Farm string // id
	To   Alerter
}

// One tells one thing about a controller, "" for no controller, and reports whether it was told.
func (t Teller) One(ctx context.Context, rcID string, what Tell) (told bool) {
	in := Incident{Incident: what.Incident, RCID: rcID, Farm: t.Farm}
	if what.Resolved {
		return t.To.Resolve(ctx, in)
	}
	return t.To.Raise(ctx, in)
}

// AskAgain is when to look again at what was to be told, and is not known to have been.
const AskAgain = 30 * time.Second

// Due tells what is due and was not told yet, by Tell.ID. It returns what of it is to be stored as told, how many of
// these are new, and how many are still to be told.
func (t Teller) Due(ctx context.Context, rcID string, due []Tell, told map[string]bool) (pending map[string]bool, fresh, untold int) {
	pending = map[string]bool{}
	for _, what := range due {
		switch {
		case told[what.ID()]:
			pending[what.ID()] = true
		case t.One(ctx, rcID, what):
			pending[what.ID()] = true
			fresh++
		default:
			untold++
		}
	}
	return pending, fresh, untold
}

// Log is an Alerter that writes to the log: a warning when an incident begins, a line when it is over.
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

// Fields describes the incident for the log.
func (in Incident) Fields() obs.Fields {
	f := obs.Fields{
		obs.Incident: in.Key, obs.Condition: string(in.Type), obs.Reason: in.Reason, "since": in.Since.Format(time.RFC3339),
	}
	if in.RCID != "" {
		f[obs.RCID] = in.RCID
	}
	if in.ResolvedAt != nil {
		f[obs.Took] = in.ResolvedAt.Sub(in.Since).Round(time.Second).String()
	}
	return f
}
