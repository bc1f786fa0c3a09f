package checker

import "bytes"

// A run spoils a record, and repairs it later. Until then the rules use the version before the unreadable value; see
// HostileMark.

func (k *Key) believed() *Key {
	if k != nil && k.hostile() {
		return k.trusted
	}
	return k
}

// byRun reports whether the run itself spoilt or repaired the record.
func (c Change) byRun() bool {
	before, after := c.Before.believed(), c.After.believed()
	if before == c.Before && after == c.After {
		return false // nothing is spoilt
	}
	return before == after || before != nil && after != nil && bytes.Equal(before.Value, after.Value)
}

// frozen: pods do not change while their controller's record cannot be read.
func (j *judgement) frozen(w *Write, id string) {
	if record := w.before(prefix + "rcs/" + id); record.believed() == record {
		return
	}
	j.looked("P2 frozen")
	for i := range w.Changes {
		if c := &w.Changes[i]; c.controllerOf() == id && c.Key != prefix+"status/"+id {
			j.violated("P2", "changed while its record cannot be read", w.Index, "%s of controller %s", c.Key, id)
		}
	}
}

// repeats reports whether a status only says that its controller is unreadable, or has no owner. Such a status keeps
// the generation before it, because it is not computed from the controller.
func (c *Change) repeats() bool {
	before, after := c.Before.status(), c.After.status()
	if after == nil || !after.is("Unreadable") && (!after.is("Unclaimed") || after.Owner != "") {
		return false
	}
	return before == nil && after.ObservedGeneration == 0 ||
		before != nil && after.ObservedGeneration == before.ObservedGeneration
}
