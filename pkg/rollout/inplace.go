package rollout

import (
	"slices"
	"time"

	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/rc"
)

// inPlace lets more and more pods of one controller run its new manifest.
type inPlace struct{}

// Type implements Strategy.
func (inPlace) Type() string { return InPlaceStrategy }

// Rollout implements Strategy.
func (inPlace) Rollout() *Rollout { return &Rollout{[]RolloutStep{InPlaceStep{}}} }

// Plan implements Strategy.
func (inPlace) Plan(w *Work) bool {
	m, n := w.Upward(), w.Record.Total()
	target := n
	if m.Ctrl.InPlace != nil {
		target = min(n, m.Ctrl.InPlace.Limit+w.stageSize(nil))
		target = m.atLeast(target)
	}
	percent := 100
	if n > 0 {
		percent = min(100, target*100/n)
	}
	m.Target, m.Percent = &target, &percent
	return true
}

// Next implements Strategy.
func (inPlace) Next(w *Work) Phase {
	if m := w.Upward(); m.Target != nil && *m.Target >= w.Record.Total() {
		return Ending
	}
	return Moving
}

// Reverse implements Strategy. The controller becomes what it was. Pods that run what it was go on; the limit says how many of the others follow.
func (inPlace) Reverse(w *Work) bool {
	m, before := w.Upward(), w.Record.Before
	if before == nil {
		return false
	}
	limit := 0
	if m.Ctrl.InPlace != nil {
		limit = m.Ctrl.InPlace.Limit
	}
	was := field.Copy(*before)
	was.ID, was.Name, was.Generation, was.ChangedBy = m.Ctrl.ID, m.Ctrl.Name, m.Ctrl.Generation, m.Ctrl.ChangedBy
	was.Service, was.Mutator, was.DeletedAt = m.Ctrl.Service, m.Ctrl.Mutator, m.Ctrl.DeletedAt
	was.InPlace = &rc.InPlace{Limit: max(0, was.Desired()-limit)}
	m.Ctrl, w.Record.Before = was, nil
	w.Record.Groups, m.Manifest, m.Target = rc.Counts(was.ReplicaGroups), was.ManifestDigest, nil
	return true
}

// Rescale implements Strategy.
func (inPlace) Rescale(w *Work) {
	m, n := w.Upward(), w.Record.Total()
	m.Ctrl.ReplicaGroups = m.Ctrl.WithCounts(inOrder(m.Ctrl.ReplicaGroups, w.Record.Groups))
	m.final(n)
	if m.Target != nil {
		less := m.atLeast(min(*m.Target, n))
		m.Target = &less
	}
	if b := w.Record.Before; b != nil && (b.EachNode() || !m.Ctrl.EachNode()) { // else it has a count that somebody asked for
		b.ReplicaGroups = b.WithCounts(fit(b.ReplicaGroups, w.Record.Groups, n))
	}
}

// atLeast returns a target that takes no pod back because nodes went: what was upgraded on the others stays.
func (m *Member) atLeast(target int) int {
	if m.Ctrl.EachNode() && m.Ctrl.InPlace != nil {
		return max(target, m.Ctrl.InPlace.Limit)
	}
	return target
}

// Finish implements Strategy.
func (inPlace) Finish(w *Work) {
	m := w.Upward()
	m.Ctrl.Mutator, m.Ctrl.InPlace = "", nil
}

// InPlaceStep raises the limit of an upgrade in place.
type InPlaceStep struct{}

// Execute implements RolloutStep.
func (InPlaceStep) Execute(_ *Work, up, _ []*Member) {
	for _, m := range up {
		if m.Ctrl.InPlace != nil {
			m.Ctrl.InPlace.Limit = *m.Target
		}
	}
}

// Verify implements RolloutStep.
func (InPlaceStep) Verify(_ *Work, up, _ []*Member) (bool, time.Duration, error) {
	for _, m := range up {
		if m.ahead() {
			return false, 0, nil
		}
		if err := m.hopeless(); err != nil {
			return false, 0, err
		}
		if !m.allUpgraded(*m.Target) {
			return false, 0, nil
		}
	}
	return true, 0, nil
}

// ModifyStatus implements RolloutStep.
func (InPlaceStep) ModifyStatus(w *Work, up, down []*Member) { w.progress(up, down) }

// ahead reports whether the controller is about to change in what its status speaks of.
func (m *Member) ahead() bool {
	a, b := m.Ctrl, m.read
	if (a.InPlace == nil) != (b.InPlace == nil) || !a.Digests().Equal(b.Digests()) || !m.caughtUp() {
		return true
	}
	return a.InPlace != nil && a.InPlace.Limit != b.InPlace.Limit
}

// pastUpgrade returns what a new upgrade in place begins with, from the controller as it is and the manifests that it gets. A rollout that was given up
// has left pods of two manifests: those that run the new one already are not taken back, and what the others get is never the new one.
func pastUpgrade(was *rc.RC, next rc.Digests) (from rc.Digests, limit int) {
	from = was.Digests()
	p := was.InPlace
	if p != nil && p.From != "" {
		from = p.Former()
	}
	switch {
	case p == nil && from.Equal(next):
		return rc.Digests{}, was.Desired()
	case p == nil:
		return from, 0
	case was.Digests().Equal(next):
		limit = p.Limit
	case p.Former().Equal(next):
		limit = max(0, was.Desired()-p.Limit)
	}
	if from.Equal(next) {
		from = rc.Digests{}
	}
	return from, limit
}

// inOrder returns groups in the order in which a controller has them.
func inOrder(as, groups []rc.ReplicaGroup) []rc.ReplicaGroup {
	out := field.Copy(groups)
	at := func(role string) int {
		return slices.IndexFunc(as, func(g rc.ReplicaGroup) bool { return g.Role == role })
	}
	slices.SortStableFunc(out, func(a, b rc.ReplicaGroup) int { return at(a.Role) - at(b.Role) })
	return out
}
