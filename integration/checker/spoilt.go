package checker

import "bytes"

// A run overwrites a record with what nobody can read, and mends it some time later. Until then the rules judge by the version before; see
// HostileMark.

// believed returns the version of a key that the rules judge by.
func (k *Key) believed() *Key {
	if k != nil && k.hostile() {
		return k.trusted
	}
	return k
}

// byRun reports whether the run itself made the change: it spoilt the record, or mended it.
func (c Change) byRun() bool {
	before, after := c.Before.believed(), c.After.believed()
	if before == c.Before && after == c.After {
		return false // nothing is spoilt
	}
	return before == after || before != nil && after != nil && bytes.Equal(before.Value, after.Value)
}

// frozen judges that pods stay as they are while their controller's record cannot be read.
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

// repeats reports whether a status says that its controller cannot be worked on, or has no owner. It has the generation
// of the status before, because what is added is not computed from the controller's record.
func (c *Change) repeats() bool {
	before, after := c.Before.status(), c.After.status()
	if after == nil || !after.is("Unreadable") && (!after.is("Unclaimed") || after.Owner != "") {
		return false
	}
	return before == nil && after.ObservedGeneration == 0 || before != nil && after.ObservedGeneration == before.ObservedGeneration
}
