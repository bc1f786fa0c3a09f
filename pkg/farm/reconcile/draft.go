package reconcile

import (
	"cmp"
	"iter"
	"slices"
	"time"

	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
)

// draft is a plan in the making.
type draft struct {
	f        *Facts
	limits   limits
	plan     Plan
	changed  map[pod.Identity]bool
	stopped  map[pod.Identity]bool // by this plan
	blocked  string                // why a drain or an upgrade does not continue; the first reason
	withheld int                   // pods that are not stopped because of the breaker
	waiting  bool                  // something is not done because of the hold
	later    int                   // pods that come with later stages of a change of mode

	awaitsStop    []string // texts about indices of ordered groups whose former copies may live
	awaitsService string   // what pods wait for because of the service's other revisions
}

func newDraft(f *Facts) *draft {
	d := &draft{f: f, limits: limitsOf(f), changed: map[pod.Identity]bool{}, stopped: map[pod.Identity]bool{}}
	d.plan.facts, d.plan.digests = f, map[pod.Identity]string{}
	if f.each != nil {
		d.plan.nodes = append([]string{}, f.each.nodes...)
	}
	return d
}

type stopCondition int

const (
	unconditionally stopCondition = iota // nothing: an operator asked for the stop
	keepingMinimum                       // the minimum stays available (P6)
)

func (d *draft) open() iter.Seq[*Pod] { return d.unchanged(d.f.all()) }

func (d *draft) openRunning() iter.Seq[*Pod] { return d.unchanged(d.f.running()) }

// after returns the snapshot without the pods that the plan forgets because they have stopped as asked.
func (d *draft) after() *Facts {
	gone := map[pod.Identity]bool{}
	for i := range d.plan.Changes {
		ch := &d.plan.Changes[i]
		if p := d.f.find(ch.Identity); ch.Placement == nil && p != nil && p.RunState == pod.Stopped {
			gone[p.Identity] = true
		}
	}
	if len(gone) == 0 {
		return d.f
	}
	after := *d.f
	after.Pods = slices.DeleteFunc(slices.Clone(d.f.Pods), func(p Pod) bool { return gone[p.Identity] })
	return &after
}

func (d *draft) unchanged(pods iter.Seq[*Pod]) iter.Seq[*Pod] {
	return where(pods, func(p *Pod) bool { return !d.changed[p.Identity] })
}

// mayStop reports whether a pod may be asked to stop now. While some nodes have not reported, a pod that looks
// superfluous may be one that must be kept (R1, R2).
func (d *draft) mayStop() bool {
	switch {
	case d.f.Hold != "":
		d.waiting = true
	case d.f.Breaker != "":
		d.withheld++
	default:
		return true
	}
	return false
}

// add plans a change. If the change is about a pod or copy on a lost machine, it lands only if the machine is still
// lost. If the machine came back, the copy may be available again, and no other condition would notice that.
func (d *draft) add(ch Change) {
	if p := d.f.find(ch.Identity); p != nil && d.f.machineLost(p.Node) {
		ch.needsDead(d.f.death(p.Node))
	}
	for _, in := range ch.Intents {
		if in.Intent != nil && in.Intent.State == pod.Stopped && d.f.machineLost(in.Node) {
			ch.needsDead(d.f.death(in.Node))
		}
	}
	d.changed[ch.Identity] = true
	d.plan.Changes = append(d.plan.Changes, ch)
}

func (d *draft) placeElsewhere(id pod.Identity) {
	d.plan.Adds = append(d.plan.Adds, id)
	d.changed[id] = true
}

func (d *draft) block(why string) { d.blocked = cmp.Or(d.blocked, why) }

func (d *draft) awaitService(why string) { d.awaitsService = cmp.Or(d.awaitsService, why) }

func (d *draft) requeueAfter(after time.Duration) { d.plan.requeueAfter(after) }

func (d *draft) stop(p *Pod, reason string, on stopCondition) {
	d.stopAs(p, p.Placement, reason, on)
}

// stopAs asks for a stop, if mayStop allows it. The change writes next with the fields of the stop.
func (d *draft) stopAs(p *Pod, next pod.Placement, reason string, on stopCondition) {
	if !d.mayStop() {
		return
	}
	now := d.f.Now
	next.RunState, next.StoppingSince, next.ChangedAt = pod.Stopped, &now, now
	next.Revision = p.nextRevision(now)
	ch := p.change(Stop, &next, reason)
	ch.NeedsBreaker, ch.NeedsMinimum = true, on == keepingMinimum
	ch.setIntent(p.Node, next.Intent())
	next.Ghosts = slices.Clone(next.Ghosts)
	for i := range next.Ghosts {
		if g := &next.Ghosts[i]; g.Revision == 0 {
			g.Revision = next.Revision
			ch.setIntent(g.Node, next.GhostIntent(*g))
		}
	}
	d.stopped[p.Identity] = true
	d.add(ch)
}

// keptAsAdopted reports whether the pod must run as it was found until an operator changes the controller (R2). A
// deleted controller cannot be changed any more, so its pods are not kept.
func (s *Snapshot) keptAsAdopted(p *Pod) bool { return keptAsAdopted(&s.RC, &p.Placement) }

func keptAsAdopted(r *rc.RC, p *pod.Placement) bool {
	return r.DeletedAt == nil && p.AdoptedAtGeneration != 0 && p.AdoptedAtGeneration == r.Generation
}

func (d *draft) stopAll() {
	for p := range d.openRunning() {
		if !d.f.keptAsAdopted(p) {
			d.stop(p, "the controller is deleted", unconditionally)
		}
	}
}
