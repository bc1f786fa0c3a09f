package rollout

import (
	"fmt"
	"slices"

	"github.com/rcfarm/rcfarm/pkg/rc"
)

// A change between counts and a pod on each node is an upgrade in place that goes in stages (ADR 16). Its limit counts
// the pods that are where the new mode asks for them and run what it asks for: a stage lets so many more come, or be
// upgraded. Pods beyond the new number stay at first, and go in stages, too, after new pods have served.

// changesMode reports whether a controller changes between counts and a pod on each node.
func (s *Start) changesMode() bool {
	return len(s.Old) == 1 && s.Old[0].RC.ID == s.New.ID && s.Old[0].RC.EachNode() != s.New.EachNode()
}

// changesModeOnly reports whether that is all, so that no pod is upgraded.
func (s *Start) changesModeOnly() bool {
	return s.changesMode() && s.Old[0].RC.InPlace == nil && s.Old[0].RC.Digests().Equal(s.New.Digests())
}

// InStages reports whether the change of a controller changes the mode in stages, or goes on with such a change that
// was given up. Ordered groups have stages of their own: an index at a time. Groups of other roles than those of each
// node would have no room beside pods that stay.
func InStages(was, next *rc.RC) bool {
	other := slices.ContainsFunc(next.ReplicaGroups, func(g rc.ReplicaGroup) bool { return g.Ordered || g.Role != rc.DefaultRole })
	return !other && (was.EachNode() != next.EachNode() || was.InStages())
}

// beginsStages returns what a change of mode begins with: no pod is known to be right, and all may stay, however many
// there are. from is what pods run that do not run the new manifests.
func beginsStages(from, to rc.Digests) rc.InPlace {
	keep := rc.MaxReplicas
	out := rc.InPlace{Keep: &keep}
	if !from.Equal(to) {
		out.From, out.FromGroups = from.Base, from.Groups
	}
	return out
}

// beginStages says beforehand how many stages there will be, and how many pods stay available: until more have come, no
// more than there are. had is how many pods there are.
func (w *Work) beginStages(s Start, n, had int) {
	r := w.Record
	r.Stages = forecast(InPlaceStrategy, max(n-s.Right, had-n), r.Update)
	r.Update.Min = min(r.Update.Min, had)
}

// kept returns how many pods beyond those asked for stay.
func (m *Member) kept() int { return kept(&m.Ctrl) }

func kept(r *rc.RC) int {
	if !r.InStages() {
		return 0
	}
	return *r.InPlace.Keep
}

// nextOfMode returns the limit of the next stage of a change of mode, of so many pods, to n of them. Once a stage has
// shown that new pods serve, or where none is missing, as many go that are beyond those asked for.
func (m *Member) nextOfMode(n, size, stage int) int {
	st, p := m.Status, *m.Ctrl.InPlace
	right := max(p.Limit, st.UpdatedAvailable)
	target := m.atLeast(min(n, right+size))
	keep := min(*p.Keep, max(0, st.Placed-st.Desired))
	if stage > 1 || target <= st.UpdatedAvailable {
		keep = max(0, keep-size)
	}
	p.Keep = &keep
	m.Ctrl.InPlace = &p
	return target
}

// isStageDone reports whether so many pods are right and serve as the stage asks for, or all that can: those on
// machines that are away are not awaited, nor are those that find no node. What is beyond has stopped, as far as it
// may not stay.
func (m *Member) isStageDone(target int) bool {
	st := m.Status
	away := st.Lost + st.Unmanaged
	alive := min(target, max(0, st.Desired-away))
	serve := st.UpdatedAvailable >= alive && (alive > 0 || target == 0 || st.Desired == 0) ||
		st.UpdatedAvailable > 0 && st.Updated >= target && st.Available-st.UnmanagedAvailable >= st.Placed-away
	if st.Is(rc.InsufficientNodes) {
		serve = serve || st.UpdatedAvailable >= max(1, st.Placed-away-m.kept()) // those that the stage keeps are never right
	}
	return serve && m.beyond() == 0
}

// beyond returns how many pods of a change of mode have yet to stop.
func (m *Member) beyond() int {
	if !m.Ctrl.InStages() {
		return 0
	}
	return max(0, m.living()-m.desired()-m.kept())
}

// lacksInStage says what a stage of a change of mode waits for, "" for nothing.
func (m *Member) lacksInStage() string {
	switch n := m.beyond(); {
	case m.isStageDone(*m.Target):
		return ""
	case m.Status.UpdatedAvailable < *m.Target:
		return fmt.Sprintf("%d of %d pods of %s are where they should be, as they should be, and available",
			m.Status.UpdatedAvailable, *m.Target, m.Name)
	default:
		return fmt.Sprintf("%d pods of %s have yet to stop", n, m.Name)
	}
}
