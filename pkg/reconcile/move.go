package reconcile

import (
	"cmp"
	"slices"
	"time"

	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
)

// markLost keeps in the placements since when a node is gone or without a preparer, so that a successor counts from the
// same moment (P7).
func (c *computation) markLost() {
	for i := range c.s.Pods {
		p := &c.s.Pods[i]
		v := c.s.Nodes[p.Node]
		if p.RunState != pod.Running || c.touched[p.Identity] || v == nil {
			continue
		}
		next := p.Placement
		lost, unmanaged := c.s.gone(p.Node), !v.Alive && !c.s.gone(p.Node)
		changed := c.since(&next.LostSince, lost)
		changed = c.since(&next.UnmanagedSince, unmanaged) || changed
		if !changed {
			continue
		}
		reason := "its node is back"
		switch {
		case lost:
			reason = "its node is gone"
		case unmanaged:
			reason = "its node has no preparer"
		}
		mark := Change{Action: Mark, Identity: p.Identity, Index: p.Index, Placement: &next, Reason: reason}
		if id := p.Identity; !c.surplus(p.Role) && c.dueForReplacement(&next) && c.takeRoom(p) {
			c.plan.Adds = append(c.plan.Adds, id) // the mark comes with the move, or instead of it
			c.plan.Marks = append(c.plan.Marks, mark)
			c.touched[id] = true
			p.LostSince, p.UnmanagedSince = next.LostSince, next.UnmanagedSince
			continue
		}
		c.add(mark)
	}
}

// markGhosts notes which former copies are on machines that are lost, where nothing else changes.
func (c *computation) markGhosts() {
	for i := range c.s.Pods {
		p := &c.s.Pods[i]
		next, changed := p.Placement, false
		next.Ghosts = slices.Clone(next.Ghosts)
		for i := range next.Ghosts {
			g := &next.Ghosts[i]
			if gone := c.s.gone(g.Node); c.s.Nodes[g.Node] != nil && g.Gone != gone {
				g.Gone, changed = gone, true
			}
		}
		if changed && !c.touched[p.Identity] {
			c.add(Change{
				Action: Mark, Identity: p.Identity, Index: p.Index, Placement: &next,
				Reason: "the machine of a former copy is lost, or is back",
			})
		}
	}
}

// since sets or clears a mark, and reports whether that changed it.
func (c *computation) since(mark **time.Time, holds bool) bool {
	if holds == (*mark != nil) {
		return false
	}
	*mark = nil
	if holds {
		now := c.s.Now
		*mark = &now
	}
	return true
}

// dueForReplacement reports whether the pod's node has been lost for as long as its controller says. It asks for another
// look when the time comes.
func (c *computation) dueForReplacement(p *pod.Placement) bool {
	if c.s.Hold != "" || c.s.Manifest == nil || !c.s.RC.ReplacesLost() || c.s.RC.Disabled || c.s.RC.DeletedAt != nil {
		return false
	}
	due := func(since *time.Time, after time.Duration) bool {
		if since == nil {
			return false
		}
		left := after - c.s.Now.Sub(*since)
		if left > 0 {
			c.lookAgain(left)
		}
		return left <= 0
	}
	return due(p.LostSince, c.grace(true)) || due(p.UnmanagedSince, c.grace(false))
}

// surplus reports whether a role has more pods than it should. Those that are lost are then the first to stop (see remove),
// not to be replaced.
func (c *computation) surplus(role string) bool {
	want := 0
	for _, g := range c.s.RC.ReplicaGroups {
		if g.Role == role {
			want = *g.Count
		}
	}
	return len(c.running(role)) > want
}

// takeRoom reports whether one more lost pod may be replaced now, and takes the room for it: what runs, or has yet to stop, on
// living nodes counts against desired + surge, and lost pods do not (P6). When one of those has stopped, its report rings.
func (c *computation) takeRoom(p *Pod) bool {
	if c.forLost == nil {
		room := c.s.RC.Desired() + c.s.RC.Surge()
		for i := range c.s.Pods {
			room -= c.standing(&c.s.Pods[i])
			if c.asGoodAsLost(&c.s.Pods[i]) {
				room++
			}
		}
		c.forLost = &room
	}
	if *c.forLost <= 0 {
		return false
	}
	*c.forLost--
	if c.s.gone(p.Node) {
		c.replaced++
	}
	return true
}

// asGoodAsLost reports whether the pod's node lacks a preparer for so long that the pod may be replaced, though the machine is
// not known to be lost.
func (c *computation) asGoodAsLost(p *Pod) bool {
	v := c.s.Nodes[p.Node]
	if p.RunState != pod.Running || v == nil || v.Alive || c.s.gone(p.Node) {
		return false
	}
	since := c.s.Now
	if p.UnmanagedSince != nil {
		since = *p.UnmanagedSince
	}
	return c.s.Now.Sub(since) >= c.grace(false)
}

// replaceLost asks for another node for each pod whose node has been lost for long enough. The old copy's intent keeps
// saying `running` until the new one is available.
func (c *computation) replaceLost() {
	for i := range c.s.Pods {
		p := &c.s.Pods[i]
		if p.RunState == pod.Running && !c.touched[p.Identity] && !c.s.aliveOn(p.Node) && !c.surplus(p.Role) && c.dueForReplacement(&p.Placement) && c.takeRoom(p) {
			c.plan.Adds = append(c.plan.Adds, p.Identity)
			c.touched[p.Identity] = true
		}
	}
}

// finishMoves ends the old copy of a moved pod once the new one is available, or keeps the old one if its lost node came
// back first.
func (c *computation) finishMoves() {
	for i := range c.s.Pods {
		p := &c.s.Pods[i]
		if c.touched[p.Identity] || p.RunState != pod.Running {
			continue
		}
		if c.s.availableHere(p) {
			c.dismiss(p, func(string) bool { return true }, "it is available on "+p.Node, false)
			continue
		}
		for _, g := range p.Placement.Ghosts {
			r := p.Ghosts[g.Node]
			if g.Lost && g.Revision == 0 && c.s.aliveOn(g.Node) && r != nil && r.Available {
				c.comeBack(p, g, "its lost node came back before the replacement on "+p.Node+" was available", true)
				break
			}
		}
	}
}

// dismiss stops every former copy that still runs on one of some nodes. Whether it may depends on the bell unless somebody
// said that they go in any case.
func (c *computation) dismiss(p *Pod, from func(nodeName string) bool, reason string, anyway bool) {
	next := p.Placement
	next.Ghosts = slices.Clone(next.Ghosts)
	ch := Change{
		Action: Expel, Identity: p.Identity, Index: p.Index, Placement: &next, NeedsBreaker: true, NeedsBell: !anyway, Reason: reason,
	}
	for i := range next.Ghosts {
		g := &next.Ghosts[i]
		if g.Revision != 0 || !from(g.Node) {
			continue
		}
		if !c.mayStop() {
			return
		}
		g.Revision = p.nextRevision(c.s.Now)
		stop := next.GhostIntent(*g)
		ch.Intents = append(ch.Intents, IntentChange{Node: g.Node, Intent: &stop})
	}
	if len(ch.Intents) > 0 {
		c.add(ch)
	}
}

// comeBack gives a pod back to the node of a former copy that was left running, and stops the one where it is placed.
func (c *computation) comeBack(p *Pod, g pod.Ghost, reason string, dependsOnOthers bool) {
	if !c.mayStop() {
		return
	}
	next := c.backOn(p, p.Placement, g)
	left := pod.Ghost{Node: p.Node, Revision: p.nextRevision(c.s.Now), Since: c.s.Now, Ports: p.Ports}
	next.Ghosts = append(next.Ghosts, left)
	in, stop := next.Intent(), next.GhostIntent(left)
	c.add(Change{
		Action: Return, Identity: p.Identity, Index: p.Index, Placement: &next, NeedsBreaker: true, NeedsBell: dependsOnOthers, Reason: reason,
		Intents: []IntentChange{{Node: g.Node, Intent: &in}, {Node: p.Node, Intent: &stop}},
	})
}

// backOn returns the next placement of a pod that is given back to a former node, with the manifest that its copy there has as far
// as anybody says: another one would restart it.
func (c *computation) backOn(p *Pod, next pod.Placement, g pod.Ghost) pod.Placement {
	next.Ghosts = slices.DeleteFunc(slices.Clone(next.Ghosts), func(o pod.Ghost) bool { return o.Node == g.Node })
	next.Node, next.Ports, next.Switching = g.Node, p.PortsOf(g), false
	if in := p.Intents[g.Node]; in != nil {
		next.Digest = in.Digest
	}
	if r := p.Ghosts[g.Node]; r != nil {
		next.Digest = cmp.Or(r.Digest, next.Digest)
		if r.Revision > p.Revision {
			next.AdoptedAtGeneration = c.s.RC.Generation // the store is an older one (R2)
		}
	}
	next.Revision, next.ChangedAt = p.nextRevision(c.s.Now), c.s.Now
	next.LostSince, next.UnmanagedSince = nil, nil
	switch v := c.s.Nodes[g.Node]; {
	case c.s.gone(g.Node):
		next.LostSince = c.lostSince(g)
	case v != nil && !v.Alive:
		next.UnmanagedSince = c.lostSince(g)
	}
	return next
}

// lostSince returns since when the node of a former copy is gone, or without a preparer, as far as the placements remember
// (P7): other pods there say so, and a pod that was moved because of that had waited for as long as its controller says.
func (c *computation) lostSince(g pod.Ghost) *time.Time {
	since := c.s.Now
	gone := c.s.gone(g.Node)
	if g.Lost {
		since = g.Since.Add(-c.grace(gone))
	}
	for i := range c.s.Pods {
		p := &c.s.Pods[i]
		mark := p.UnmanagedSince
		if gone {
			mark = p.LostSince
		}
		if p.Node == g.Node && p.RunState == pod.Running && mark != nil && mark.Before(since) {
			since = *mark
		}
	}
	return &since
}

// grace returns for how long a node is gone, or without a preparer, before its pods are replaced.
func (c *computation) grace(gone bool) time.Duration {
	if gone {
		return c.s.RC.NodeLoss.After.Or(rc.DefaultNodeLossAfter)
	}
	return c.s.RC.NodeLoss.UnmanagedAfter.Or(rc.DefaultUnmanagedAfter)
}

// standing returns how many copies of a pod count against desired + surge: where it is placed unless that is lost, and
// where it still runs or stops on living nodes.
func (c *computation) standing(p *Pod) int {
	n := 0
	if p.RunState == pod.Running && !c.s.gone(p.Node) || p.RunState == pod.Stopped && c.s.aliveOn(p.Node) {
		n++
	}
	for _, g := range p.Placement.Ghosts {
		if !g.Lost && c.s.aliveOn(g.Node) {
			n++
		}
	}
	return n
}

// move returns the change that gives an identity that exists a new node (R7).
func move(s *Snapshot, p *Pod, nodeName string) Change {
	next := p.Placement
	m := s.Manifest
	lost := !s.aliveOn(p.Node)
	next.Ghosts = slices.DeleteFunc(slices.Clone(next.Ghosts), func(g pod.Ghost) bool { return g.Node == nodeName })
	next.Ghosts = append(next.Ghosts, pod.Ghost{Node: p.Node, Lost: lost, Gone: s.gone(p.Node), Since: s.Now, Ports: p.Ports})
	next.Node, next.Digest, next.PodID, next.Ports = nodeName, s.RC.ManifestDigest, m.ID, m.PortMap()
	next.Labels = s.RC.PodLabelSet(m.ID, m.Labels)
	next.Revision, next.ChangedAt, next.AdoptedAtGeneration = p.nextRevision(s.Now), s.Now, 0
	next.LostSince, next.UnmanagedSince, next.Switching = nil, nil, false
	in, holder := next.Intent(), NewHolder(s, p.Identity)
	reason := p.Node + " may not keep it"
	if lost {
		reason = p.Node + " is lost"
	}
	return Change{
		Action: Move, Identity: p.Identity, Index: p.Index, Placement: &next, Reason: reason, NeedsSchema: true,
		Intents: []IntentChange{{Node: nodeName, Intent: &in}},
		Reserve: []ReserveChange{{Node: nodeName, Holder: &holder, Dynamic: m.DynamicPorts()}},
	}
}
