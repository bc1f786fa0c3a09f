package checker

import (
	"strings"

	"github.com/rcfarm/rcfarm/pkg/rc"
)

const keyLocks = prefix + "locks/"

// lockOf returns the key of the lock under which a controller is written: that of its unit (docs/adr/0029-units.md).
func lockOf(rcID string) string { return keyLocks + rc.UnitOf(rcID) }

// lockedUnit returns the unit whose controllers a lock protects, or should: the lock of a single revision counts for its unit, too.
func lockedUnit(key string) (unit string, isLock bool) {
	id, isLock := strings.CutPrefix(key, keyLocks)
	return rc.UnitOf(id), isLock
}

// forgetWriter notes that a unit may have another owner from now on.
func (j *judgement) forgetWriter(c *Change) {
	if unit, isLock := lockedUnit(c.Key); isLock && c.Before.holds() != c.After.holds() {
		delete(j.writers, unit)
	}
}

// holds returns the session that holds a lock; "" where none does.
func (k *Key) holds() string {
	if k == nil {
		return ""
	}
	return k.Session
}

// oneWriter is P1 for a unit as a whole: one session writes the placements, intents and statuses of all its
// controllers, and the steps of its rollout, until a lock of the unit changes hands. It looks at what each write says
// that it depends on, whoever holds which lock.
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
			j.violated("P1", ruleTwoWriters, w.Index, "%s of unit %s was written under session %.8s, and under %.8s before; its lock has not changed hands since",
				w.summary(), unit, now, before)
		}
		j.writers[unit] = now
	}
}
