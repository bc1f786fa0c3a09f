package rollout

import (
	"github.com/rcfarm/rcfarm/pkg/rc"
)

// A controller with a pod on every matching node names no numbers (ADR 24). A rollout counts the pods that it has on living nodes, anew at every look,
// and takes that for the count of its record: stages, limits and what is awaited follow from it. No count is ever written.

// counted returns the controller with its pods as the count of its record, where it has one on each node.
func (s Seen) counted() Seen {
	if s.RC.EachNode() {
		s.RC = s.RC.CountedBy(s.onLivingNodes())
	}
	return s
}

func (s *Seen) onLivingNodes() int {
	if s.Status == nil {
		return 0
	}
	return max(0, s.Status.Placed-s.Status.Lost-s.Status.Unmanaged)
}

// counted returns the start with the counts that follow from nodes: the new controller is to have the pods that are there.
func (s Start) counted() Start {
	old := make([]Seen, len(s.Old))
	n := 0
	for i := range s.Old {
		old[i] = s.Old[i].counted()
		if old[i].RC.ID == s.New.ID {
			n = old[i].onLivingNodes()
		}
	}
	s.Old = old
	if s.New.EachNode() {
		s.New = s.New.CountedBy(n)
	}
	return s
}

// onlyInPlace returns why the pods of a controller cannot have successors elsewhere, "" if they can.
func onlyInPlace(r *rc.RC) string {
	switch {
	case r.EachNode():
		return "its pods are one on each node"
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
