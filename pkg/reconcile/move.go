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
		lost, unmanaged := !v.Alive && v.Gone, !v.Alive && !v.Gone
		changed := c.since(&next.LostSince, lost)
		changed = c.since(&next.UnmanagedSince, unmanaged) || changed
		if !changed {
			continue
		}
		if id := p.Identity; !c.surplus(p.Role) && c.dueForReplacement(&next) {
			c.plan.Adds = append(c.plan.Adds, id) // the marks come with the move
			c.touched[id] = true
			p.LostSince, p.UnmanagedSince = next.LostSince, next.UnmanagedSince
			continue
		}
		reason := "its node is back"
		switch {
		case lost:
			reason = "its node is gone"
		case unmanaged:
			reason = "its node has no preparer"
		}
		c.add(Change{Action: Mark, Identity: p.Identity, Index: p.Index, Placement: &next, Reason: reason})
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
	loss := c.s.RC.NodeLoss
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
	return due(p.LostSince, loss.After.Or(rc.DefaultNodeLossAfter)) ||
		due(p.UnmanagedSince, loss.UnmanagedAfter.Or(rc.DefaultUnmanagedAfter))
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

// replaceLost asks for another node for each pod whose node has been lost for long enough. The old copy's intent keeps
// saying `running` until the new one is available.
func (c *computation) replaceLost() {
	for i := range c.s.Pods {
		p := &c.s.Pods[i]
		if p.RunState == pod.Running && !c.touched[p.Identity] && !c.s.aliveOn(p.Node) && !c.surplus(p.Role) && c.dueForReplacement(&p.Placement) {
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
		if p.arrived() && !c.s.gone(p.Node) {
			c.dismiss(p)
			continue
		}
		for _, g := range p.Placement.Ghosts {
			r := p.Ghosts[g.Node]
			if g.Lost && g.Revision == 0 && c.s.aliveOn(g.Node) && r != nil && r.Available {
				c.comeBack(p, g, r)
				break
			}
		}
	}
}

// dismiss stops every former copy that still runs.
func (c *computation) dismiss(p *Pod) {
	next := p.Placement
	next.Ghosts = slices.Clone(next.Ghosts)
	ch := Change{
		Action: Expel, Identity: p.Identity, Index: p.Index, Placement: &next, NeedsBreaker: true, NeedsBell: true,
		Reason: "it is available on " + p.Node,
	}
	for i := range next.Ghosts {
		g := &next.Ghosts[i]
		if g.Revision != 0 {
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

// comeBack gives a pod back to the node that was lost and returned before the replacement was available.
func (c *computation) comeBack(p *Pod, g pod.Ghost, r *pod.Reality) {
	if !c.mayStop() {
		return
	}
	next := p.Placement
	next.Ghosts = slices.DeleteFunc(slices.Clone(next.Ghosts), func(o pod.Ghost) bool { return o.Node == g.Node })
	left := pod.Ghost{Node: p.Node, Revision: p.nextRevision(c.s.Now), Since: c.s.Now, Ports: p.Ports}
	next.Ghosts = append(next.Ghosts, left)
	next.Node, next.Digest, next.Ports, next.Switching = g.Node, r.Digest, p.PortsOf(g), false
	next.Revision, next.ChangedAt = p.nextRevision(c.s.Now), c.s.Now
	next.LostSince, next.UnmanagedSince = nil, nil
	in, stop := next.Intent(), next.GhostIntent(left)
	c.add(Change{
		Action: Return, Identity: p.Identity, Index: p.Index, Placement: &next, NeedsBreaker: true, NeedsBell: true,
		Reason:  "its lost node came back before the replacement on " + p.Node + " was available",
		Intents: []IntentChange{{Node: g.Node, Intent: &in}, {Node: p.Node, Intent: &stop}},
	})
}

// transfer moves pods off nodes that they may not stay on: one at a time, dynamic controllers only, and only if the minimum
// would stay without it, all replicas are healthy and there is room for one more, or the pod is not available anyway. A new copy is placed first where there is room, otherwise the pod stops first.
func (c *computation) transfer() {
	if c.s.RC.Mutator != "" || c.s.Hold != "" || c.s.Manifest == nil {
		return
	}
	available, standing, busy := 0, 0, false
	var misplaced []*Pod
	for i := range c.s.Pods {
		p := &c.s.Pods[i]
		standing += c.standing(p)
		busy = busy || slices.ContainsFunc(p.Placement.Ghosts, func(g pod.Ghost) bool { return !g.Lost })
		if p.RunState != pod.Running {
			continue
		}
		if c.s.available(p) && !c.touched[p.Identity] {
			available++
		}
		if !c.touched[p.Identity] && !c.stays(p) && len(p.Placement.Ghosts) == 0 && c.misplaced(p) {
			misplaced = append(misplaced, p)
		}
	}
	misplaced = slices.DeleteFunc(misplaced, c.forced)
	if len(misplaced) == 0 || busy || c.s.RC.Strategy == rc.Static {
		return
	}
	p := slices.MinFunc(misplaced, func(a, b *Pod) int {
		return cmp.Or(boolFirst(!c.s.available(a), !c.s.available(b)), a.Identity.Compare(b.Identity))
	})
	least := c.s.RC.MinimumAvailable()
	room := standing+len(c.plan.Adds) < c.s.RC.Desired()+c.s.RC.Surge()
	// With every replica healthy and room for one more nothing is taken away: the old copy goes when the new one is there.
	whole := available >= c.s.RC.Desired() && room
	switch {
	case c.s.available(p) && available-1 < least && !whole:
		c.blocked = fmt.Sprintf("%s.%d must leave %s, but %d available replicas and a minimum of %d leave no room",
			p.Role, p.Identity.Index, p.Node, available, least)
	case room:
		c.plan.Adds = append(c.plan.Adds, p.Identity)
		c.touched[p.Identity] = true
	default:
		c.stop(p, "it must leave "+p.Node+", and there is no room for a second copy", least > 0)
	}
}

// misplaced reports whether a pod must leave its living node.
func (c *computation) misplaced(p *Pod) bool {
	v := c.s.Nodes[p.Node]
	return v != nil && v.Alive && (v.MustLeave() || !c.s.matches(v))
}

// forced stops a pod whose node's drain is forced and whose deadline has passed: that the operator said so outranks the
// minimum. It reports whether the pod needs no other treatment.
func (c *computation) forced(p *Pod) bool {
	d := c.s.Nodes[p.Node].Ops.Drain
	if d == nil || !d.Force {
		return false
	}
	if d.Deadline != nil && c.s.Now.Before(*d.Deadline) {
		c.lookAgain(d.Deadline.Sub(c.s.Now))
		return false
	}
	c.stop(p, "the drain of "+p.Node+" is forced", false)
	return true
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
	next.Ghosts = append(next.Ghosts, pod.Ghost{Node: p.Node, Lost: lost, Since: s.Now, Ports: p.Ports})
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

// forget carries out what operators declare: a copy on a node that is not alive counts as stopped.
func (c *computation) forget() {
	for _, r := range c.s.Requests {
		c.plan.Answered = append(c.plan.Answered, r.ID)
		p := c.find(r.Pod)
		if !r.Forget || p == nil || c.touched[p.Identity] || c.s.aliveOn(r.Node) {
			continue
		}
		ch := Change{
			Action: Remove, Identity: p.Identity, Index: p.Index, Reason: "an operator declared it gone",
			Intents: []IntentChange{{Node: r.Node}}, Reserve: []ReserveChange{{Node: r.Node}},
		}
		next := p.Placement
		next.Ghosts = slices.DeleteFunc(slices.Clone(next.Ghosts), func(g pod.Ghost) bool { return g.Node == r.Node })
		switch {
		case p.Node != r.Node && len(next.Ghosts) == len(p.Placement.Ghosts):
			continue // there is no such copy
		case p.Node != r.Node:
			ch.Placement = &next
		case len(next.Ghosts) > 0:
			// A former copy may still run: its node becomes the pod's, asked to stop.
			g := next.Ghosts[0]
			next.Node, next.Ports, next.Ghosts, next.RunState = g.Node, p.PortsOf(g), next.Ghosts[1:], pod.Stopped
			next.Revision, next.ChangedAt, next.StoppingSince = p.nextRevision(c.s.Now), c.s.Now, &c.s.Now
			in := next.Intent()
			ch.Placement, ch.NeedsBreaker = &next, true
			ch.Intents = append(ch.Intents, IntentChange{Node: g.Node, Intent: &in})
			if !c.mayStop() {
				continue
			}
		}
		c.add(ch)
	}
}

// release gives back what is reserved for pods that are not there.
func (c *computation) release() {
	for _, l := range c.s.Leaks {
		p := c.find(l.Pod)
		there := p != nil && (p.Node == l.Node || slices.ContainsFunc(p.Placement.Ghosts, func(g pod.Ghost) bool { return g.Node == l.Node }))
		orphan := slices.ContainsFunc(c.s.Orphans, func(o Orphan) bool { return o.Identity == l.Pod && o.Node == l.Node })
		if there || orphan || p != nil || c.touched[l.Pod] {
			continue // one that is there elsewhere is looked at again when it has settled
		}
		c.add(Change{
			Action: Release, Identity: l.Pod, Reason: "the node holds a share for a pod that is not there",
			Reserve: []ReserveChange{{Node: l.Node, Holder: (*node.Holder)(nil)}},
		})
	}
}
