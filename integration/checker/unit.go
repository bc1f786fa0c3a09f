package checker

import (
	"strings"

	"github.com/rcfarm/rcfarm/pkg/rc"
)

const keyLocks = prefix + "locks/"

// lockOf returns the lock of a controller's unit (docs/design/units.md).
func lockOf(rcID string) string { return keyLocks + rc.UnitOf(rcID) }

// lockedUnit counts the lock of a single revision for its unit.
func lockedUnit(key string) (unit string, isLock bool) {
	id, isLock := strings.CutPrefix(key, keyLocks)
	return rc.UnitOf(id), isLock
}

func (j *judgement) forgetWriter(c *Change) {
	if unit, isLock := lockedUnit(c.Key); isLock && c.Before.holds() != c.After.holds() {
		delete(j.writers, unit)
	}
}

func (k *Key) holds() string {
	if k == nil {
		return ""
	}
	return k.Session
}

// oneWriter judges P1 for a unit: one session writes the placements, intents and statuses of all its controllers, and
// its rollout's steps, until a lock changes hands. It judges by the writes' conditions, not by who holds which lock.
func (j *judgement) oneWriter(w *Write) {
	written := w.stepped()
	for id := range w.owned() {
		written[rc.UnitOf(id)] = true
	}
	for i := range w.Ops {
		unit, isLock := lockedUnit(w.Ops[i].DirEnt.Key)
		if !isLock || w.Ops[i].Verb != "check-session" || !written[unit] {
			continue
		}
		j.looked("P1 one writer")
		now := w.Ops[i].DirEnt.Session
		if before, known := j.writers[unit]; known && before != now {
			j.violated("P1", ruleTwoWriters, w.Index,
				"%s of unit %s was written under session %.8s, and under %.8s before; "+
					"its lock has not changed hands since",
				w.summary(), unit, now, before)
		}
		j.writers[unit] = now
	}
}
