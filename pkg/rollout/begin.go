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

// ErrRefused means that a service cannot be rolled out as asked.
var ErrRefused = errors.New("the service cannot be rolled out like this")

// Begin makes a rollout. All other controllers of the service go down, whichever deployment or abort left them. An error wraps ErrRefused and
// names what is in the way.
func Begin(s Start) (Started, error) {
	return begin(s, nil)
}

// Retarget replaces the rollout that is under way by one to another revision. What it was going to is abandoned, and goes down first.
func Retarget(running Record, s Start) (Started, error) {
	started, err := begin(s, &running)
	if err == nil && running.PreDeploy != nil {
		started.Delete = append(started.Delete, running.PreDeploy.RC)
	}
	return started, err
}

func begin(s Start, running *Record) (Started, error) {
	if err := s.oneUnit(); err != nil {
		return Started{}, err
	}
	s = s.counted(running)
	kind := s.Knobs.Kind()
	if kind == InPlaceStrategy && s.nothingToUpgrade() && !s.New.EachNode() {
		kind = AvailabilityStrategy // the first pods come as counts, in stages
	}
	if err := s.movable(kind); err != nil {
		return Started{}, err
	}
	groups, err := ordered(s.New.ReplicaGroups, s.Knobs.GroupOrder)
	if err != nil {
		return Started{}, err
	}
	s.Old = slices.SortedFunc(slices.Values(s.Old), func(a, b Seen) int { return cmp.Compare(revisionOf(a.RC), revisionOf(b.RC)) })
	effect := inEffect(s, running)
	n, old := total(groups), 0
	for _, o := range s.Old {
		if o.RC.DeletedAt == nil && !s.standsBy(&o.RC, kind, effect) {
			old += o.RC.Desired()
		}
	}
	update, err := s.Knobs.resolve(kind, n, old)
	if err == nil {
		err = s.Knobs.room(update, kind, n, len(s.Old) > 0 && !s.changesModeOnly())
	}
	if err != nil {
		return Started{}, err
	}
	if kind != BlueGreenStrategy && kind != InPlaceStrategy && n > 0 {
		update.Keep = max(0, s.serving(effect)-n)
	}
	rec := Record{
		ID: s.ID, Service: s.Service, Strategy: kind, State: Progressing, By: s.By, Epoch: s.Epoch, Groups: groups, Knobs: field.Copy(s.Knobs), Update: update,
		Stages: forecast(kind, n, update), Phase: PreDeploying, StartedAt: s.Now, StageSince: s.Now, ProgressAt: s.Now, SkipGates: s.SkipGates,
	}
	if s.PreDeploy != nil {
		p := *s.PreDeploy
		p.Until = s.Now.Add(PreDeployTimeout)
		rec.PreDeploy = &p
	}
	w := &Work{Record: &rec, obs: Observed{Now: s.Now, Epoch: s.Epoch}}
	switch {
	case kind != InPlaceStrategy:
		err = w.beginScaling(s, running, effect)
	case s.New.EachNode() && len(s.Old) == 0:
		w.beginOnEachNode(s)
	default:
		err = w.beginInPlace(s, running)
	}
	if err != nil {
		return Started{}, err
	}
	w.dress()
	for _, m := range w.Members { // a deployment says of each what is wanted, also where pods were found running (R2)
		m.bump = true
	}
	w.audit("rollout %s of %s to %s by %s, strategy %s", rec.ID, rec.Service, w.Upward().Name, s.By, kind)
	return Started{Record: rec, RCs: w.changed(), Audit: w.d.Audit}, rec.Check()
}

// oneUnit refuses controllers of another unit than the new one's: a controller never changes its unit (ADR 29).
func (s *Start) oneUnit() error {
	unit := rc.UnitOf(s.New.ID)
	check := func(id, name string) error {
		if of := rc.UnitOf(id); of != unit {
			return fmt.Errorf("%w: a controller never changes its unit, and %s is of %s, %s of %s; delete the service and deploy it again", ErrRefused, name, of, s.New.Name, unit)
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

// serving returns how many pods the revision in effect asks for and has. Those of a revision that was given up are not
// among them: they go first.
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

// movable refuses strategies that replace pods by others where pods cannot have successors elsewhere.
func (s *Start) movable(kind string) error {
	why := cmp.Or(s.OnlyInPlace, onlyInPlace(&s.New))
	for i := range s.Old {
		if old := &s.Old[i].RC; old.EachNode() || old.HasOrdered() {
			why = cmp.Or(why, onlyInPlace(old))
		}
	}
	if why == "" || kind == InPlaceStrategy || !s.hasPods() {
		return nil
	}
	return fmt.Errorf("%w: strategy %s replaces pods by others, and %s; allowed: %s", ErrRefused, kind, why, InPlaceStrategy)
}

func (s *Start) hasPods() bool {
	return slices.ContainsFunc(s.Old, func(o Seen) bool { return o.HasPods() })
}

// nothingToUpgrade reports whether there is neither a pod nor a controller that is to stay.
func (s *Start) nothingToUpgrade() bool {
	return !s.hasPods() && !slices.ContainsFunc(s.Old, func(o Seen) bool { return o.RC.ID == s.New.ID })
}

// beginScaling makes the new controller with no pods, and lets all the others go down.
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
			RC: o.RC.ID, Name: o.RC.Name, Rev: revisionOf(o.RC), Manifest: o.RC.ManifestDigest, Direction: Down, Before: rc.Counts(o.RC.ReplicaGroups),
			Abandoned: revisionOf(o.RC) != effect, Standby: s.standsBy(&o.RC, w.Record.Strategy, effect),
		}
		if running != nil && !v.Abandoned {
			v.Before = beforeIn(running, v)
		}
		percent := 0
		if all > 0 {
			percent = o.RC.Desired() * 100 / all
		}
		v.Percent = &percent
		v.final(total(v.Before))
		w.Record.Revisions = append(w.Record.Revisions, v)
	}
	none := 0
	v := Revision{
		RC: s.New.ID, Name: s.New.Name, Rev: revisionOf(s.New), Manifest: s.New.ManifestDigest, Direction: Up, Percent: &none,
		Before: fill(0, w.Record.Groups, true), Standby: w.Record.Strategy == BlueGreenStrategy,
	}
	v.final(w.Record.Total())
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
		return 1 // it was a controller of its own before it became the first revision
	}
	return r.Service.Revision
}

// beforeIn returns what a revision had before the first of the rollouts that replaced each other.
func beforeIn(running *Record, v Revision) []rc.ReplicaGroup {
	for _, was := range running.Revisions {
		if was.RC == v.RC && total(was.Before) > 0 {
			return field.Copy(was.Before)
		}
	}
	return v.Before
}

// inEffect returns the revision that a rollback would go back to: the one that the service's spec names unless a rollout to it is what is replaced, else the one that
// the replaced rollout came from, or to which it has switched the name, else the one with the most pods, those under the service's name before others. 0: none.
func inEffect(s Start, running *Record) int64 {
	given := func(rev int64) bool {
		return rev != 0 && slices.ContainsFunc(s.Old, func(o Seen) bool { return revisionOf(o.RC) == rev })
	}
	if running != nil {
		back, base := running.GoesBack(), int64(0)
		for _, v := range running.Revisions {
			if v.Direction != Stay && !v.Abandoned && (v.Direction == Down || back || running.switched()) && given(v.Rev) {
				base = v.Rev
			}
		}
		return base
	}
	if given(s.InEffect) {
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

// beginInPlace changes the only controller of the service.
func (w *Work) beginInPlace(s Start, running *Record) error {
	if len(s.Old) != 1 || s.Old[0].RC.ID != s.New.ID {
		var names []string
		for _, o := range s.Old {
			names = append(names, o.RC.Name)
		}
		return fmt.Errorf("%w: in-place changes the only controller of a service, and there are %s", ErrRefused, field.Few(names, 5, ", "))
	}
	was := s.Old[0].RC
	v := Revision{
		RC: was.ID, Name: s.New.Name, Rev: revisionOf(s.New), Manifest: s.New.ManifestDigest, Direction: Up, Before: rc.Counts(was.ReplicaGroups),
	}
	v.final(w.Record.Total())
	w.Record.Revisions = []Revision{v}
	before := field.Copy(was)
	switch p := was.InPlace; {
	case running != nil && running.Before != nil:
		before = field.Copy(*running.Before)
	case p != nil && p.From != "": // of a rollout that was given up, which a way back must not carry out
		former := field.Copy(*p)
		before.ManifestDigest, before.GroupManifests = former.From, former.FromGroups
	}
	w.Record.Before = &before
	upgrade := begins(&was, &s.New)
	changing := upgrade.Counted(w.Record.Groups)
	upgrade.Limit = min(upgrade.Limit, changing)
	w.Record.Update.shareOf(changing)
	w.Record.Stages = forecast(InPlaceStrategy, changing, w.Record.Update)
	least := w.Record.Update.Min // the controller's own, also when the change is over
	if upgrade.Keep != nil {
		w.beginStages(s, changing, was.Desired())
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

// ordered returns the groups in the order in which they roll.
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

// forecast returns how many stages there will be if nothing goes wrong.
func forecast(kind string, n int, u Update) int {
	most := u.Surge
	switch {
	case kind == BlueGreenStrategy:
		return 2
	case most == 0 || kind == InPlaceStrategy:
		most = max(u.Unavailable, 1)
	}
	if kind == ResourceUtilStrategy {
		most = max(u.Unavailable+u.Surge, 1)
	}
	by := max(1, min(u.Step, most))
	if kind == InPlaceStrategy {
		by = u.Step
	}
	return max(1, (n+by-1)/by)
}

// Rescale changes how many pods a service has at the end of the rollout that is under way. seen are the controllers of the record's revisions.
func Rescale(running Record, groups []rc.ReplicaGroup, obs Observed, by string) (Started, error) {
	w := newWork(running, obs)
	if len(w.Members) < len(running.Revisions) || w.Upward() == nil {
		return Started{}, fmt.Errorf("%w: a controller of the rollout cannot be read", ErrRefused)
	}
	if w.Upward().Ctrl.EachNode() {
		groups = running.Groups // the nodes say how many
	}
	roles := map[string]bool{}
	for _, g := range running.Groups {
		roles[g.Role] = true
	}
	for _, g := range groups {
		if !roles[g.Role] || len(groups) != len(roles) {
			return Started{}, fmt.Errorf("%w: while a rollout is under way counts change, and groups stay; it has %s", ErrRefused, strings.Join(roleNames(running.Groups), ", "))
		}
	}
	old := 0
	for _, m := range w.In(Down) {
		if !m.Abandoned || inService(&m.Ctrl) {
			old += total(m.Before)
		}
	}
	next, err := ordered(groups, roleNames(running.Groups))
	if err != nil {
		return Started{}, err
	}
	update, err := running.Knobs.resolve(running.Strategy, total(next), old)
	if err == nil && !running.GoesBack() { // a way back makes itself room
		err = running.Knobs.room(update, running.Strategy, total(next), true)
	}
	if err != nil {
		return Started{}, err
	}
	w.Record.Groups, w.Record.Update = next, update
	if running.GoesBack() {
		w.narrow()
	}
	w.strategy().Rescale(w)
	w.dress()
	w.audit("rollout %s of %s now ends with %d replicas, by %s", running.ID, running.Service, total(next), by)
	return Started{Record: *w.Record, RCs: w.changed(), Audit: w.d.Audit}, w.Record.Check()
}

func roleNames(groups []rc.ReplicaGroup) []string {
	var names []string
	for _, g := range groups {
		names = append(names, g.Role)
	}
	return names
}

// Expired returns which revisions of a service's history go: all but the one in effect, which always stays, and the newest keep of the others.
func Expired(revisions []int64, inEffect int64, keep int) []int64 {
	others := slices.DeleteFunc(slices.Clone(revisions), func(r int64) bool { return r == inEffect })
	slices.Sort(others)
	return others[:max(0, len(others)-keep)]
}
