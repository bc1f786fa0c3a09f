package checker

import (
	"strings"

	"github.com/rcfarm/rcfarm/pkg/rc"
)

type memberRecord struct {
	Selector string `json:"rc_selector"` // in these runs empty or one "key=value"; any for an owner of one controller
	RCID     string `json:"rc_id"`       // the only controller that it owns; empty: the selector decides
}

func (k *Key) member() *memberRecord { return record[memberRecord](k, "farms") }

func (m *memberRecord) matches(labels map[string]string) bool {
	key, value, _ := strings.Cut(m.Selector, "=")
	return m.Selector == "" || labels[key] == value
}

const ruleOutsider = "written by a farm that may not own it"

// chosen judges P1 for the choice of an owner: a farm writes a unit only if its selector matches one of the unit's
// controllers, and an owner of one controller writes that controller's unit. Any farm may own a unit without records. A
// farm may take a lock by mistake, because it read before labels or records changed. It then notices the mistake and
// releases the lock: otherwise the unit would not converge, which the end of the run would show.
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

type outsider struct {
	farm string
	memberRecord
}

// mayOwn reports whether a unit has a controller, and whether the farm may own it.
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
