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
	InPlaceStrategy      = "in-place"     // one controller: pods change where they are
	CanaryStrategy       = "canary"       // a few pods, then promote, then as availability
	BlueGreenStrategy    = "blue-green"   // all new pods stand by, then the name is switched
)

// Strategy is a way from one revision to the next. The owner knows none of them by name.
type Strategy interface {
	// Type returns the name in documents and records.
	Type() string
	// Plan sets targets and percents of the next stage. It returns false, and changes nothing, if nothing can move now.
	Plan(w *Work) bool
	// Rollout returns the steps of a stage.
	Rollout() *Rollout
	// Next returns the phase that follows a stage whose counts are reached, its gates and its delay apart: Moving for another stage.
	Next(w *Work) Phase
	// Reverse turns the rollout round. It returns false if there is nothing to go back to.
	Reverse(w *Work) bool
	// Rescale brings the targets of the stage under way to other groups, which the record has already.
	Rescale(w *Work)
	// Finish writes the end of a rollout that is done into its controllers.
	Finish(w *Work)
}

var strategies = map[string]Strategy{
	AvailabilityStrategy: rolling{name: AvailabilityStrategy},
	ResourceUtilStrategy: rolling{name: ResourceUtilStrategy, downFirst: true},
	CanaryStrategy:       canary{rolling{name: CanaryStrategy}},
	BlueGreenStrategy:    blueGreen{rolling{name: BlueGreenStrategy}},
	InPlaceStrategy:      inPlace{},
}

// StrategyNames returns what a document may say.
func StrategyNames() []string {
	return []string{AvailabilityStrategy, BlueGreenStrategy, CanaryStrategy, InPlaceStrategy, ResourceUtilStrategy}
}

// StrategyFor returns a strategy by its name, nil if there is none of that name.
func StrategyFor(name string) Strategy { return strategies[name] }

// NewRolloutStrategy returns the steps of a stage for each strategy.
func NewRolloutStrategy() map[string]*Rollout {
	all := make(map[string]*Rollout, len(strategies))
	for name := range maps.Keys(strategies) {
		all[name] = strategies[name].Rollout()
	}
	return all
}

// rolling moves counts from the old revisions to the new one.
type rolling struct {
	name      string
	downFirst bool
}

// Type implements Strategy.
func (r rolling) Type() string { return r.name }

// Rollout implements Strategy.
func (r rolling) Rollout() *Rollout {
	if r.downFirst {
		return &Rollout{[]RolloutStep{ScaleDownStep{First: true}, ScaleUpStep{}}}
	}
	return &Rollout{[]RolloutStep{ScaleUpStep{}, ScaleDownStep{}}}
}

// Plan implements Strategy.
func (r rolling) Plan(w *Work) bool { return r.planTo(w, w.Record.Total()) }

// planTo plans a stage in which the new revision gets no more than limit pods.
func (r rolling) planTo(w *Work, limit int) bool {
	up, downs := w.Upward(), w.In(Down)
	n, u := w.Record.Total(), w.Record.Update
	has, old := up.takes(), 0
	for _, m := range downs {
		old += m.takes()
	}
	if up.serving() >= max(1, u.Min) {
		u.Keep = 0 // the new revision has the minimum by itself
	}
	most := n + u.Keep + u.Surge
	if has+w.staying()+old > most { // more is asked for than there may be: what goes down would take the room of what goes up
		has = up.placed()
	}
	grow := w.stageSize(n, downs)
	if old == 0 {
		grow = max(grow, u.First-has)
	}
	limit = max(min(limit, n), min(has, n))
	var more, less int
	if r.downFirst {
		less = min(old, max(0, n+u.Keep-has-min(grow, u.Unavailable)))
		more = within0(limit, has+min(grow, most-has-less), has)
	} else {
		more = within0(limit, has+min(grow, most-has-w.staying()-old), has)
		if less = min(old, max(0, n-more)); more < max(1, u.Min) {
			less = min(old, max(0, n+u.Keep-more))
		}
		if limit < n { // a canary comes beside the old pods as far as the surge allows
			less = min(old, max(less, most-w.staying()-more))
		}
	}
	if more <= min(has, n) && less == old {
		spare, idle := w.makeRoom(downs, min(grow, max(0, limit-has)), limit > has)
		if limit < n {
			idle = min(idle, limit-has) // a canary takes the place of no more than it needs
		}
		less = max(0, old-spare-idle)
		u.Keep = max(0, u.Keep-idle) // they have no room that another could have
	}
	if more == up.desired() && less == old && !(old == 0 && more == n) {
		return false
	}
	w.Record.Update.Keep = u.Keep
	w.setTargets(up, downs, more, less)
	return true
}

// within0 returns n, but no less than what a revision has and no more than limit.
func within0(limit, n, has int) int { return max(min(has, limit), min(limit, n)) }

// staying returns for how many pods those revisions take room that neither grow nor shrink.
func (w *Work) staying() int {
	n := 0
	for _, m := range w.In(Stay) {
		n += m.takes()
	}
	return n
}

// makeRoom returns how many old pods go although nothing new can be added before: those that do not serve or, where
// there are none, as many as the minimum spares. Pods beyond the count of a revision are on their way out already, and
// are waited for.
func (w *Work) makeRoom(downs []*Member, grow int, wanted bool) (spare, idle int) {
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
	switch {
	case !wanted:
		return 0, 0
	case idle > 0:
		return 0, idle
	}
	return max(0, min(grow, serving-w.Record.Update.Min)), 0
}

// stageSize returns how many of n pods a stage moves. The gauge is what the old revisions have together, with the percent that is theirs now.
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

// setTargets gives each revision its number and percent of the stage.
func (w *Work) setTargets(up *Member, downs []*Member, more, less int) {
	old := 0
	for _, m := range downs {
		old += m.takes()
	}
	take := w.taken(downs, old-less)
	moved := 0
	for i, m := range downs {
		replicas, has := m.takes(), 0
		if m.Percent != nil {
			has = *m.Percent
		}
		step := StagePercent(take[i], replicas, has)
		moved += step
		target, percent := replicas-take[i], has-step
		m.Target, m.Percent, m.Bounds = &target, &percent, nil
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

// taken distributes over revisions that shrink how many pods each loses: first those that do not serve, then in the order in which revisions go.
func (w *Work) taken(downs []*Member, k int) []int {
	take := make([]int, len(downs))
	for i, m := range downs {
		take[i] = min(k, max(0, m.takes()-m.serving()))
		if m.Status == nil {
			take[i] = 0
		}
		k -= take[i]
	}
	for i, m := range downs {
		more := min(k, m.takes()-take[i])
		take[i] += more
		k -= more
	}
	return take
}

// Next implements Strategy.
func (rolling) Next(w *Work) Phase {
	if w.final() {
		return Ending
	}
	return Moving
}

// final reports whether the targets of the stage are those of the end.
func (w *Work) final() bool {
	for _, m := range w.In(Down) {
		if m.Target == nil || *m.Target > 0 {
			return false
		}
	}
	up := w.Upward()
	return up != nil && up.Target != nil && *up.Target == w.Record.Total()
}

// Reverse implements Strategy. The revision to go back to is the newest that was not abandoned; revisions that stayed
// do not move. It takes the service's name back before any other pod goes: its pods that stand by are no progress.
func (rolling) Reverse(w *Work) bool {
	var base *Member // one whose controller is gone cannot come back
	for _, m := range w.Members {
		if m.Direction == Down && !m.Abandoned && total(m.Before) > 0 {
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
			m.final(m.desired())
		}
	}
	return true
}

// final notes what a revision has at the end, between which the steps choose nothing.
func (v *Revision) final(n int) { v.Min, v.Max = &n, &n }

// Rescale implements Strategy. What changes at once is the old revision that the service came from: what waits or is judged now must not grow by it.
func (rolling) Rescale(w *Work) {
	up, downs := w.Upward(), w.In(Down)
	n := w.Record.Total()
	up.final(n)
	if up.Target != nil {
		less := min(*up.Target, n)
		up.Target, up.Bounds = &less, nil
	}
	up.setCount(min(up.desired(), n), w.Record.Groups)
	downs = slices.DeleteFunc(downs, func(m *Member) bool { return m.Abandoned && m.Standby }) // they are missed nowhere, and go as they were going
	old := 0
	for _, m := range downs {
		old += m.desired()
	}
	if w.Record.GoesBack() {
		up.Before = fit(up.Before, w.Record.Groups, n) // it is what another deployment would go back to
		return
	}
	if len(downs) == 0 {
		return
	}
	base := downs[len(downs)-1]
	has := w.replaced(up)
	base.Before = fit(base.Before, w.Record.Groups, n)
	base.final(n)
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

// replaced returns for how many pods of the service the new revision stands: a canary comes beside the others as far as
// the surge allows, and what stands by replaces none.
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

// fit returns groups with the roles of before and n pods: the new groups themselves where the roles are the same, else what is missing goes to the first.
func fit(before, groups []rc.ReplicaGroup, n int) []rc.ReplicaGroup {
	same := len(before) == len(groups)
	for _, g := range groups {
		same = same && slices.ContainsFunc(before, func(b rc.ReplicaGroup) bool { return b.Role == g.Role })
	}
	if same {
		return field.Copy(groups)
	}
	out := fill(n, before, true)
	if short := n - total(out); short > 0 {
		c := *out[0].Count + short
		out[0].Count = &c
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

// retire marks the controller of an old revision deleted, once nothing is left of it.
func (w *Work) retire(m *Member) {
	empty := m.Status != nil && m.Status.Placed == 0 && m.Status.Stopping == 0 && m.Status.Ghosts == 0 && m.desired() == 0
	switch {
	case !empty:
		w.alert("%s still has pods, on machines that are lost: its controller stays, with the count %d", m.Name, m.desired())
	case !w.Record.Update.LeaveOld && m.Ctrl.DeletedAt == nil:
		at := w.Now()
		m.Ctrl.DeletedAt = &at
		w.d.Delete = append(w.d.Delete, m.RC)
	}
}

// canary is rolling that waits with a few pods for somebody to promote.
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
	if !w.Record.Promoted && w.Record.State == Progressing && up.Target != nil && *up.Target >= min(w.Record.Update.CanaryPods, w.Record.Total()) {
		return Promoting
	}
	return c.rolling.Next(w)
}
