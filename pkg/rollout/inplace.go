package rollout

import (
	"slices"

	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/rc"
)

type inPlace struct{}

// Steps implements Strategy.
func (inPlace) Steps() []Step { return []Step{InPlaceStep{}} }

// Plan implements Strategy.
func (inPlace) Plan(w *Work) bool {
	m := w.Upward()
	n := m.changing(w.Record.Groups)
	target := n
	switch {
	case m.Ctrl.InStages():
		if m.Status == nil {
			return false // the number of correct pods is not known
		}
		target = m.nextModeLimit(n, w.stageSize(n, nil), w.Record.Stage)
	case m.Ctrl.InPlace != nil:
		target = m.notBelowLimit(min(n, m.Ctrl.InPlace.Limit+w.stageSize(n, nil)))
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

// Reverse implements Strategy. The controller gets its former record. Pods that run the former manifest are the limit,
// which the stages of the rollback raise.
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
	m.Ctrl.ReplicaGroups = m.Ctrl.WithCounts(orderedAs(m.Ctrl.ReplicaGroups, w.Record.Groups))
	m.setEnd(n)
	w.Record.Update.shareOf(m.changing(w.Record.Groups))
	if m.Target != nil {
		m.Target = new(m.notBelowLimit(min(*m.Target, m.changing(w.Record.Groups))))
	}
	// An operator chose the counts in Before if the mode changed from counts to each node, so they are kept.
	if b := w.Record.Before; b != nil && (b.EachNode() || !m.Ctrl.EachNode()) {
		b.ReplicaGroups = b.WithCounts(fit(b.ReplicaGroups, w.Record.Groups, n))
	}
}

func (u *Update) shareOf(n int) {
	if u.Ratio > 0 {
		u.Step = StageReplicas(n, 100, u.Ratio)
	}
}

func (m *Member) changing(groups []rc.ReplicaGroup) int {
	if m.Ctrl.InPlace == nil {
		return rc.Total(groups)
	}
	return m.Ctrl.InPlace.Counted(groups)
}

// notBelowLimit returns target but, with a pod on each node, at least the present limit. Otherwise an upgraded pod
// would get the former manifest again when the number of nodes shrinks.
func (m *Member) notBelowLimit(target int) int {
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

// lowersMinimum reports whether the controller has the rollout's minimum instead of its own. A rollback in place needs
// that: its own may be all of its pods, and then none could be changed.
func (r *Record) lowersMinimum() bool { return r.RollsBack() && r.Before != nil }

// InPlaceStep raises the limit of an upgrade in place.
type InPlaceStep struct{}

// Execute implements Step.
func (InPlaceStep) Execute(_ *Work, up, _ []*Member) {
	for _, m := range up {
		if m.Ctrl.InPlace != nil {
			m.Ctrl.InPlace.Limit = *m.Target
		}
	}
}

// Verify implements Step.
func (InPlaceStep) Verify(w *Work, up, _ []*Member) (bool, error) {
	for _, m := range up {
		if m.statusIsOld() {
			return false, nil
		}
		if err := w.hopeless(m); err != nil || !m.allUpgraded(*m.Target) {
			return false, err
		}
	}
	return true, nil
}

func (m *Member) statusIsOld() bool {
	a, b := m.Ctrl, m.read
	if (a.InPlace == nil) != (b.InPlace == nil) || !a.Digests().Equal(b.Digests()) || !m.caughtUp() {
		return true
	}
	return a.InPlace != nil && (a.InPlace.Limit != b.InPlace.Limit || m.kept() != kept(&b))
}

// initialInPlace returns the limits at the start of an upgrade in place. After a rollout that was given up, pods have
// two manifests. Those with the new one keep it, and From is never the new one.
func initialInPlace(was, next *rc.RC) rc.InPlace {
	from, to := was.Digests(), next.Digests()
	p := was.InPlace
	if p != nil && p.From != "" {
		from = p.Former()
	}
	if InStages(was, next) {
		return initialInStages(from, to)
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
		upgraded := slices.DeleteFunc(slices.Clone(was.ReplicaGroups), func(g rc.ReplicaGroup) bool {
			return !p.Counts(g.Role) || !slices.Contains(roles, g.Role) || was.ManifestOf(g.Role) != to.Of(g.Role)
		})
		out.Limit = min(p.Limit, rc.Total(upgraded))
	}
	if !from.Equal(to) {
		out.From, out.FromGroups = from.Base, from.Groups
	}
	return out
}

// changingRoles returns the roles whose pods get another manifest. Pods of a new role with its own manifest begin with
// it.
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

func orderedAs(as, groups []rc.ReplicaGroup) []rc.ReplicaGroup {
	out := field.Copy(groups)
	at := func(role string) int {
		return slices.IndexFunc(as, func(g rc.ReplicaGroup) bool { return g.Role == role })
	}
	slices.SortStableFunc(out, func(a, b rc.ReplicaGroup) int { return at(a.Role) - at(b.Role) })
	return out
}
