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

// matches reports whether the farm works on controllers with these labels.
func (m *memberRecord) matches(labels map[string]string) bool {
	key, value, _ := strings.Cut(m.Selector, "=")
	return m.Selector == "" || labels[key] == value
}

const ruleOutsider = "written by a farm that may not own it"

// chosen is P1 for the choice of an owner: a farm writes a unit only if its selector matches one of the unit's controllers,
// and an owner of one controller only that controller's unit. A unit without any record is anybody's. A farm may take
// a lock by mistake, because it read before the labels changed or before a lost record came back. It learns that with
// the lock, and gives it back. One that kept it would be found at the end of a run, because the unit did not converge.
func (j *judgement) chosen(w *Write) {
	for i := range w.Changes {
		c := &w.Changes[i]
		unit, isLock := lockedUnit(c.Key)
		if !isLock || c.Before.holds() == c.After.holds() {
			continue
		}
		delete(j.outsiders, unit)
		if c.After.holds() == "" || c.After.lockValue() == nil {
			continue
		}
		farm := c.After.lockValue().Farm
		m := w.before(prefix + "farms/" + farm).member()
		if m == nil || m.Selector == "" && m.RCID == "" {
			continue
		}
		known, may := w.mayOwn(m, unit)
		if known {
			j.looked("P1 chosen owner")
		}
		if known && m.RCID != "" {
			j.looked("P1 owner of one controller")
		}
		if !may {
			j.outsiders[unit] = outsider{farm, *m}
		}
	}
	written := w.stepped()
	for id := range w.owned() {
		written[rc.UnitOf(id)] = true
	}
	for unit := range written {
		by, taken := j.outsiders[unit]
		if !taken {
			continue
		}
		if known, may := w.mayOwn(&by.memberRecord, unit); known && !may {
			j.violated("P1", ruleOutsider, w.Index, "%s wrote %s of unit %s; it works on %q, or on %q alone",
				by.farm, w.summary(), unit, by.Selector, by.RCID)
		}
	}
}

// outsider is a farm that took the lock of a unit that it may not own.
type outsider struct {
	farm string
	memberRecord
}

// mayOwn reports whether a unit has a controller, and whether a farm may own it.
func (w *Write) mayOwn(m *memberRecord, unit string) (known, may bool) {
	if m.RCID != "" && rc.UnitOf(m.RCID) == unit {
		may = true
	}
	for _, k := range w.state.groups["rcs"] {
		if r := k.controller(); r != nil && rc.UnitOf(r.ID) == unit {
			known, may = true, may || m.RCID == "" && m.matches(r.Labels)
		}
	}
	return known, may
}
