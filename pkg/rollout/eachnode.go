package rollout

import (
	"github.com/rcfarm/rcfarm/pkg/rc"
)

// A controller with a pod on each matching node has no counts (ADR 24). At every look, a rollout uses the number of its
// pods as the count, which is never written. Pods on dead nodes are counted, too, because otherwise every pause of a
// preparer would stop pods or end the rollout.

// counted sets the count of a controller with a pod on each node to the number of its pods or, without a usable status,
// to last.
func (s Seen) counted(last int) Seen {
	if !s.RC.EachNode() {
		return s
	}
	switch {
	case s.Status == nil:
	case !s.RC.InStages():
		last = s.Status.Placed
	case s.Status.ObservedGeneration == s.RC.Generation: // an older status may be about the other mode
		last = s.Status.Desired
	}
	// A record may have at most MaxReplicas. The last stage ends with all nodes, even if there are more.
	last = max(0, min(last, rc.MaxReplicas))
	s.RC = s.RC.CountedBy(last)
	return s
}

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
	return enoughServe(st, target, st.Placed)
}

// enoughServe reports whether enough of n pods are upgraded and available. It does not wait for pods on lost machines
// and unmanaged nodes. If all pods are on such nodes, it returns false: the manifest may break its machines, and must
// not go to others.
func enoughServe(st *rc.Status, target, n int) bool {
	absent := st.Lost + st.Unmanaged
	present := max(0, n-absent)
	if st.UpdatedAvailable >= min(target, present) && (present > 0 || target == 0 || n == 0) {
		return true
	}
	// It is also enough if the stage has upgraded its pods, and all that are present are available.
	return st.UpdatedAvailable > 0 && st.Updated >= target && st.Available-st.UnmanagedAvailable >= st.Placed-absent
}

// counted returns the start with counts that follow from the nodes. Without a status, the final count of the replaced
// rollout is used.
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

func onlyInPlace(r *rc.RC) string {
	switch {
	case r.EachNode():
		return "its pods are one on each node"
	case r.HasOrdered():
		return "it has an ordered group, in which no index may have two living copies"
	case r.Strategy == rc.Static:
		return "its pods are static"
	}
	return ""
}

func (w *Work) beginOnEachNode(s Start) {
	v := Revision{
		RC: s.New.ID, Name: s.New.Name, Rev: revisionOf(s.New), Manifest: s.New.ManifestDigest,
		Direction: Up, Before: w.Record.Groups,
	}
	v.setEnd(w.Record.Total())
	w.Record.Revisions = []Revision{v}
	m := newMember(&w.Record.Revisions[0], Seen{RC: s.New}, s.Epoch)
	m.Ctrl.InPlace = &rc.InPlace{}
	m.read.Generation, m.bump = 0, true
	w.Members = []*Member{m}
}

func (w *Work) recount() {
	up := w.Upward()
	if up == nil || !up.Ctrl.EachNode() || w.Record.Strategy != InPlaceStrategy ||
		w.Record.Total() == up.Ctrl.Desired() {
		return
	}
	w.Record.Groups = up.Ctrl.ReplicaGroups
	w.strategy().Rescale(w)
}

func uncounted(r rc.RC) rc.RC {
	if r.EachNode() {
		r.ReplicaGroups = nil
	}
	return r
}
