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

// force stops what is left on nodes whose drain is forced, from its deadline on. That the operator said so outranks the
// minimum, the strategy and a rollout, and it asks for no manifest.
func (c *computation) force() {
	for i := range c.s.Pods {
		p := &c.s.Pods[i]
		if p.RunState != pod.Running || c.touched[p.Identity] {
			continue
		}
		due := func(nodeName string) bool { return c.forcedOff(p, nodeName) }
		if due(p.Node) {
			c.leave(p, due, "the drain of "+p.Node+" is forced", false)
			continue
		}
		c.dismiss(p, due, "the drain of the node that it leaves is forced", true)
	}
}

// leave stops a pod where it is placed. A former copy that was left running is the pod again: its node is another one than that
// which must be left, and nobody asked it to stop (P4, P6), unless its node must be left, too.
func (c *computation) leave(p *Pod, left func(nodeName string) bool, reason string, dependsOnOthers bool) {
	others := slices.DeleteFunc(slices.Clone(p.Placement.Ghosts), func(g pod.Ghost) bool { return left(g.Node) })
	if g, runs := c.formerCopy(p, others); runs {
		c.comeBack(p, g, p.Avoid, reason, dependsOnOthers)
		return
	}
	c.stop(p, reason, dependsOnOthers)
}

// forcedOff reports whether a drain stops what a node has of a pod. It asks for another look when the deadline comes.
func (c *computation) forcedOff(p *Pod, nodeName string) bool {
	d := c.forcing(p, nodeName)
	if d == nil {
		return false
	}
	if d.Deadline != nil && c.s.Now.Before(*d.Deadline) {
		c.requeueAfter(d.Deadline.Sub(c.s.Now))
		return false
	}
	return true
}

// forcing returns the drain that stops what a living node has of a pod at its deadline, nil for none. What stays as it was
// found is stopped only if the drain began after that: an older one may have come back with a restored store (P4, R2).
func (c *computation) forcing(p *Pod, nodeName string) *node.Drain {
	v := c.s.Nodes[nodeName]
	if v == nil || !v.Alive || v.Ops.Drain == nil || !v.Ops.Drain.Force || c.stays(p) && !v.Ops.Drain.Since.After(p.ChangedAt) {
		return nil
	}
	return v.Ops.Drain
}

// transfer moves pods off nodes that they may not stay on: one at a time, dynamic controllers only, and only if the minimum
// would stay without it, all replicas are healthy and there is room for one more, or the pod is not available anyway. A new
// copy is placed first where there is room, otherwise the pod stops first.
func (c *computation) transfer() {
	available, counting, standing, busy := 0, len(c.beside), 0, false
	var misplaced []*Pod
	for i := range c.s.Pods {
		p := &c.s.Pods[i]
		standing += c.standing(p)
		_, occupied := c.occupied(p)
		busy = busy || occupied
		if p.RunState != pod.Running || c.touched[p.Identity] {
			continue
		}
		if c.s.available(p) {
			available++
		}
		if c.s.counting(p) {
			counting++
		}
		if c.misplaced(p) && c.kept(p) == "" && !c.triedEnough(p) {
			misplaced = append(misplaced, p)
		}
	}
	if len(misplaced) == 0 || busy {
		return
	}
	if c.s.Hold != "" {
		c.waiting = true
		return
	}
	if !c.mayAdd() {
		return
	}
	// Those that were tried in vain come last: what ails them may spare the others.
	p := slices.MinFunc(misplaced, func(a, b *Pod) int {
		return cmp.Or(cmp.Compare(len(c.s.RC.Avoided(&a.Placement, c.s.Now)), len(c.s.RC.Avoided(&b.Placement, c.s.Now))), boolFirst(!c.s.available(a), !c.s.available(b)), a.Identity.Compare(b.Identity))
	})
	least := c.s.least()
	room := standing+c.found()+len(c.plan.Adds) < c.most()
	// With every replica healthy and room for one more nothing is taken away: the old copy goes when the new one is there.
	whole := available >= c.s.RC.Desired() && room
	switch {
	case c.s.counting(p) && counting-1 < least && !whole:
		c.block(fmt.Sprintf("%s.%d must leave %s, but %d available replicas and a minimum of %d leave no room",
			p.Role, p.Identity.Index, p.Node, counting, least))
	case room:
		c.plan.Adds = append(c.plan.Adds, p.Identity)
		c.touched[p.Identity] = true
	default:
		c.leave(p, c.drained, "it must leave "+p.Node+", and there is no room for a second copy", true)
	}
}

// misplaced reports whether a pod must leave its living node.
func (c *computation) misplaced(p *Pod) bool {
	v := c.s.Nodes[p.Node]
	return v != nil && v.Alive && (v.MustLeave() || !c.s.matches(v))
}

// lingers tells a former copy that runs, or may, from one whose machine is lost. The latter is in nobody's way: if it comes
// back it is told what to do then.
func (c *computation) lingers(g pod.Ghost) bool {
	return c.s.aliveOn(g.Node) || !g.Lost && !c.s.gone(g.Node)
}

// kept returns why a pod that must leave its node is not moved, "" when it may be.
func (c *computation) kept(p *Pod) string {
	switch {
	case c.s.RC.Disabled:
		return "its controller is disabled: nothing is placed and nothing removed"
	case c.stays(p):
		return "it was found running and stays as it is until the controller is changed"
	case c.s.RC.Strategy == rc.Static:
		return "its controller is static"
	case c.s.RC.Mutator != "" && !c.s.RolloutRests:
		return "rollout " + c.s.RC.Mutator + " is in charge of its controller"
	case c.s.ManifestOf(c.s.digestFor(&p.Placement)) == nil:
		return "the manifest that it would be placed with cannot be read"
	}
	return ""
}

// drainsWait says which pod does not leave its node, though it should, and why, unless it is on its way.
func (c *computation) drainsWait() {
	for i := range c.s.Pods {
		p := &c.s.Pods[i]
		if p.RunState != pod.Running || c.touched[p.Identity] {
			continue
		}
		if state, _, why := c.moveOf(p); state == stuck {
			c.block(why)
			continue
		}
		if c.misplaced(p) && c.s.RC.Mutator != "" && !c.s.RolloutRests {
			c.requeueAfter(RoomRetry) // the rollout may rest by then
		}
		if c.misplaced(p) && (c.drained(p.Node) || c.kept(p) == "") {
			if why := c.waitsFor(p); why != "" {
				c.block(fmt.Sprintf("%s.%d must leave %s: %s", p.Role, p.Identity.Index, p.Node, why))
			}
		}
	}
}

// misplacements says which pods stay on nodes that the selector does not match, and why nobody moves them; "" for none.
func (c *computation) misplacements() string {
	if c.s.RC.Disabled || c.s.RC.DeletedAt != nil {
		return ""
	}
	var stay []string
	for i := range c.s.Pods {
		p := &c.s.Pods[i]
		if v := c.s.Nodes[p.Node]; p.RunState != pod.Running || v == nil || !v.Alive || c.s.matches(v) {
			continue
		}
		if why := c.kept(p); why != "" {
			stay = append(stay, fmt.Sprintf("%s.%d stays on %s, whose labels %q does not match: %s", p.Role, p.Identity.Index, p.Node, c.s.RC.NodeSelector, why))
		}
	}
	return Few(stay)
}

// drained reports whether pods must leave a living node.
func (c *computation) drained(nodeName string) bool {
	v := c.s.Nodes[nodeName]
	return v != nil && v.Alive && v.MustLeave()
}

// waitsFor returns why a pod does not leave its drained node, "" when nothing but its turn is awaited.
func (c *computation) waitsFor(p *Pod) string {
	why, drain := c.kept(p), c.forcing(p, p.Node)
	switch {
	case why == "" && c.triedEnough(p):
		return fmt.Sprintf("%s; it is tried again at %s", c.s.tried(p), c.s.RC.AvoidedUntil(c.s.RC.Avoided(&p.Placement, c.s.Now)[0]).UTC().Format(time.RFC3339))
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
func (c *computation) unconfirmed() string {
	if c.awaited == nil {
		text := c.awaitedNow()
		c.awaited = &text
	}
	return *c.awaited
}

func (c *computation) awaitedNow() string {
	for i := range c.s.Pods {
		if g, occupied := c.occupied(&c.s.Pods[i]); occupied && !c.s.aliveOn(g.Node) {
			id := c.s.Pods[i].Identity
			return fmt.Sprintf("one pod moves at a time, and %s, which has no preparer, has not confirmed that %s.%d stopped there",
				g.Node, id.Role, id.Index)
		}
	}
	return ""
}

// block says why a drain or an upgrade does not go on; what was said first stays.
func (c *computation) block(why string) { c.blocked = cmp.Or(c.blocked, why) }
