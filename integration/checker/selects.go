package checker

import (
	"strings"

	"github.com/rcfarm/rcfarm/pkg/rc"
)

// memberRecord is what a farm says about itself.
type memberRecord struct {
	Selector string `json:"rc_selector"` // in these runs empty or one "key=value", but for owners of one controller
	RCID     string `json:"rc_id"`       // the only controller that it owns; empty: those that the selector matches
}

func (k *Key) member() *memberRecord { return record[memberRecord](k, "farms") }

// mayOwn reports whether the farm works on controllers with these labels.
func (m *memberRecord) mayOwn(labels map[string]string) bool {
	key, value, _ := strings.Cut(m.Selector, "=")
	return m.Selector == "" || labels[key] == value
}

// chosen is P1 for the choice of an owner: a farm takes the lock of a unit only if its selector matches one of the unit's controllers, and
// an owner of one controller only that of its unit. Whose records are all gone is anybody's.
func (j *judgement) chosen(w *Write) {
	for i := range w.Changes {
		c := &w.Changes[i]
		unit, isLock := lockedUnit(c.Key)
		if !isLock || c.After.holds() == "" || c.Before.holds() == c.After.holds() || c.After.lockValue() == nil {
			continue
		}
		farm := c.After.lockValue().Farm
		m := w.before(prefix + "farms/" + farm).member()
		if m == nil || m.Selector == "" && m.RCID == "" {
			continue
		}
		known, match := false, m.RCID != "" && rc.UnitOf(m.RCID) == unit
		for _, k := range w.state.groups["rcs"] {
			if r := k.controller(); r != nil && rc.UnitOf(r.ID) == unit {
				known, match = true, match || m.RCID == "" && m.mayOwn(r.Labels)
			}
		}
		if !known {
			continue
		}
		j.looked("P1 chosen owner")
		if m.RCID != "" {
			j.looked("P1 owner of one controller")
		}
		if !match {
			j.violated("P1", "taken by a farm that may not own it", w.Index, "%s took %s; it works on %q, or on %q alone", farm, c.Key, m.Selector, m.RCID)
		}
	}
}
