package reconcile

import (
	"fmt"
	"slices"

	"github.com/rcfarm/rcfarm/pkg/pod"
)

// room is how many copies there are and may be, and which pods of the service count as available.
type room struct {
	*draft
	companionPods []Copy         // pods of companions that count as available
	inUseBeside   int            // copies of companions' pods that take room
	over          map[string]int // pods beyond those that a role should have; nil: not yet reckoned
	forLost       *int           // how many lost pods may be replaced besides; nil: not yet reckoned
	// replaced counts the pods of lost machines that are: their new copies stand besides all that stands now.
	replaced int
}

// newRoom takes in what companions have: which of their pods count, and how many copies stand.
func newRoom(d *draft) *room {
	c := &room{draft: d}
	for i := range c.s.Companions {
		other := &c.s.Companions[i]
		c.inUseBeside += other.Unread
		for j := range other.Pods {
			p := &other.Pods[j]
			c.inUseBeside += copies(c.s, p.withoutStopped())
			if name, counts := c.s.countsOn(p, &p.Placement); counts {
				c.companionPods = append(c.companionPods, Copy{Node: name, Identity: p.Identity})
			}
		}
	}
	return c
}

// most returns how many copies of the controller's own pods may stand.
func (c *room) most() int {
	switch {
	case c.s.bounded():
		return c.limits.bound - c.inUseBeside
	}
	return c.s.RC.Desired() + c.s.RC.Surge()
}

// mayAdd reports whether companions let anything be added. One whose nodes have not said what they run in the present world, or that
// has more than it should, may have pods that nobody counts yet.
func (c *room) mayAdd() bool {
	if !c.s.hasCompanions() {
		return true
	}
	for i := range c.s.Companions {
		if why := holdsUp(c.s, &c.s.Companions[i]); why != "" {
			c.awaits(fmt.Sprintf("nothing is placed while %s, another revision of %s, %s", c.s.Companions[i].RCID, c.s.RC.Service.Name, why))
			return false
		}
	}
	return true
}

// allowed returns how many of so many new replicas may be placed, and says what the others wait for.
func (c *room) allowed(wanted, room int) int {
	if wanted <= 0 || !c.mayAdd() {
		return 0
	}
	if room < wanted && c.s.bounded() {
		c.awaits(fmt.Sprintf("%d replicas wait: the revisions of %s may have %d pods together", wanted-max(0, room), c.s.RC.Service.Name, c.limits.bound))
	}
	return min(wanted, room)
}

// found returns how many copies stand besides those of the snapshot once the plan has landed, whatever their role: those that it adopts.
func (c *room) found() int {
	n := 0
	for i := range c.plan.Changes {
		ch := &c.plan.Changes[i]
		if ch.Placement == nil {
			continue
		}
		before := 0
		if was := c.s.find(ch.Identity); was != nil {
			before = copies(c.s, was)
		}
		n += max(0, copies(c.s, &Pod{Placement: *ch.Placement})-before)
	}
	return n
}

// copies returns how many copies of a pod count against desired + surge: where it is placed unless that is lost, and
// where it still runs or stops on living nodes. Against the bound of a service copies on nodes without a preparer count too, which
// may run for long: machines that are known to be lost do not.
func copies(s *Snapshot, p *Pod) int {
	n, mayRun := 0, s.aliveOn
	if s.bounded() {
		mayRun = func(name string) bool { return !s.machineLost(name) }
	}
	if p.RunState == pod.Running && !s.machineLost(p.Node) || p.RunState == pod.Stopped && mayRun(p.Node) && !s.Vacant(p) {
		n++
	}
	for _, g := range p.Placement.Ghosts {
		if !g.LeftBecauseLost && mayRun(g.Node) {
			n++
		}
	}
	return n
}

// surplus reports whether a role has more pods than it should. Those that are lost are then the first to stop (see remove),
// not to be replaced.
func (c *room) surplus(role string) bool {
	if c.over == nil {
		c.over = map[string]int{}
		for p := range c.s.running() {
			c.over[p.Role]++
		}
		for _, g := range c.s.RC.ReplicaGroups {
			c.over[g.Role] -= *g.Count
		}
	}
	return c.over[role] > 0
}

// takeRoom reports whether one more lost pod may be replaced now, and takes the room for it: what runs, or has yet to stop, on
// living nodes counts against desired + surge, and lost pods do not (P6). When one of those has stopped, its report rings. Against the
// bound of a service a pod without a preparer counts like any other, and its new copy counts in its place.
func (c *room) takeRoom(p *Pod) bool {
	if !c.mayAdd() {
		return false
	}
	if c.forLost == nil {
		room := c.most() - c.found()
		for p := range c.s.all() {
			room -= copies(c.s, p)
			if c.mayReturn(p) {
				room--
			}
			if !c.s.bounded() && asGoodAsLost(c.s, p) {
				room++
			}
		}
		c.forLost = &room
	}
	takes := 1
	if c.s.bounded() && asGoodAsLost(c.s, p) {
		takes = 0
	}
	if *c.forLost < takes {
		if c.s.bounded() {
			c.awaits(fmt.Sprintf("%s.%d must be placed elsewhere, and waits: the revisions of %s may have %d pods together", p.Role, p.Identity.Index, c.s.RC.Service.Name, c.limits.bound))
		}
		return false
	}
	*c.forLost -= takes
	if c.s.machineLost(p.Node) {
		c.replaced++
	}
	return true
}

// mayReturn reports whether a pod may go back to a node that it was moved off as lost. The copy there does not count (see copies) until the
// plan gives the pod back to it, be it after others have taken room; on a lost machine it does not even then.
func (c *room) mayReturn(p *Pod) bool {
	return !c.changed[p.Identity] && slices.ContainsFunc(p.Placement.Ghosts, func(g pod.Ghost) bool {
		return g.Revision == 0 && g.LeftBecauseLost && !c.s.machineLost(g.Node)
	})
}

// asGoodAsLost reports whether the pod's node lacks a preparer for so long that the pod may be replaced, though the machine is
// not known to be lost.
func asGoodAsLost(s *Snapshot, p *Pod) bool {
	v := s.Nodes[p.Node]
	if p.RunState != pod.Running || v == nil || v.Alive || s.machineLost(p.Node) {
		return false
	}
	since := s.Now
	if p.UnmanagedSince != nil && s.sinceDeath(&p.Placement) {
		since = *p.UnmanagedSince
	}
	return s.Now.Sub(since) >= grace(s, false)
}
