package rollout

import (
	"fmt"
	"slices"

	"github.com/rcfarm/rcfarm/pkg/rc"
)

// A change between counts and a pod on each node is an upgrade in place in stages (ADR 16). A pod is correct if it is
// where the new mode wants it and runs the new manifest. The limit is the number of correct pods, and each stage raises
// it. At first, pods beyond the new number are kept. They stop in stages, too, after new pods have become available.

func (s *Start) changesMode() bool {
	return len(s.Old) == 1 && s.Old[0].RC.ID == s.New.ID && s.Old[0].RC.EachNode() != s.New.EachNode()
}

func (s *Start) changesModeOnly() bool {
	return s.changesMode() && s.Old[0].RC.InPlace == nil && s.Old[0].RC.Digests().Equal(s.New.Digests())
}

// InStages reports whether the mode of a controller changes in stages, or continues such a change that was given up.
// Ordered groups have their own stages: one index at a time. Groups with another role than each-node's could not be
// added beside pods that are kept.
func InStages(was, next *rc.RC) bool {
	other := slices.ContainsFunc(next.ReplicaGroups, func(g rc.ReplicaGroup) bool {
		return g.Ordered || g.Role != rc.DefaultRole
	})
	return !other && (was.EachNode() != next.EachNode() || was.InStages())
}

// initialInStages returns the limits at the start of a change of mode: no pod is known to be correct, and all are kept.
func initialInStages(from, to rc.Digests) rc.InPlace {
	out := rc.InPlace{Keep: new(rc.MaxReplicas)}
	if !from.Equal(to) {
		out.From, out.FromGroups = from.Base, from.Groups
	}
	return out
}

// forecastModeChange sets the expected stages, and lowers the minimum to the pods that there are (had).
func (w *Work) forecastModeChange(s Start, n, had int) {
	r := w.Record
	r.Stages = forecast(InPlaceStrategy, max(n-s.Correct, had-n), r.Update)
	r.Update.Min = min(r.Update.Min, had)
}

func (m *Member) kept() int { return kept(&m.Ctrl) }

func kept(r *rc.RC) int {
	if !r.InStages() {
		return 0
	}
	return *r.InPlace.Keep
}

// nextModeLimit returns the limit of the next stage of a change of mode. size is the number of pods of a stage, and n
// the number of all pods. After the first stage, or if it needs no new pod, it also lowers the number of kept pods by
// size.
func (m *Member) nextModeLimit(n, size, stage int) int {
	st, p := m.Status, *m.Ctrl.InPlace
	correct := max(p.Limit, st.UpdatedAvailable)
	target := m.notBelowLimit(min(n, correct+size))
	keep := min(*p.Keep, max(0, st.Placed-st.Desired))
	if stage > 1 || target <= st.UpdatedAvailable {
		keep = max(0, keep-size)
	}
	p.Keep = &keep
	m.Ctrl.InPlace = &p
	return target
}

// isStageDone reports whether pods that are not kept have stopped, and as many are correct and available as the stage
// asks for, or as possible.
func (m *Member) isStageDone(target int) bool {
	return m.excess() == 0 && (enoughServe(m.Status, target, m.Status.Desired) || m.allPresentServe())
}

// allPresentServe reports whether no new pod finds a node, and all pods but those that the stage keeps are available
// and correct. The farm then changes existing pods instead of adding new ones (foundNoNodes in pkg/farm/reconcile), so
// fewer pods exist than the stage asks for. Without this rule it would time out.
func (m *Member) allPresentServe() bool {
	st := m.Status
	return st.Is(rc.InsufficientNodes) && st.UpdatedAvailable >= max(1, st.Placed-st.Lost-st.Unmanaged-m.kept())
}

func (m *Member) excess() int {
	if !m.Ctrl.InStages() {
		return 0
	}
	return max(0, m.living()-m.desired()-m.kept())
}

func (m *Member) waitsForInStage() string {
	switch n := m.excess(); {
	case m.isStageDone(*m.Target):
		return ""
	case m.Status.UpdatedAvailable < *m.Target:
		return fmt.Sprintf("%d of %d pods of %s run the new manifest on the right nodes and are available",
			m.Status.UpdatedAvailable, *m.Target, m.Name)
	default:
		return fmt.Sprintf("%d pods of %s have yet to stop", n, m.Name)
	}
}
