package reconcile

import (
	"cmp"
	"slices"
	"time"

	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
)

// losses notes which nodes are lost, and replaces pods on those that have been for long enough.
type losses struct{ moves }

// markLost keeps in the placements since when a node is gone or without a preparer, so that a successor counts from the
// same moment (P7). What was written about an earlier death counts no more: the node has been alive since.
func (c losses) markLost() {
	for p := range c.open() {
		v := c.s.Nodes[p.Node]
		if v == nil || p.RunState != pod.Running && !c.s.ordered(p.Role) {
			continue
		}
		next := p.Placement
		lost := c.s.machineLost(p.Node)
		if c.s.ordered(p.Role) {
			lost = c.s.silent(p.Node) // the time until its index is free begins anew
		}
		unmanaged := !v.Alive && !lost
		changed := next.DeadIndex != v.FreeIndex
		if changed {
			next.LostSince, next.UnmanagedSince, next.DeadIndex = nil, nil, v.FreeIndex
		}
		changed = since(c.s, &next.LostSince, lost) || changed
		changed = since(c.s, &next.UnmanagedSince, unmanaged) || changed
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
		if !v.Alive {
			mark.needsDead(c.s.death(p.Node))
		}
		if c.toReplace(p, &next) {
			c.placeElsewhere(p.Identity)
			c.plan.Marks = append(c.plan.Marks, mark) // which comes with the move, or instead of it
			p.LostSince, p.UnmanagedSince, p.DeadIndex = next.LostSince, next.UnmanagedSince, next.DeadIndex
			continue
		}
		c.add(mark)
	}
}

// markGhosts notes which former copies are on machines that are lost, where nothing else changes.
func (c losses) markGhosts() {
	for p := range c.s.all() {
		if len(p.Placement.Ghosts) == 0 {
			continue
		}
		next, changed := p.Placement, false
		next.Ghosts = slices.Clone(next.Ghosts)
		ch := Change{
			Action: Mark, Identity: p.Identity, Index: p.Index, Placement: &next,
			Reason: "the machine of a former copy is lost, or is back",
		}
		for i := range next.Ghosts {
			g := &next.Ghosts[i]
			if c.s.Nodes[g.Node] == nil || !noteMachineLost(c.s, g) {
				continue
			}
			changed = true
			if g.MachineLost {
				ch.needsDead(c.s.death(g.Node))
			}
		}
		switch {
		case !changed:
		case !c.changed[p.Identity]:
			c.add(ch)
		default:
			c.markInstead(ch)
		}
	}
}

// markInstead keeps a mark of a former copy for where a pod that is to be placed elsewhere finds no node.
func (c losses) markInstead(ch Change) {
	if !slices.Contains(c.plan.Adds, ch.Identity) {
		return
	}
	i := slices.IndexFunc(c.plan.Marks, func(m Change) bool { return m.Identity == ch.Identity })
	if i < 0 {
		c.plan.Marks = append(c.plan.Marks, ch)
		return
	}
	m := &c.plan.Marks[i]
	m.Placement.Ghosts = ch.Placement.Ghosts
	for _, dead := range ch.NeedsDead {
		m.needsDead(dead)
	}
}

// noteMachineLost writes down whether the machine of a former copy, on a node that has a record, is lost. It reports whether that is new.
func noteMachineLost(s *Snapshot, g *pod.Ghost) (isNew bool) {
	gone, death := s.machineLost(g.Node), uint64(0)
	if gone {
		death = s.death(g.Node).Index
	}
	isNew = g.MachineLost != gone || g.DeadIndex != death
	g.MachineLost, g.DeadIndex = gone, death
	return isNew
}

// since sets or clears a mark, and reports whether that changed it.
func since(s *Snapshot, mark **time.Time, holds bool) bool {
	if holds == (*mark != nil) {
		return false
	}
	*mark = nil
	if holds {
		now := s.Now
		*mark = &now
	}
	return true
}

// dueForReplacement reports whether the pod's node has been lost for as long as its controller says. It asks for another
// look when the time comes.
func (c losses) dueForReplacement(p *pod.Placement) bool {
	if c.s.Hold != "" || c.s.ManifestOf(c.s.digestFor(p)) == nil || !c.s.RC.ReplacesLost() || c.s.RC.Disabled || c.s.RC.DeletedAt != nil {
		return false
	}
	due := func(since *time.Time, after time.Duration) bool {
		if since == nil {
			return false
		}
		left := after - c.s.Now.Sub(*since)
		if left > 0 {
			c.requeueAfter(left)
		}
		return left <= 0
	}
	return due(p.LostSince, grace(c.s, true)) || due(p.UnmanagedSince, grace(c.s, false))
}

// toReplace reports whether a pod is to be placed elsewhere now because its node is lost, as its next placement says, and takes
// the room for that. One that has somewhere to go back to goes back instead.
func (c losses) toReplace(p *Pod, next *pod.Placement) bool {
	if c.s.ordered(p.Role) || c.s.rests(p) || c.surplus(p.Role) || !c.dueForReplacement(next) || c.triedEnough(p) {
		return false
	}
	if _, back, _ := c.moveOf(p); back != nil {
		return false
	}
	return c.takeRoom(p)
}

// replaceLost asks for another node for each pod whose node has been lost for long enough. The old copy's intent keeps
// saying `running` until the new one is available.
func (c losses) replaceLost() {
	for p := range c.openRunning() {
		switch {
		case c.s.aliveOn(p.Node), c.s.rests(p):
		case c.s.ordered(p.Role):
			c.stopLost(p)
		case c.toReplace(p, &p.Placement):
			c.placeElsewhere(p.Identity)
		}
	}
}

// stopFormerCopies stops every former copy that still runs on one of some nodes. Whether it may depends on what is available unless
// somebody said that they go in any case.
func (c moves) stopFormerCopies(p *Pod, from func(nodeName string) bool, reason string, anyway bool) {
	next := p.Placement
	next.Ghosts = slices.Clone(next.Ghosts)
	ch := Change{
		Action: StopDuplicate, Identity: p.Identity, Index: p.Index, Placement: &next, NeedsBreaker: true, NeedsMinimum: !anyway, Reason: reason,
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

// comeBack gives a pod back to the node of a former copy that was left running, and stops the one where it is placed. Avoid are
// the nodes to which it was moved in vain.
func (c moves) comeBack(p *Pod, g pod.Ghost, avoid []pod.Avoided, reason string, dependsOnOthers bool) {
	if !c.mayStop() {
		return
	}
	next := backOn(c.s, p, p.Placement, g)
	next.Avoid = avoid
	left := pod.Ghost{Node: p.Node, Revision: p.nextRevision(c.s.Now), Since: c.s.Now, Ports: p.Ports}
	next.Ghosts = append(next.Ghosts, left)
	in, stop := next.Intent(), next.GhostIntent(left)
	ch := Change{
		Action: Return, Identity: p.Identity, Index: p.Index, Placement: &next, NeedsBreaker: true, NeedsMinimum: dependsOnOthers, Reason: reason,
		Intents: []IntentChange{{Node: g.Node, Intent: &in}, {Node: p.Node, Intent: &stop}},
	}
	if next.LostSince != nil {
		ch.needsDead(c.s.death(g.Node)) // the placement says so
	}
	c.add(ch)
}

// backOn returns the next placement of a pod that is given back to a former node, with the manifest that its copy there has as far
// as anybody says: another one would restart it.
func backOn(s *Snapshot, p *Pod, next pod.Placement, g pod.Ghost) pod.Placement {
	next.Ghosts = slices.DeleteFunc(slices.Clone(next.Ghosts), func(o pod.Ghost) bool { return o.Node == g.Node })
	next.Node, next.Ports, next.Switching = g.Node, p.PortsOf(g), false
	if in := p.Intents[g.Node]; in != nil {
		next.Digest = in.Digest
	}
	if r := p.Ghosts[g.Node]; r != nil {
		next.Digest = cmp.Or(r.Digest, next.Digest)
		if r.Revision > p.Revision {
			next.AdoptedAtGeneration = s.RC.Generation // the store is an older one (R2)
		}
	}
	next.Revision, next.ChangedAt = p.nextRevision(s.Now), s.Now
	next.LostSince, next.UnmanagedSince, next.DeadIndex = nil, nil, 0
	switch v := s.Nodes[g.Node]; {
	case s.machineLost(g.Node):
		next.LostSince, next.DeadIndex = lostSince(s, g), v.FreeIndex
	case v != nil && !v.Alive:
		next.UnmanagedSince, next.DeadIndex = lostSince(s, g), v.FreeIndex
	}
	return next
}

// lostSince returns since when the node of a former copy is gone, or without a preparer, as far as the placements remember
// (P7): other pods there say so, and a pod that was moved because of that had waited for as long as its controller says.
func lostSince(s *Snapshot, g pod.Ghost) *time.Time {
	since := s.Now
	gone := s.machineLost(g.Node)
	if g.LeftBecauseLost {
		since = g.Since.Add(-grace(s, gone))
	}
	for p := range s.running() {
		mark := p.UnmanagedSince
		if gone {
			mark = p.LostSince
		}
		if p.Node == g.Node && s.sinceDeath(&p.Placement) && mark != nil && mark.Before(since) {
			since = *mark
		}
	}
	return &since
}

// grace returns for how long a node is gone, or without a preparer, before its pods are replaced.
func grace(s *Snapshot, gone bool) time.Duration {
	if gone {
		return s.RC.NodeLoss.After.Or(rc.DefaultNodeLossAfter)
	}
	return s.RC.NodeLoss.UnmanagedAfter.Or(rc.DefaultUnmanagedAfter)
}

// move returns the change that gives an identity that exists a new node (R7).
func move(s *Snapshot, p *Pod, nodeName string) Change {
	next := p.Placement
	digest := s.digestFor(&p.Placement)
	m := s.ManifestOf(digest)
	lost := !s.aliveOn(p.Node)
	ghost := pod.Ghost{Node: p.Node, LeftBecauseLost: lost, Since: s.Now, Ports: p.Ports}
	if !lost && slices.ContainsFunc(p.Placement.Ghosts, func(g pod.Ghost) bool { return g.Revision == 0 }) {
		next.Avoid = avoiding(s, p) // it is moved on, because it got stuck here
	}
	next.Ghosts = slices.DeleteFunc(slices.Clone(next.Ghosts), func(g pod.Ghost) bool { return g.Node == nodeName })
	next.Ghosts = append(next.Ghosts, ghost)
	next.Node, next.Digest, next.PodID, next.Ports = nodeName, digest, m.ID, m.PortMap()
	next.OwnLabels = nil // they were given to the copy on the former node
	next.Labels, next.Replicas = s.RC.PodLabelSet(m.ID, m.Labels, nil), s.RC.CountOf(p.Role)
	next.Revision, next.ChangedAt, next.AdoptedAtGeneration = p.nextRevision(s.Now), s.Now, 0
	next.LostSince, next.UnmanagedSince, next.DeadIndex, next.Switching = nil, nil, 0, false
	in, claim := next.Intent(), NewClaim(s, p.Identity)
	reason := p.Node + " may not keep it"
	if lost {
		reason = p.Node + " is lost"
	}
	ch := Change{
		Action: Move, Identity: p.Identity, Index: p.Index, Placement: &next, Reason: reason, NeedsSchema: true,
		Intents: []IntentChange{{Node: nodeName, Intent: &in}},
		Reserve: []ReserveChange{{Node: nodeName, Claim: &claim, Dynamic: m.DynamicPorts()}},
	}
	if lost && s.Nodes[p.Node] != nil {
		ch.needsDead(s.death(p.Node))
	}
	for i := range next.Ghosts {
		if g := &next.Ghosts[i]; s.Nodes[g.Node] != nil && noteMachineLost(s, g) && g.MachineLost {
			ch.needsDead(s.death(g.Node))
		}
	}
	return ch
}
