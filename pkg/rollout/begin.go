package rollout

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/rc"
)

// ErrRefused means that a service cannot be rolled out as requested.
var ErrRefused = errors.New("the service cannot be rolled out like this")

// Begin makes a rollout. In place, it changes the service's only controller. Otherwise all other controllers of the
// service shrink, also those that an aborted rollout left. An error wraps ErrRefused and names the obstacle.
func Begin(s Start) (Started, error) { return begin(s, nil) }

// Retarget replaces the rollout under way with a rollout to another revision. The former target is abandoned: the new
// rollout removes its pods before those of older revisions.
func Retarget(running Record, s Start) (Started, error) {
	started, err := begin(s, &running)
	if err == nil && running.PreDeploy != nil {
		started.Delete = append(started.Delete, running.PreDeploy.RC)
	}
	return started, err
}

func begin(s Start, running *Record) (Started, error) {
	if err := s.checkUnit(); err != nil {
		return Started{}, err
	}
	s = s.counted(running)
	strategy := s.Knobs.StrategyName()
	if strategy == InPlaceStrategy && s.nothingToUpgrade() && !s.New.EachNode() {
		strategy = AvailabilityStrategy // the first pods are added in stages, by counts
	}
	if err := s.checkReplaceable(strategy); err != nil {
		return Started{}, err
	}
	groups, err := ordered(s.New.ReplicaGroups, s.Knobs.GroupOrder)
	if err != nil {
		return Started{}, err
	}
	s.Old = slices.SortedFunc(slices.Values(s.Old), func(a, b Seen) int {
		return cmp.Compare(revisionOf(a.RC), revisionOf(b.RC))
	})
	effect := inEffect(s, running)
	n, old := rc.Total(groups), 0
	for _, o := range s.Old {
		if o.RC.DeletedAt == nil && !s.standsBy(&o.RC, strategy, effect) {
			old += o.RC.Desired()
		}
	}
	update, err := s.Knobs.resolve(strategy, n, old)
	if err == nil {
		err = s.Knobs.checkLimits(update, strategy, n, len(s.Old) > 0 && !s.changesModeOnly())
	}
	if err != nil {
		return Started{}, err
	}
	if strategy != BlueGreenStrategy && strategy != InPlaceStrategy && n > 0 {
		update.Keep = max(0, s.serving(effect)-n)
	}
	rec := Record{
		ID: s.ID, Service: s.Service, Strategy: strategy, State: Progressing, By: s.By, Epoch: s.Epoch,
		Groups: groups, Knobs: field.Copy(s.Knobs), Update: update, SkipGates: s.SkipGates,
		Stages: forecast(strategy, n, update), Phase: PreDeploying,
		StartedAt: s.Now, StageSince: s.Now, ProgressAt: s.Now,
	}
	if s.PreDeploy != nil {
		p := *s.PreDeploy
		p.Until = s.Now.Add(PreDeployTimeout)
		rec.PreDeploy = &p
	}
	w := &Work{Record: &rec, obs: Observed{Now: s.Now, Epoch: s.Epoch}}
	switch {
	case strategy != InPlaceStrategy:
		err = w.beginScaling(s, running, effect)
	case s.New.EachNode() && len(s.Old) == 0:
		w.beginOnEachNode(s)
	default:
		err = w.beginInPlace(s, running)
	}
	if err != nil {
		return Started{}, err
	}
	w.setServiceFields()
	for _, m := range w.Members { // a deployment decides about all pods, also about adopted pods (R2)
		m.bump = true
	}
	w.audit(" to %s by %s, strategy %s", w.Upward().Name, s.By, strategy)
	return Started{Record: rec, RCs: w.changed(), Audit: w.d.Audit}, rec.Check()
}

// checkUnit refuses controllers of another unit: a controller never changes its unit (ADR 29).
func (s *Start) checkUnit() error {
	unit := rc.UnitOf(s.New.ID)
	check := func(id, name string) error {
		if of := rc.UnitOf(id); of != unit {
			return fmt.Errorf("%w: a controller never changes its unit, and %s is of %s, %s of %s; "+
				"delete the service and deploy it again", ErrRefused, name, of, s.New.Name, unit)
		}
		return nil
	}
	for _, o := range s.Old {
		if err := check(o.RC.ID, o.RC.Name); err != nil {
			return err
		}
	}
	if s.PreDeploy != nil {
		return check(s.PreDeploy.RC, s.PreDeploy.Name)
	}
	return nil
}

// serving returns how many pods of the revision in effect are both desired and placed. Pods of abandoned revisions are
// not kept, so they do not count.
func (s *Start) serving(effect int64) int {
	for _, o := range s.Old {
		if o.RC.DeletedAt != nil || revisionOf(o.RC) != effect || !inService(&o.RC) {
			continue
		}
		n := o.RC.Desired()
		if o.Status != nil {
			n = min(n, o.Status.Placed)
		}
		return n
	}
	return 0
}

func (s *Start) checkReplaceable(strategy string) error {
	why := cmp.Or(s.OnlyInPlace, onlyInPlace(&s.New))
	for i := range s.Old {
		if old := &s.Old[i].RC; old.EachNode() || old.HasOrdered() {
			why = cmp.Or(why, onlyInPlace(old))
		}
	}
	if why == "" || strategy == InPlaceStrategy || !s.hasPods() {
		return nil
	}
	return fmt.Errorf("%w: strategy %s replaces pods by others, and %s; allowed: %s",
		ErrRefused, strategy, why, InPlaceStrategy)
}

func (s *Start) hasPods() bool {
	return slices.ContainsFunc(s.Old, func(o Seen) bool { return o.HasPods() })
}

func (s *Start) nothingToUpgrade() bool {
	return !s.hasPods() && !slices.ContainsFunc(s.Old, func(o Seen) bool { return o.RC.ID == s.New.ID })
}

func (w *Work) beginScaling(s Start, running *Record, effect int64) error {
	all := 0
	for _, o := range s.Old {
		all += o.RC.Desired()
	}
	for _, o := range s.Old {
		if o.RC.ID == s.New.ID {
			return fmt.Errorf("%w: %s is the new revision and an old one", ErrRefused, o.RC.Name)
		}
		v := Revision{
			RC: o.RC.ID, Name: o.RC.Name, Rev: revisionOf(o.RC), Manifest: o.RC.ManifestDigest,
			Direction: Down, Before: rc.Counts(o.RC.ReplicaGroups),
			Abandoned: revisionOf(o.RC) != effect, Standby: s.standsBy(&o.RC, w.Record.Strategy, effect),
		}
		if running != nil && !v.Abandoned {
			v.Before = beforeIn(running, v)
		}
		v.Percent = new(o.RC.Desired() * 100 / max(1, all))
		v.setEnd(rc.Total(v.Before))
		w.Record.Revisions = append(w.Record.Revisions, v)
	}
	v := Revision{
		RC: s.New.ID, Name: s.New.Name, Rev: revisionOf(s.New), Manifest: s.New.ManifestDigest,
		Direction: Up, Percent: new(0),
		Before: fill(0, w.Record.Groups, Up), Standby: w.Record.Strategy == BlueGreenStrategy,
	}
	v.setEnd(w.Record.Total())
	w.Record.Revisions = append(w.Record.Revisions, v)
	for i := range w.Record.Revisions {
		seen := Seen{RC: s.New}
		if i < len(s.Old) {
			seen = s.Old[i]
		}
		w.Members = append(w.Members, newMember(&w.Record.Revisions[i], seen, s.Epoch))
	}
	up := w.Upward()
	up.setCount(0, w.Record.Groups)
	up.read.Generation, up.bump = 0, true
	return nil
}

func revisionOf(r rc.RC) int64 {
	if r.Service == nil {
		return 1 // the first revision was a controller without a service before
	}
	return r.Service.Revision
}

// beforeIn returns a revision's groups before the running rollout or, if that replaced another, before the first of the
// chain.
func beforeIn(running *Record, v Revision) []rc.ReplicaGroup {
	for _, was := range running.Revisions {
		if was.RC == v.RC && rc.Total(was.Before) > 0 {
			return field.Copy(was.Before)
		}
	}
	return v.Before
}

// inEffect returns the revision to which a rollback would go back, 0 for none. If a rollout is replaced, this is the
// revision from which that rollout came, or the revision to which it has switched the name. Otherwise it is the
// revision in the service's spec. Without one, it is the revision with the most pods, and revisions with the service's
// name come first.
func inEffect(s Start, running *Record) int64 {
	exists := func(rev int64) bool {
		return rev != 0 && slices.ContainsFunc(s.Old, func(o Seen) bool { return revisionOf(o.RC) == rev })
	}
	if running != nil {
		withTarget := running.RollsBack() || running.switched()
		base := int64(0)
		for _, v := range running.Revisions {
			if (v.Direction == Down || v.Direction == Up && withTarget) && !v.Abandoned && exists(v.Rev) {
				base = v.Rev
			}
		}
		return base
	}
	if exists(s.InEffect) {
		return s.InEffect
	}
	most, rev := 0, int64(0)
	for _, serves := range []bool{true, false} {
		for _, o := range s.Old {
			if n := o.RC.Desired(); inService(&o.RC) == serves && n > most {
				most, rev = n, revisionOf(o.RC)
			}
		}
		if rev != 0 {
			break
		}
	}
	return rev
}

func (w *Work) beginInPlace(s Start, running *Record) error {
	if len(s.Old) != 1 || s.Old[0].RC.ID != s.New.ID {
		names := field.Each(s.Old, func(o Seen) string { return o.RC.Name })
		return fmt.Errorf("%w: in-place changes the only controller of a service, and there are %s",
			ErrRefused, field.Few(names, 5, ", "))
	}
	was := s.Old[0].RC
	v := Revision{
		RC: was.ID, Name: s.New.Name, Rev: revisionOf(s.New), Manifest: s.New.ManifestDigest,
		Direction: Up, Before: rc.Counts(was.ReplicaGroups),
	}
	v.setEnd(w.Record.Total())
	w.Record.Revisions = []Revision{v}
	before := field.Copy(was)
	switch p := was.InPlace; {
	case running != nil && running.Before != nil:
		before = field.Copy(*running.Before)
	case p != nil && p.From != "": // left by a rollout that was given up; a rollback must not complete that rollout
		former := field.Copy(*p)
		before.ManifestDigest, before.GroupManifests = former.From, former.FromGroups
	}
	w.Record.Before = &before
	upgrade := initialInPlace(&was, &s.New)
	changing := upgrade.Counted(w.Record.Groups)
	upgrade.Limit = min(upgrade.Limit, changing)
	w.Record.Update.shareOf(changing)
	w.Record.Stages = forecast(InPlaceStrategy, changing, w.Record.Update)
	least := w.Record.Update.Min // this becomes the controller's own minimum, also after the rollout
	if upgrade.Keep != nil {
		w.forecastModeChange(s, changing, was.Desired())
	}
	m := newMember(&w.Record.Revisions[0], s.Old[0], s.Epoch)
	next := field.Copy(s.New)
	next.Generation, next.InPlace = was.Generation, &upgrade
	if next.MinAvailable == nil && (s.Knobs.MinAvailable != nil || s.Knobs.MaxUnavailable != nil) {
		next.MinAvailable = &least
	}
	m.Ctrl = next
	w.Members = []*Member{m}
	return nil
}

func ordered(groups []rc.ReplicaGroup, order []string) ([]rc.ReplicaGroup, error) {
	out := rc.Counts(groups)
	at := map[string]int{}
	for i, role := range order {
		if !slices.ContainsFunc(groups, func(g rc.ReplicaGroup) bool { return g.Role == role }) {
			return nil, fmt.Errorf("%w: group_order names %q; allowed: the roles of its groups", ErrRefused, role)
		}
		at[role] = i - len(order)
	}
	slices.SortStableFunc(out, func(a, b rc.ReplicaGroup) int { return cmp.Compare(at[a.Role], at[b.Role]) })
	return out, nil
}

func forecast(strategy string, n int, u Update) int {
	most := u.Surge
	switch {
	case strategy == BlueGreenStrategy:
		return 2
	case strategy == InPlaceStrategy:
		most = u.Step
	case strategy == ResourceUtilStrategy:
		most += u.Unavailable
	case most == 0:
		most = u.Unavailable
	}
	by := max(1, min(u.Step, most))
	return max(1, (n+by-1)/by)
}

// Rescale changes the counts at the end of the rollout under way. obs has the controllers of the record's revisions.
func Rescale(running Record, groups []rc.ReplicaGroup, obs Observed, by string) (Started, error) {
	w := newWork(running, obs)
	if len(w.Members) < len(running.Revisions) || w.Upward() == nil {
		return Started{}, fmt.Errorf("%w: a controller of the rollout cannot be read", ErrRefused)
	}
	if w.Upward().Ctrl.EachNode() {
		groups = running.Groups // the number of nodes is the count
	}
	roles := roleNames(running.Groups)
	if slices.ContainsFunc(groups, func(g rc.ReplicaGroup) bool {
		return len(groups) != len(roles) || !slices.Contains(roles, g.Role)
	}) {
		return Started{}, fmt.Errorf("%w: during a rollout counts may change, and groups may not; it has %s",
			ErrRefused, strings.Join(roles, ", "))
	}
	old := 0
	for _, m := range w.In(Down) {
		if !m.Abandoned || inService(&m.Ctrl) {
			old += rc.Total(m.Before)
		}
	}
	next, err := ordered(groups, roles)
	if err != nil {
		return Started{}, err
	}
	update, err := running.Knobs.resolve(running.Strategy, rc.Total(next), old)
	if err == nil && !running.RollsBack() { // fitLimits lets a rollback move
		err = running.Knobs.checkLimits(update, running.Strategy, rc.Total(next), true)
	}
	if err != nil {
		return Started{}, err
	}
	w.Record.Groups, w.Record.Update = next, update
	if running.RollsBack() {
		w.fitLimits()
	}
	w.strategy().Rescale(w)
	w.setServiceFields()
	w.audit(" now ends with %d replicas, by %s", rc.Total(next), by)
	return Started{Record: *w.Record, RCs: w.changed(), Audit: w.d.Audit}, w.Record.Check()
}

func roleNames(groups []rc.ReplicaGroup) []string {
	return field.Each(groups, func(g rc.ReplicaGroup) string { return g.Role })
}

// Expired returns the revisions to remove from a service's history. It keeps the one in effect, and the newest of the
// others; keep is their number.
func Expired(revisions []int64, inEffect int64, keep int) []int64 {
	others := slices.DeleteFunc(slices.Clone(revisions), func(r int64) bool { return r == inEffect })
	slices.Sort(others)
	return others[:max(0, len(others)-keep)]
}
