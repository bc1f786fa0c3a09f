package rollout

import (
	"github.com/rcfarm/rcfarm/pkg/rc"
)

// A controller with a pod on every matching node names no numbers (ADR 24). A rollout counts the pods that it has, anew at every look, and takes that
// for the count of its record: stages, limits and what is awaited follow from it. Pods on nodes that are away count, or every pause of a preparer would
// take pods back, or end the rollout; only what is awaited leaves them out. No count is ever written.

// counted returns the controller with its pods as the count of its record, where it has one on each node. Without a status there are as many as were
// known last.
func (s Seen) counted(last int) Seen {
	if !s.RC.EachNode() {
		return s
	}
	switch {
	case s.Status == nil:
	case !s.RC.InStages():
		last = s.Status.Placed
	case s.Status.ObservedGeneration == s.RC.Generation: // one of before may be of the other mode
		last = s.Status.Desired
	}
	last = max(0, min(last, rc.MaxReplicas)) // what a record may have; the last stage ends with all nodes, however many there are
	s.RC = s.RC.CountedBy(last)
	return s
}

// allUpgraded reports whether so many pods run the new manifest as there can: all that are alive, or else as many as are asked for, of which those
// that are alive are available. Somebody has to be: a manifest that takes its machines away shall not go on to others.
func (m *Member) allUpgraded(target int) bool {
	st := m.Status
	if st == nil {
		return false
	}
	switch {
	case m.Ctrl.InStages():
		return m.isStageDone(target)
	case !m.Ctrl.EachNode():
		return st.UpdatedAvailable >= target && m.living() <= m.desired()
	}
	alive := max(0, st.Placed-st.Lost-st.Unmanaged)
	return st.UpdatedAvailable >= min(target, alive) && (alive > 0 || target == 0 || st.Placed == 0) ||
		st.UpdatedAvailable > 0 && st.Updated >= target && st.Available-st.UnmanagedAvailable >= alive
}

// counted returns the start with the counts that follow from nodes: the new controller is to have the pods that are there.
// Where a status does not say how many nodes ask for one, what the rollout that is replaced ends with does.
func (s Start) counted(running *Record) Start {
	old := make([]Seen, len(s.Old))
	n := 0
	for i := range s.Old {
		last := 0
		if running != nil {
			last = running.Total()
		} else if st := s.Old[i].Status; st != nil {
			last = st.Placed
		}
		old[i] = s.Old[i].counted(last)
		if st := old[i].Status; old[i].RC.ID == s.New.ID && st != nil {
			n = old[i].RC.Desired()
		}
	}
	s.Old = old
	if s.New.EachNode() {
		if s.changesMode() && s.Nodes > 0 {
			n = min(s.Nodes, rc.MaxReplicas)
		}
		s.New = s.New.CountedBy(n)
	}
	return s
}

// onlyInPlace returns why the pods of a controller cannot have successors elsewhere, "" if they can.
func onlyInPlace(r *rc.RC) string {
	switch {
	case r.EachNode():
		return "its pods are one on each node"
	case r.HasOrdered():
		return "it has an ordered group, in which no index may have two living copies"
	case r.Strategy == rc.Static:
		return "its pods are static"
	default:
		return ""
	}
}

// beginOnEachNode makes the first controller of a service. Its pods come to all nodes at once: there is nothing to go in stages.
func (w *Work) beginOnEachNode(s Start) {
	v := Revision{RC: s.New.ID, Name: s.New.Name, Rev: revisionOf(s.New), Manifest: s.New.ManifestDigest, Direction: Up, Before: w.Record.Groups}
	v.final(w.Record.Total())
	w.Record.Revisions = []Revision{v}
	m := newMember(&w.Record.Revisions[0], Seen{RC: s.New}, s.Epoch)
	m.Ctrl.InPlace = &rc.InPlace{}
	m.read.Generation, m.bump = 0, true
	w.Members = []*Member{m}
}

// recount lets an upgrade in place end with the pods that there are by now.
func (w *Work) recount() {
	up := w.Upward()
	if up == nil || !up.Ctrl.EachNode() || w.Record.Strategy != InPlaceStrategy || w.Record.Total() == up.Ctrl.Desired() {
		return
	}
	w.Record.Groups = up.Ctrl.ReplicaGroups
	w.strategy().Rescale(w)
}

// uncounted returns the record as it is stored.
func uncounted(r rc.RC) rc.RC {
	if r.EachNode() {
		r.ReplicaGroups = nil
	}
	return r
}
