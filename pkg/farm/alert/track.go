package alert

import (
	"slices"
	"time"

	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/rc"
)

// Input is what incidents follow from.
type Input struct {
	Before *rc.Status // as stored; nil: there is none
	After  *rc.Status // as it is about to be stored, conditions included
	Now    time.Time
	Quiet  bool // the controller is disabled or deleted: that it does not converge is nobody's concern
	// Notified are the incidents of Before that this farm has told since Before was read last, by Tell.ID.
	Notified map[string]bool
}

// Tell is one thing to tell after the status has landed.
type Tell struct {
	rc.Incident
	Resolved bool
}

// ID tells apart what is told: the beginning and the end of an incident.
func (t Tell) ID() string {
	if t.Resolved {
		return t.Key + "/resolved"
	}
	return t.Key
}

// Track returns the incidents that belong into the next status, and when a look is due because one of them will have
// lasted long enough (zero: none will).
//
// An incident goes through these steps, each of which is stored before the next: seen; told, after it lasted (AlertedAt);
// over (ResolvedAt); the end told (removed). One that is over before it could be told is removed in silence. A farm that dies
// between telling and storing leaves it to its successor to tell again, or to tell that it is over: at least once, never
// never. The next incident of a kind begins when the end of the last one was told, so that there are never more than kinds.
func Track(in Input) (incidents []rc.Incident, due time.Duration) {
	known := map[rc.ConditionType]bool{} // of which one is there already
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

// step moves one incident that is known already.
func (in *Input) step(i rc.Incident) (next rc.Incident, keep bool) {
	i.Reason = field.Cut(i.Reason, rc.MaxReason) // whoever wrote it
	field.NotAhead(&i.Since, in.Now)             // or people would hear of it only when the clock gets there
	if i.AlertedAt == nil && in.Notified[Tell{Incident: i}.ID()] {
		now := in.Now
		i.AlertedAt = &now
	}
	if i.ResolvedAt != nil {
		return i, !in.Notified[Tell{Incident: i, Resolved: true}.ID()]
	}
	wait, known := after(i.Type)
	if reason, _, still := in.state(i.Type); still {
		if i.AlertedAt == nil && known && wait > 0 && in.Now.Sub(i.Since) >= wait {
			i.Reason = field.Cut(reason, rc.MaxReason) // people are told what is so when they are told, not what was when it began
		}
		return i, true
	}
	if i.AlertedAt == nil && (!known || in.Now.Sub(i.Since) < wait) {
		return i, false
	}
	// Old enough to have been told: whoever did may not have come to store it.
	now := in.Now
	i.ResolvedAt = &now
	return i, true
}

// Due returns what of a stored status has to be told, in order.
func Due(st *rc.Status, now time.Time) []Tell {
	var tells []Tell
	for _, i := range st.Incidents {
		switch {
		case i.ResolvedAt != nil:
			tells = append(tells, Tell{Incident: i, Resolved: true})
		case i.AlertedAt == nil && isDue(i, now):
			tells = append(tells, Tell{Incident: i})
		}
	}
	return tells
}

// Active returns the kinds of incidents that are open and old enough to be told.
func Active(st *rc.Status, now time.Time) []rc.ConditionType {
	var types []rc.ConditionType
	for _, i := range st.Incidents {
		if i.ResolvedAt == nil && (i.AlertedAt != nil || isDue(i, now)) {
			types = append(types, i.Type)
		}
	}
	return types
}

// isDue reports whether an incident has lasted long enough to be told.
func isDue(i rc.Incident, now time.Time) bool {
	wait, known := after(i.Type)
	return known && now.Sub(i.Since) >= wait
}

// after returns how long an incident must last before it is told. Unknown ones are another version's: it tells of them, if it has not.
func after(t rc.ConditionType) (wait time.Duration, known bool) {
	for _, rule := range rc.Alerts {
		if rule.Type == t {
			return rule.After, true
		}
	}
	return 0, false
}

// state reports whether something is the case, why, and since when.
func (in *Input) state(t rc.ConditionType) (reason string, since time.Time, is bool) {
	switch t {
	case rc.NodeLost: // the condition is about both
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
