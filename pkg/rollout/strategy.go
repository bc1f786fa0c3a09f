package rollout

import (
	"maps"
	"slices"

	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/rc"
)

// The strategies.
const (
	AvailabilityStrategy = "availability" // up, then down
	ResourceUtilStrategy = "resourceutil" // down, then up
	InPlaceStrategy      = "in-place"     // one controller: pods change on their nodes
	CanaryStrategy       = "canary"       // a few pods, then promote, then as availability
	BlueGreenStrategy    = "blue-green"   // all new pods stand by, then the name is switched
)

// Strategy is a way from one revision to the next. Package farm does not depend on which it is; rollout, deploy/plan
// and deploy/record also compare names of strategies.
type Strategy interface {
	// Plan sets targets and percents of the next stage. If nothing can move, it returns false and changes nothing.
	Plan(w *Work) bool
	// Steps returns the steps of a stage in order.
	Steps() []Step
	// Next returns the phase after a stage whose counts are reached, apart from gates and delay. Moving: another stage
	// follows.
	Next(w *Work) Phase
	// Reverse makes it a rollback. It returns false if there is no revision to go back to.
	Reverse(w *Work) bool
	// Rescale adapts the targets of the stage under way to the record's new groups.
	Rescale(w *Work)
	// Finish changes the controllers when all counts are final, also after a rollback.
	Finish(w *Work)
}

var strategies = map[string]Strategy{
	AvailabilityStrategy: rolling{StartFirst},
	ResourceUtilStrategy: rolling{StopFirst},
	CanaryStrategy:       canary{rolling{StartFirst}},
	BlueGreenStrategy:    blueGreen{rolling{StartFirst}},
	InPlaceStrategy:      inPlace{},
}

// StrategyNames returns the strategies that a document may name.
func StrategyNames() []string { return slices.Sorted(maps.Keys(strategies)) }

// StrategyFor returns nil for an unknown name.
func StrategyFor(name string) Strategy { return strategies[name] }

type rolling struct{ order string }

// Steps implements Strategy.
func (r rolling) Steps() []Step {
	if r.order == StopFirst {
		return []Step{ScaleDownStep{First: true}, ScaleUpStep{}}
	}
	return []Step{ScaleUpStep{}, ScaleDownStep{}}
}

// Plan implements Strategy.
func (r rolling) Plan(w *Work) bool { return r.planTo(w, w.Record.Total()) }

// planTo plans a stage that adds no pods to the new revision beyond limit.
func (r rolling) planTo(w *Work, limit int) bool {
	up, downs := w.Upward(), w.In(Down)
	s := w.scope(up, downs, limit)
	more, less := s.startFirst()
	if r.order == StopFirst {
		more, less = s.stopFirst()
	}
	if more <= min(s.has, s.n) && less == s.old {
		less = s.stopOnly(w, downs)
	}
	if more == up.desired() && less == s.old && !(s.old == 0 && more == s.n) {
		return false
	}
	w.Record.Update.Keep = s.u.Keep
	w.setTargets(up, downs, more, less)
	return true
}

// scope is what a stage starts from, in pods. Its methods return how many pods the new revision (more) and the old ones
// together (less) have after the stage.
type scope struct {
	u       Update // a copy: Keep becomes the rollout's if the stage can move
	n       int    // desired at the end
	has     int    // of the new revision
	old     int    // of the old revisions
	staying int    // of revisions that keep their count
	most    int    // of all revisions together
	grow    int    // how many the stage changes
	limit   int    // the most of the new revision; less than n for a canary
}

func (w *Work) scope(up *Member, downs []*Member, limit int) scope {
	s := scope{
		u: w.Record.Update, n: w.Record.Total(), has: up.peak(), old: peakOf(downs), staying: peakOf(w.In(Stay)),
		grow: w.stageSize(w.Record.Total(), downs),
	}
	if up.serving() >= max(1, s.u.Min) {
		s.u.Keep = 0 // the new revision has the minimum by itself
	}
	s.most = s.n + s.u.Keep + s.u.Surge
	if s.has+s.staying+s.old > s.most { // the peaks exceed the bound: old pods would use up the surge of new ones
		s.has = up.placed()
	}
	if s.old == 0 {
		s.grow = max(s.grow, s.u.First-s.has)
	}
	s.limit = max(min(limit, s.n), min(s.has, s.n))
	return s
}

// stopFirst: old pods stop as far as max_unavailable allows, and new pods take their places.
func (s *scope) stopFirst() (more, less int) {
	less = min(s.old, max(0, s.n+s.u.Keep-s.has-min(s.grow, s.u.Unavailable)))
	return growTo(s.limit, s.has+min(s.grow, s.most-s.has-less), s.has), less
}

// startFirst: new pods are added as far as the surge allows, and old pods make up the desired number. Until the new
// revision has the minimum by itself, old pods also make up Keep.
func (s *scope) startFirst() (more, less int) {
	more = growTo(s.limit, s.has+min(s.grow, s.most-s.has-s.staying-s.old), s.has)
	if less = min(s.old, max(0, s.n-more)); more < max(1, s.u.Min) {
		less = min(s.old, max(0, s.n+s.u.Keep-more))
	}
	if s.limit < s.n { // a canary is added to the old pods as far as the surge allows
		less = min(s.old, max(less, s.most-s.staying-more))
	}
	return more, less
}

// stopOnly: no pod may be added, so old pods that are unavailable, or that the minimum does not need, stop first.
func (s *scope) stopOnly(w *Work, downs []*Member) (less int) {
	spare, idle := 0, 0
	if s.limit > s.has {
		spare, idle = w.removable(downs, min(s.grow, s.limit-s.has))
	}
	if s.limit < s.n {
		idle = min(idle, s.limit-s.has) // a canary replaces no more pods than it has itself
	}
	s.u.Keep = max(0, s.u.Keep-idle) // no other pod is added in place of the idle ones
	return max(0, s.old-spare-idle)
}

func growTo(limit, n, has int) int { return max(min(has, limit), min(limit, n)) }

func peakOf(of []*Member) (n int) {
	for _, m := range of {
		n += m.peak()
	}
	return n
}

// removable returns how many old pods a stage may remove before any new one is added: the unavailable ones (idle) or,
// without these, those that the minimum does not need (spare). It returns none while an old revision has surplus pods,
// because these are about to stop.
func (w *Work) removable(downs []*Member, grow int) (spare, idle int) {
	serving := 0
	for _, m := range w.Members {
		if m.raw == nil || m.Direction == Down && m.living() > m.desired() {
			return 0, 0
		}
		serving += m.serving()
	}
	for _, m := range downs {
		idle += m.idle()
	}
	if idle > 0 {
		return 0, idle
	}
	return max(0, min(grow, serving-w.Record.Update.Min)), 0
}

// stageSize returns how many pods a stage changes. A percentage applies to n, the number at the end, or to the full
// size of the old revisions (their pods divided by their present percent) if that is more. A rollback doubles it.
func (w *Work) stageSize(n int, downs []*Member) int {
	u := w.Record.Update
	size := u.Step
	if u.Ratio > 0 {
		replicas, percent := 0, 0
		for _, m := range downs {
			replicas += m.desired()
			if m.Percent != nil {
				percent += *m.Percent
			}
		}
		size = StageReplicas(n, 100, u.Ratio)
		if percent > 0 {
			size = max(size, StageReplicas(replicas, percent, u.Ratio))
		}
	}
	if w.Record.State == RollingBack {
		size *= 2
	}
	return size
}

func (w *Work) setTargets(up *Member, downs []*Member, more, less int) {
	take := distribute(downs, peakOf(downs)-less)
	moved := 0
	for i, m := range downs {
		replicas, has := m.peak(), 0
		if m.Percent != nil {
			has = *m.Percent
		}
		step := StagePercent(take[i], replicas, has)
		moved += step
		m.Target, m.Percent, m.Bounds = new(replicas-take[i]), new(has-step), nil
	}
	percent := moved
	if up.Percent != nil {
		percent += *up.Percent
	}
	if percent = min(percent, 100); less == 0 && more == w.Record.Total() && len(w.In(Stay)) == 0 {
		percent = 100
	}
	up.Target, up.Percent, up.Bounds = &more, &percent, nil
}

// distribute returns how many of k pods each revision loses: unavailable ones first, then others in the order of the
// revisions. Without a status all pods are treated as available.
func distribute(downs []*Member, k int) []int {
	take := make([]int, len(downs))
	for i, m := range downs {
		if m.Status != nil {
			take[i] = min(k, max(0, m.peak()-m.serving()))
		}
		k -= take[i]
	}
	for i, m := range downs {
		more := min(k, m.peak()-take[i])
		take[i] += more
		k -= more
	}
	return take
}

// Next implements Strategy.
func (rolling) Next(w *Work) Phase {
	if w.isFinal() {
		return Ending
	}
	return Moving
}

func (w *Work) isFinal() bool {
	for _, m := range w.In(Down) {
		if m.Target == nil || *m.Target > 0 {
			return false
		}
	}
	up := w.Upward()
	return up != nil && up.Target != nil && *up.Target == w.Record.Total()
}

// Reverse implements Strategy. It goes back to the newest revision that was not abandoned. The pods of this revision
// get the service's name back before any other pod is removed, because pods that stand by are no progress.
func (rolling) Reverse(w *Work) bool {
	var base *Member // Members has no revision whose controller is gone
	for _, m := range w.Members {
		if m.Direction == Down && !m.Abandoned && rc.Total(m.Before) > 0 {
			base = m
		}
	}
	if base == nil || w.Upward() == nil {
		return false
	}
	w.Upward().Abandoned, w.Upward().Direction = true, Down
	base.Direction, base.Standby = Up, false
	for _, m := range w.Members {
		m.Target, m.Bounds = nil, nil
		if m.Direction == Down {
			m.Before = rc.Counts(m.Ctrl.ReplicaGroups)
			m.setEnd(m.desired())
		}
	}
	return true
}

func (r *Revision) setEnd(n int) { r.Min, r.Max = &n, &n }

// Rescale implements Strategy. It adds pods at once only to the old revision in effect, because the new one must not
// grow while it waits for promote or for a gate.
func (rolling) Rescale(w *Work) {
	up, downs := w.Upward(), w.In(Down)
	n := w.Record.Total()
	up.setEnd(n)
	if up.Target != nil {
		up.Target, up.Bounds = new(min(*up.Target, n)), nil
	}
	up.setCount(min(up.desired(), n), w.Record.Groups)
	// The pods of an abandoned revision that stands by are not available for the minimum.
	downs = slices.DeleteFunc(downs, func(m *Member) bool { return m.Abandoned && m.Standby })
	old := 0
	for _, m := range downs {
		old += m.desired()
	}
	if w.Record.RollsBack() {
		up.Before = fit(up.Before, w.Record.Groups, n) // a rollback of a later deployment would restore these counts
		return
	}
	if len(downs) == 0 {
		return
	}
	base := downs[len(downs)-1]
	has := w.replaced(up)
	base.Before = fit(base.Before, w.Record.Groups, n)
	base.setEnd(n)
	for _, m := range downs {
		have := m.desired()
		if m == base && !base.Abandoned {
			have = max(0, min(n, have+n-has-old))
		}
		have = min(have, max(0, n-has))
		m.Target, m.Bounds = &have, nil
		m.setCount(have, m.Before)
	}
}

// replaced returns how many old pods the new revision replaces. A canary comes on top as far as the surge allows, and
// pods that stand by replace none.
func (w *Work) replaced(up *Member) int {
	n := up.desired()
	if up.Target != nil {
		n = *up.Target
	}
	switch {
	case up.Standby:
		return 0
	case w.Record.Strategy == CanaryStrategy && !w.Record.Promoted:
		return max(0, n-w.Record.Update.Surge)
	}
	return n
}

// fit returns groups if they have the roles of before. Otherwise it returns before with n pods in all; the first group
// gets the missing ones.
func fit(before, groups []rc.ReplicaGroup, n int) []rc.ReplicaGroup {
	same := len(before) == len(groups)
	for _, g := range groups {
		same = same && slices.ContainsFunc(before, func(b rc.ReplicaGroup) bool { return b.Role == g.Role })
	}
	if same {
		return field.Copy(groups)
	}
	out := fill(n, before, Up)
	if short := n - rc.Total(out); short > 0 {
		out[0].Count = new(*out[0].Count + short)
	}
	return out
}

// Finish implements Strategy.
func (rolling) Finish(w *Work) {
	w.Record.Update.Keep = 0
	for _, m := range w.In(Down) {
		w.retire(m)
	}
	for _, m := range w.Members {
		m.Ctrl.AllowMassStop = 0
	}
}

// retire deletes the controller of an old revision without pods, unless leave_old is set.
func (w *Work) retire(m *Member) {
	st := m.Status
	empty := st != nil && st.Placed == 0 && st.Stopping == 0 && st.Ghosts == 0 && m.desired() == 0
	switch {
	case !empty:
		w.alert("%s still has pods on lost machines: its controller is kept, with the count %d", m.Name, m.desired())
	case !w.Record.Update.LeaveOld && m.Ctrl.DeletedAt == nil:
		m.Ctrl.DeletedAt = new(w.Now())
		w.d.Delete = append(w.d.Delete, m.RC)
	}
}

// canary first adds a few pods and waits for promote. Then it continues like rolling.
type canary struct{ rolling }

// Plan implements Strategy.
func (c canary) Plan(w *Work) bool {
	if w.Record.Promoted || w.Record.State == RollingBack {
		return c.rolling.Plan(w)
	}
	return c.planTo(w, w.Record.Update.CanaryPods)
}

// Next implements Strategy.
func (c canary) Next(w *Work) Phase {
	up := w.Upward()
	waits := !w.Record.Promoted && w.Record.State == Progressing
	if waits && up.Target != nil && *up.Target >= min(w.Record.Update.CanaryPods, w.Record.Total()) {
		return Promoting
	}
	return c.rolling.Next(w)
}
