package reconcile

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
)

// drains takes pods off the nodes that they must leave.
type drains struct {
	moves
	awaited *string // see unconfirmed; nil: not yet looked for
}

// evictAll stops what is left on nodes whose drain is forced, from its deadline on. That the operator said so outranks the
// minimum, the strategy and a rollout, and it asks for no manifest. A pod that has ended has nothing to stop.
func (c *drains) evictAll() {
	for p := range c.openRunning() {
		due := func(nodeName string) bool { return c.evictionDue(p, nodeName) }
		if !c.s.rests(p) && due(p.Node) {
			c.evict(p, due, "the drain of "+p.Node+" is forced", false)
			continue
		}
		c.stopFormerCopies(p, due, "the drain of the node that it leaves is forced", true)
	}
}

// evict stops a pod where it is placed. A former copy that was left running is the pod again: its node is another one than that
// which must be left, and nobody asked it to stop (P4, P6), unless its node must be left, too.
func (c *drains) evict(p *Pod, left func(nodeName string) bool, reason string, dependsOnOthers bool) {
	others := slices.DeleteFunc(slices.Clone(p.Placement.Ghosts), func(g pod.Ghost) bool { return left(g.Node) })
	if g, runs := formerCopy(c.s, p, others); runs {
		c.comeBack(p, g, p.Avoid, reason, dependsOnOthers)
		return
	}
	c.stop(p, reason, dependsOnOthers)
}

// evictionDue reports whether a drain stops what a node has of a pod. It asks for another look when the deadline comes.
func (c *drains) evictionDue(p *Pod, nodeName string) bool {
	d := evictionBy(c.s, p, nodeName)
	if d == nil {
		return false
	}
	if d.Deadline != nil && c.s.Now.Before(*d.Deadline) {
		c.requeueAfter(d.Deadline.Sub(c.s.Now))
		return false
	}
	return true
}

// evictionBy returns the drain that stops what a living node has of a pod at its deadline, nil for none. What stays as it was
// found is stopped only if the drain began after that: an older one may have come back with a restored store (P4, R2).
func evictionBy(s *Snapshot, p *Pod, nodeName string) *node.Drain {
	v := s.Nodes[nodeName]
	if v == nil || !v.Alive || v.Ops.Drain == nil || !v.Ops.Drain.Force || s.stays(p) && !v.Ops.Drain.Since.After(p.ChangedAt) {
		return nil
	}
	return v.Ops.Drain
}

// transfer moves pods off nodes that they may not stay on: one at a time, dynamic controllers only, and only if the minimum
// would stay without it, all replicas are healthy and there is room for one more, or the pod is not available anyway. A new
// copy is placed first where there is room, otherwise the pod stops first.
func (c *drains) transfer() {
	available, counting, inUse, busy := 0, len(c.companionPods), 0, false
	var leaving []*Pod
	for p := range c.s.all() {
		inUse += copies(c.s, p)
		_, occupied := c.occupied(p)
		busy = busy || occupied
		if p.RunState != pod.Running || c.changed[p.Identity] {
			continue
		}
		if c.s.available(p) || c.s.endedWell(p) {
			available++
		}
		if c.s.counting(p) {
			counting++
		}
		if c.s.each == nil && mustMove(c.s, p) && kept(c.s, p) == "" && !c.triedEnough(p) {
			leaving = append(leaving, p)
		}
	}
	if len(leaving) == 0 || busy {
		return
	}
	if c.s.Hold != "" {
		c.waiting = true
		return
	}
	if !c.mayAdd() {
		return
	}
	if leaving = slices.DeleteFunc(leaving, c.waitsForSiblings); len(leaving) == 0 {
		return
	}
	// Those that were tried in vain come last: what ails them may spare the others.
	p := slices.MinFunc(leaving, func(a, b *Pod) int {
		return cmp.Or(cmp.Compare(len(c.s.RC.Avoided(&a.Placement, c.s.Now)), len(c.s.RC.Avoided(&b.Placement, c.s.Now))), boolFirst(!c.s.available(a), !c.s.available(b)), a.Identity.Compare(b.Identity))
	})
	if c.s.ordered(p.Role) {
		c.leaveFirst(p, counting)
		return
	}
	room := inUse+c.found()+len(c.plan.Adds) < c.most()
	// With every replica healthy and room for one more nothing is taken away: the old copy goes when the new one is there.
	whole := available >= c.s.RC.Desired() && room
	switch {
	case c.s.counting(p) && counting-1 < c.limits.least && !whole:
		c.block(fmt.Sprintf("%s.%d must leave %s, but %d available replicas and a minimum of %d leave no room",
			p.Role, p.Identity.Index, p.Node, counting, c.limits.least))
	case room:
		c.placeElsewhere(p.Identity)
	default:
		c.evict(p, c.s.drained, "it must leave "+p.Node+", and there is no room for a second copy", true)
	}
}

// mustMove reports whether a pod must leave its living node.
func mustMove(s *Snapshot, p *Pod) bool {
	v := s.Nodes[p.Node]
	return v != nil && v.Alive && (v.MustLeave() || !s.matches(v)) && !s.rests(p)
}

// lingers tells a former copy that runs, or may, from one whose machine is lost. The latter is in nobody's way: if it comes
// back it is told what to do then.
func lingers(s *Snapshot, g pod.Ghost) bool {
	return s.aliveOn(g.Node) || !g.LeftBecauseLost && !s.machineLost(g.Node)
}

// kept returns why a pod that must leave its node is not moved, "" when it may be.
func kept(s *Snapshot, p *Pod) string {
	switch {
	case s.RC.Disabled:
		return "its controller is disabled: nothing is placed and nothing removed"
	case s.stays(p):
		return "it was found running and stays as it is until the controller is changed"
	case s.each != nil:
		if v := s.Nodes[p.Node]; v != nil && !s.matches(v) && !v.MustLeave() {
			return s.maySlip()
		}
		return ""
	case s.RC.Strategy == rc.Static:
		return "its controller is static"
	case s.Rollout != "" && !s.RolloutIdle:
		return "rollout " + s.Rollout + " is in charge of its controller"
	case s.ManifestOf(s.digestFor(&p.Placement)) == nil:
		return "the manifest that it would be placed with cannot be read"
	}
	return ""
}

// drainsWait says which pod does not leave its node, though it should, and why, unless it is on its way.
func (c *drains) drainsWait() {
	for p := range c.openRunning() {
		if state, _, why := c.moveOf(p); state == stuck {
			c.block(why)
			continue
		}
		if mustMove(c.s, p) && c.s.Rollout != "" && !c.s.RolloutIdle {
			c.requeueAfter(RoomRetry) // the rollout may rest by then
		}
		if mustMove(c.s, p) && (c.s.drained(p.Node) || kept(c.s, p) == "") && (c.s.each == nil || kept(c.s, p) != "") {
			if why := c.waitsFor(p); why != "" {
				c.block(fmt.Sprintf("%s.%d must leave %s: %s", p.Role, p.Identity.Index, p.Node, why))
			}
		}
	}
}

// misplacements says which pods stay on nodes that the selector does not match, and why nobody moves them; "" for none.
func misplacements(s *Snapshot) string {
	if s.RC.Disabled || s.RC.DeletedAt != nil {
		return ""
	}
	var stay []string
	for p := range s.running() {
		if v := s.Nodes[p.Node]; v == nil || !v.Alive || s.matches(v) || s.rests(p) {
			continue
		}
		if why := kept(s, p); why != "" {
			stay = append(stay, fmt.Sprintf("%s.%d stays on %s, whose labels %q does not match: %s", p.Role, p.Identity.Index, p.Node, s.RC.NodeSelector, why))
		}
	}
	return Few(stay)
}

// drained reports whether pods must leave a living node.
func (s *Snapshot) drained(nodeName string) bool {
	v := s.Nodes[nodeName]
	return v != nil && v.Alive && v.MustLeave()
}

// waitsFor returns why a pod does not leave its drained node, "" when nothing but its turn is awaited.
func (c *drains) waitsFor(p *Pod) string {
	why, drain := kept(c.s, p), evictionBy(c.s, p, p.Node)
	switch {
	case why == "" && c.triedEnough(p):
		return fmt.Sprintf("%s; it is tried again at %s", tried(c.s, p), c.s.RC.AvoidedUntil(c.s.RC.Avoided(&p.Placement, c.s.Now)[0]).UTC().Format(time.RFC3339))
	case why == "":
		return c.unconfirmed()
	case c.s.RC.Strategy == rc.Static && drain == nil:
		why += "; end the drain, or drain with --deadline and --force"
	case drain != nil && !c.s.RC.Disabled && drain.Deadline != nil && drain.Deadline.After(c.s.Now):
		why += "; it is stopped at " + drain.Deadline.UTC().Format(time.RFC3339)
	}
	return why
}

// unconfirmed returns which former copy keeps others from being moved, because its node cannot say that it has stopped.
func (c *drains) unconfirmed() string {
	if c.awaited == nil {
		c.awaited = new(string)
		for p := range c.s.all() {
			if g, occupied := c.occupied(p); occupied && !c.s.aliveOn(g.Node) {
				*c.awaited = fmt.Sprintf("one pod moves at a time, and %s, which has no preparer, has not confirmed that %s.%d stopped there",
					g.Node, p.Role, p.Identity.Index)
				break
			}
		}
	}
	return *c.awaited
}
