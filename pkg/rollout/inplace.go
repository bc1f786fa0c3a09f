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
	m := w.Upward()
	n := m.changing(w.Record.Groups)
	target := n
	switch {
	case m.Ctrl.InStages():
		if m.Status == nil {
			return false // how many pods are right already is not known
		}
		target = m.nextOfMode(n, w.stageSize(n, nil), w.Record.Stage)
	case m.Ctrl.InPlace != nil:
		target = m.atLeast(min(n, m.Ctrl.InPlace.Limit+w.stageSize(n, nil)))
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
	if m := w.Upward(); m.Target != nil && *m.Target >= m.changing(w.Record.Groups) && m.kept() == 0 {
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
	var forth rc.InPlace
	if m.Ctrl.InPlace != nil {
		forth = *m.Ctrl.InPlace
	}
	was := field.Copy(*before)
	was.ID, was.Name, was.Generation, was.ChangedBy = m.Ctrl.ID, m.Ctrl.Name, m.Ctrl.Generation, m.Ctrl.ChangedBy
	was.Service, was.DeletedAt = m.Ctrl.Service, m.Ctrl.DeletedAt
	was.InPlace = &rc.InPlace{Roles: forth.Roles, Limit: max(0, forth.Counted(was.ReplicaGroups)-forth.Limit)}
	m.Ctrl = was
	w.Record.Groups, m.Manifest, m.Target = rc.Counts(was.ReplicaGroups), was.ManifestDigest, nil
	return true
}

// Rescale implements Strategy.
func (inPlace) Rescale(w *Work) {
	m, n := w.Upward(), w.Record.Total()
	m.Ctrl.ReplicaGroups = m.Ctrl.WithCounts(inOrder(m.Ctrl.ReplicaGroups, w.Record.Groups))
	m.final(n)
	w.Record.Update.shareOf(m.changing(w.Record.Groups))
	if m.Target != nil {
		less := m.atLeast(min(*m.Target, m.changing(w.Record.Groups)))
		m.Target = &less
	}
	if b := w.Record.Before; b != nil && (b.EachNode() || !m.Ctrl.EachNode()) { // else it has a count that somebody asked for
		b.ReplicaGroups = b.WithCounts(fit(b.ReplicaGroups, w.Record.Groups, n))
	}
}

// shareOf makes a step that is a share one of the n pods that change.
func (u *Update) shareOf(n int) {
	if u.Ratio > 0 {
		u.Step = StageReplicas(n, 100, u.Ratio)
	}
}

// changing returns how many replicas of groups the upgrade in place is about: those of the roles whose manifest changes.
func (m *Member) changing(groups []rc.ReplicaGroup) int {
	if m.Ctrl.InPlace == nil {
		return total(groups)
	}
	return m.Ctrl.InPlace.Counted(groups)
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
	m.Ctrl.InPlace = nil
	if w.Record.lowersMinimum() {
		m.Ctrl.MinAvailable = field.Copy(w.Record.Before.MinAvailable)
	}
}

// lowersMinimum reports whether the controller has the minimum of the rollout in place of its own. In place that is so on
// the way back: its own may be all of its pods, and then none could be upgraded.
func (r *Record) lowersMinimum() bool { return r.GoesBack() && r.Before != nil }

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
func (InPlaceStep) Verify(w *Work, up, _ []*Member) (bool, time.Duration, error) {
	for _, m := range up {
		if m.ahead() {
			return false, 0, nil
		}
		if err := w.hopeless(m); err != nil {
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
	return a.InPlace != nil && (a.InPlace.Limit != b.InPlace.Limit || m.kept() != kept(&b))
}

// begins returns what a new upgrade in place begins with, from the controller as it is and what it becomes. A rollout that was given up has left
// pods of two manifests: those that run the new one already are not taken back, and what the others get is never the new one.
func begins(was, next *rc.RC) rc.InPlace {
	from, to := was.Digests(), next.Digests()
	p := was.InPlace
	if p != nil && p.From != "" {
		from = p.Former()
	}
	if InStages(was, next) {
		return beginsStages(from, to)
	}
	var out rc.InPlace
	roles := changingRoles(was.ReplicaGroups, next.ReplicaGroups, from, to)
	switch {
	case p != nil && was.Digests().Equal(to):
		out = rc.InPlace{Roles: p.Roles, Limit: p.Limit}
	case p != nil && from.Equal(to):
		return rc.InPlace{Roles: p.Roles, Limit: max(0, p.Counted(was.ReplicaGroups)-p.Limit)}
	case len(roles) == 0:
		return rc.InPlace{Limit: was.Desired()}
	case len(roles) < len(next.ReplicaGroups):
		out.Roles = roles
	}
	if p != nil && out.Limit == 0 {
		out.Limit = min(p.Limit, rc.Total(slices.DeleteFunc(slices.Clone(was.ReplicaGroups), func(g rc.ReplicaGroup) bool {
			return !p.Counts(g.Role) || !slices.Contains(roles, g.Role) || was.ManifestOf(g.Role) != to.Of(g.Role)
		})))
	}
	if !from.Equal(to) {
		out.From, out.FromGroups = from.Base, from.Groups
	}
	return out
}

// changingRoles returns the roles whose pods get another manifest. A new role that has a manifest of its own has no former one: its pods begin with it.
func changingRoles(was, next []rc.ReplicaGroup, from, to rc.Digests) []string {
	var roles []string
	for _, g := range next {
		isNew := !slices.ContainsFunc(was, func(w rc.ReplicaGroup) bool { return w.Role == g.Role })
		if from.Of(g.Role) != to.Of(g.Role) && (!isNew || to.Groups[g.Role] == "") {
			roles = append(roles, g.Role)
		}
	}
	return roles
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
