package reconcile

import (
	"cmp"
	"iter"
	"slices"
	"time"

	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
)

// Compute decides everything about one controller. Each identity changes at most once per plan; what one change makes
// possible comes with the next look.
func Compute(s *Snapshot) Plan {
	slices.SortFunc(s.Pods, func(a, b Pod) int { return a.Identity.Compare(b.Identity) })
	s.readRight()
	s.told = nil
	s.lost, s.chosen = lostMachines(s), map[pod.Identity]string{}
	s.countNodes()
	d := &draft{s: s, limits: limitsOf(s), changed: map[pod.Identity]bool{}, stopped: map[pod.Identity]bool{}}
	room := newRoom(d)
	left, moving := departures{d}, moves{room}
	lost, draining := losses{moving}, &drains{moves: moving}
	left.forget()
	left.confirmStops()
	left.giveUp()
	adoption{d}.adopt()
	waitsToStop := leftovers{d}.stop()
	repairs{d}.repair()
	lost.markLost()
	waits := d.answer(d.release()) || waitsToStop
	switch {
	case s.RC.DeletedAt != nil:
		labelling{d}.carryOut()
		d.stopAll()
		// While holding, pods may run on nodes that have not spoken yet (R1).
		d.plan.Finish = len(s.Pods) == 0 && len(d.plan.Changes) == 0 && s.Hold == "" && !waits
	case s.RC.Disabled:
		draining.drainsWait()
		labelling{d}.carryOut()
	default:
		draining.evictAll()
		moving.finishMoves()
		lost.replaceLost()
		secondNodes{room}.begin()
		(&scaling{room: room}).scale()
		draining.transfer()
		upgrades{room}.upgrade()
		naming{room}.switchNames()
		labelling{d}.carryOut() // after all that chooses pods: a label must not decide which one stops
		labelling{d}.relabel()
		draining.drainsWait()
	}
	lost.markGhosts()
	renewals{d}.renew()
	clocks{lost}.note()
	minimum{room}.guardMinimum()
	report{d, d.after()}.report()
	return d.plan
}

// draft is a plan in the making, which one part of the decision after the other adds to.
type draft struct {
	s        *Snapshot
	limits   limits
	plan     Plan
	changed  map[pod.Identity]bool
	stopped  map[pod.Identity]bool // by this very plan
	blocked  string                // why a drain or an upgrade does not go on
	withheld int                   // pods that are not stopped because of the breaker
	waiting  bool                  // something is not done because of the hold
	later    int                   // pods that come with later stages of a change of mode

	awaitsStop    []string // indices of ordered groups whose former copies may live
	awaitsService string   // what pods wait for because of the service's other revisions
}

// open yields the pods that the plan has not changed yet.
func (c *draft) open() iter.Seq[*Pod] { return c.unchanged(c.s.all()) }

// openRunning is open for pods that are meant to run.
func (c *draft) openRunning() iter.Seq[*Pod] { return c.unchanged(c.s.running()) }

// after returns the snapshot without the pods that have stopped as they were asked to, and that the plan forgets.
func (c *draft) after() *Snapshot {
	gone := map[pod.Identity]bool{}
	for i := range c.plan.Changes {
		ch := &c.plan.Changes[i]
		if p := c.s.find(ch.Identity); ch.Placement == nil && p != nil && p.RunState == pod.Stopped {
			gone[p.Identity] = true
		}
	}
	if len(gone) == 0 {
		return c.s
	}
	after := *c.s
	after.Pods = slices.DeleteFunc(slices.Clone(c.s.Pods), func(p Pod) bool { return gone[p.Identity] })
	return &after
}

func (c *draft) unchanged(pods iter.Seq[*Pod]) iter.Seq[*Pod] {
	return where(pods, func(p *Pod) bool { return !c.changed[p.Identity] })
}

// mayStop reports whether anything may be asked to stop now. While the nodes have not said what they run, a pod that looks
// superfluous may be one of those that must stay (R1, R2); once the breaker has tripped nothing may.
func (c *draft) mayStop() bool {
	switch {
	case c.s.Hold != "":
		c.waiting = true
	case c.s.Breaker != "":
		c.withheld++
	default:
		return true
	}
	return false
}

// add plans a change. What is decided about a pod whose machine is taken for lost, and what stops a copy on such a machine, lands only
// while it is: back, the copy may be available as it last said, which moves nothing else that the change depends on.
func (c *draft) add(ch Change) {
	if p := c.s.find(ch.Identity); p != nil && c.s.machineLost(p.Node) {
		ch.needsDead(c.s.death(p.Node))
	}
	for _, in := range ch.Intents {
		if in.Intent != nil && in.Intent.State == pod.Stopped && c.s.machineLost(in.Node) {
			ch.needsDead(c.s.death(in.Node))
		}
	}
	c.changed[ch.Identity] = true
	c.plan.Changes = append(c.plan.Changes, ch)
}

// placeElsewhere asks for another node for a pod.
func (c *draft) placeElsewhere(id pod.Identity) {
	c.plan.Adds = append(c.plan.Adds, id)
	c.changed[id] = true
}

// block says why a drain or an upgrade does not go on; what was said first stays.
func (c *draft) block(why string) { c.blocked = cmp.Or(c.blocked, why) }

// awaits says what pods wait for because of the service; what was said first stays.
func (c *draft) awaits(why string) { c.awaitsService = cmp.Or(c.awaitsService, why) }

func (c *draft) requeueAfter(after time.Duration) { c.plan.requeueAfter(after) }

// stop asks for a stop, or counts the pod as held back by the breaker.
func (c *draft) stop(p *Pod, reason string, dependsOnOthers bool) {
	c.stopAs(p, p.Placement, reason, dependsOnOthers)
}

// stopAs is stop with a placement that remembers something besides.
func (c *draft) stopAs(p *Pod, next pod.Placement, reason string, dependsOnOthers bool) {
	if !c.mayStop() {
		return
	}
	now := c.s.Now
	next.RunState, next.StoppingSince, next.ChangedAt = pod.Stopped, &now, now
	next.Revision = p.nextRevision(now)
	in := next.Intent()
	ch := Change{
		Action: Stop, Identity: p.Identity, Index: p.Index, Placement: &next, Reason: reason,
		NeedsBreaker: true, NeedsMinimum: dependsOnOthers,
		Intents: []IntentChange{{Node: p.Node, Intent: &in}},
	}
	next.Ghosts = slices.Clone(next.Ghosts)
	for i := range next.Ghosts {
		// A copy that was left running until the pod had moved stops too.
		if g := &next.Ghosts[i]; g.Revision == 0 {
			g.Revision = next.Revision
			also := next.GhostIntent(*g)
			ch.Intents = append(ch.Intents, IntentChange{Node: g.Node, Intent: &also})
		}
	}
	c.stopped[p.Identity] = true
	c.add(ch)
}

// stays reports whether the pod runs as it was found until somebody changes the controller (R2). Nobody can change one that
// is deleted: its mark is the last word.
func (s *Snapshot) stays(p *Pod) bool { return stays(&s.RC, &p.Placement) }

func stays(r *rc.RC, p *pod.Placement) bool {
	return r.DeletedAt == nil && p.AdoptedAtGeneration != 0 && p.AdoptedAtGeneration == r.Generation
}

func (c *draft) stopAll() {
	for p := range c.openRunning() {
		if !c.s.stays(p) {
			c.stop(p, "the controller is deleted", false)
		}
	}
}
