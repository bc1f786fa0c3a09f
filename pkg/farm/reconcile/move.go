package reconcile

import (
	"cmp"
	"slices"
	"time"

	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
)

// losses records which nodes are lost, and replaces pods on nodes that are lost for long enough.
type losses struct{ moves }

// recordLost writes into the placements when a node was lost, or lost its preparer, because the next owner must measure
// its wait from the same moment (P7). Times of an earlier death are replaced: the node was alive since then.
func (l losses) recordLost() {
	for p := range l.open() {
		v := l.f.Nodes[p.Node]
		if v == nil || p.RunState != pod.Running && !l.f.ordered(p.Role) {
			continue
		}
		next := p.Placement
		lost := l.f.machineLost(p.Node)
		if l.f.ordered(p.Role) {
			lost = l.f.silent(p.Node) // if the agent lives again, the wait for the pod's index begins anew
		}
		unmanaged := !v.Alive && !lost
		changed := next.DeadIndex != v.FreeIndex
		if changed {
			next.LostSince, next.UnmanagedSince, next.DeadIndex = nil, nil, v.FreeIndex
		}
		changed = since(l.f, &next.LostSince, lost) || changed
		changed = since(l.f, &next.UnmanagedSince, unmanaged) || changed
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
		mark := p.change(Mark, &next, reason)
		if !v.Alive {
			mark.needsDead(l.f.death(p.Node))
		}
		if l.toReplace(p, &next) {
			l.placeElsewhere(p.Identity)
			// If no node is found, mark is written alone.
			l.plan.LossRecords = append(l.plan.LossRecords, mark)
			p.LostSince, p.UnmanagedSince, p.DeadIndex = next.LostSince, next.UnmanagedSince, next.DeadIndex
			continue
		}
		l.add(mark)
	}
}

func (l losses) recordGhosts() {
	for p := range l.f.all() {
		if len(p.Placement.Ghosts) == 0 {
			continue
		}
		next, changed := p.Placement, false
		next.Ghosts = slices.Clone(next.Ghosts)
		ch := p.change(Mark, &next, "the machine of a former copy is lost, or is back")
		for i := range next.Ghosts {
			g := &next.Ghosts[i]
			if l.f.Nodes[g.Node] == nil || !noteMachineLost(l.f, g) {
				continue
			}
			changed = true
			if g.MachineLost {
				ch.needsDead(l.f.death(g.Node))
			}
		}
		switch {
		case !changed:
		case !l.changed[p.Identity]:
			l.add(ch)
		default:
			l.recordWithoutMove(ch)
		}
	}
}

// recordWithoutMove keeps a change of the former copies' fields in case no node is found for a pod of Adds. A move
// writes these fields itself.
func (l losses) recordWithoutMove(ch Change) {
	if !slices.Contains(l.plan.Adds, ch.Identity) {
		return
	}
	i := slices.IndexFunc(l.plan.LossRecords, func(m Change) bool { return m.Identity == ch.Identity })
	if i < 0 {
		l.plan.LossRecords = append(l.plan.LossRecords, ch)
		return
	}
	m := &l.plan.LossRecords[i]
	m.Placement.Ghosts = ch.Placement.Ghosts
	for _, dead := range ch.NeedsDead {
		m.needsDead(dead)
	}
}

// noteMachineLost sets whether a former copy's machine is lost, and reports whether that is new. The node must have a
// record.
func noteMachineLost(f *Facts, g *pod.Ghost) (isNew bool) {
	gone, death := f.machineLost(g.Node), uint64(0)
	if gone {
		death = f.death(g.Node).Index
	}
	isNew = g.MachineLost != gone || g.DeadIndex != death
	g.MachineLost, g.DeadIndex = gone, death
	return isNew
}

// since sets the time to now if holds, keeping one that is set, and else clears it. It reports whether it changed the
// time.
func since(f *Facts, mark **time.Time, holds bool) bool {
	if holds == (*mark != nil) {
		return false
	}
	*mark = nil
	if holds {
		now := f.Now
		*mark = &now
	}
	return true
}

// dueForReplacement reports whether the pod's node is lost for as long as its controller waits. Before that, it asks
// for a look at that time.
func (l losses) dueForReplacement(p *pod.Placement) bool {
	if l.f.Hold != "" || l.f.ManifestOf(l.f.digestFor(p)) == nil {
		return false
	}
	if !l.f.RC.ReplacesLost() || l.f.RC.Disabled || l.f.RC.DeletedAt != nil {
		return false
	}
	due := func(since *time.Time, after time.Duration) bool {
		if since == nil {
			return false
		}
		left := after - l.f.Now.Sub(*since)
		if left > 0 {
			l.requeueAfter(left)
		}
		return left <= 0
	}
	return due(p.LostSince, graceOf(l.f, lost)) || due(p.UnmanagedSince, graceOf(l.f, unmanaged))
}

// toReplace reports whether a pod is placed elsewhere now because its next placement has its node as lost. If so, it
// takes a slot. A pod that can return to a former copy is not placed elsewhere.
func (l losses) toReplace(p *Pod, next *pod.Placement) bool {
	if l.f.ordered(p.Role) || l.f.finished(p) || l.surplus(p.Role) || !l.dueForReplacement(next) || l.triedEnough(p) {
		return false
	}
	if _, back, _ := l.moveOf(p); back != nil {
		return false
	}
	return l.takeSlot(p)
}

// replaceLost asks for another node for each pod whose node is lost for long enough. The old copy's intent is `running`
// until the new copy is available.
func (l losses) replaceLost() {
	for p := range l.openRunning() {
		switch {
		case l.f.aliveOn(p.Node), l.f.finished(p):
		case l.f.ordered(p.Role):
			l.stopLost(p)
		case l.toReplace(p, &p.Placement):
			l.placeElsewhere(p.Identity)
		}
	}
}

// stopFormerCopies stops the former copies that are meant to run, on the nodes that from accepts.
func (m moves) stopFormerCopies(p *Pod, from func(nodeName string) bool, reason string, on stopCondition) {
	next := p.Placement
	next.Ghosts = slices.Clone(next.Ghosts)
	ch := p.change(StopDuplicate, &next, reason)
	ch.NeedsBreaker, ch.NeedsMinimum = true, on == keepingMinimum
	for i := range next.Ghosts {
		g := &next.Ghosts[i]
		if g.Revision != 0 || !from(g.Node) {
			continue
		}
		if !m.mayStop() {
			return
		}
		g.Revision = p.nextRevision(m.f.Now)
		ch.setIntent(g.Node, next.GhostIntent(*g))
	}
	if len(ch.Intents) > 0 {
		m.add(ch)
	}
}

// returnTo gives a pod back to the node of a former copy that runs, and stops the present copy. avoid is the
// placement's next Avoid.
func (m moves) returnTo(p *Pod, g pod.Ghost, avoid []pod.Avoided, reason string, on stopCondition) {
	if !m.mayStop() {
		return
	}
	next := placementBackOn(m.f, p, p.Placement, g)
	next.Avoid = avoid
	left := pod.Ghost{Node: p.Node, Revision: p.nextRevision(m.f.Now), Since: m.f.Now, Ports: p.Ports}
	next.Ghosts = append(next.Ghosts, left)
	ch := p.change(Return, &next, reason)
	ch.NeedsBreaker, ch.NeedsMinimum = true, on == keepingMinimum
	ch.setIntent(g.Node, next.Intent())
	ch.setIntent(p.Node, next.GhostIntent(left))
	if next.LostSince != nil {
		ch.needsDead(m.f.death(g.Node)) // the placement has the node as lost
	}
	m.add(ch)
}

// placementBackOn returns the next placement of a pod that is given back to a former node. It keeps the manifest of the
// copy there, as far as it is known, because another manifest would restart the copy.
func placementBackOn(f *Facts, p *Pod, next pod.Placement, g pod.Ghost) pod.Placement {
	next.Ghosts = without(next.Ghosts, g.Node)
	next.Node, next.Ports, next.Switching = g.Node, p.PortsOf(g), false
	if in := p.Intents[g.Node]; in != nil {
		next.Digest = in.Digest
	}
	if r := p.Ghosts[g.Node]; r != nil {
		next.Digest = cmp.Or(r.Digest, next.Digest)
		if r.Revision > p.Revision {
			next.AdoptedAtGeneration = f.RC.Generation // the store went back in time (R2)
		}
	}
	next.Revision, next.ChangedAt = p.nextRevision(f.Now), f.Now
	next.LostSince, next.UnmanagedSince, next.DeadIndex = nil, nil, 0
	switch v := f.Nodes[g.Node]; {
	case f.machineLost(g.Node):
		next.LostSince, next.DeadIndex = lostSince(f, g), v.FreeIndex
	case v != nil && !v.Alive:
		next.UnmanagedSince, next.DeadIndex = lostSince(f, g), v.FreeIndex
	}
	return next
}

// lostSince returns when the node of a former copy was lost, or lost its preparer, as far as placements show it (P7).
// Another pod on that node may have the time. If the pod was moved because of the loss, the loss was before the move by
// as long as the controller waits.
func lostSince(f *Facts, g pod.Ghost) *time.Time {
	since, how := f.Now, unmanaged
	if f.machineLost(g.Node) {
		how = lost
	}
	if g.LeftBecauseLost {
		since = g.Since.Add(-graceOf(f, how))
	}
	for p := range f.running() {
		mark := p.UnmanagedSince
		if how == lost {
			mark = p.LostSince
		}
		if p.Node == g.Node && f.sinceDeath(&p.Placement) && mark != nil && mark.Before(since) {
			since = *mark
		}
	}
	return &since
}

type loss int

const (
	unmanaged loss = iota // it has no preparer
	lost                  // its machine is lost
)

func graceOf(f *Facts, how loss) time.Duration {
	if how == lost {
		return f.RC.NodeLoss.After.Or(rc.DefaultNodeLossAfter)
	}
	return f.RC.NodeLoss.UnmanagedAfter.Or(rc.DefaultUnmanagedAfter)
}

// moveChange gives an existing identity a new node (R7).
func moveChange(f *Facts, p *Pod, nodeName string) Change {
	next := p.Placement
	digest := f.digestFor(&p.Placement)
	m := f.ManifestOf(digest)
	lost := !f.aliveOn(p.Node)
	ghost := pod.Ghost{Node: p.Node, LeftBecauseLost: lost, Since: f.Now, Ports: p.Ports}
	if !lost && slices.ContainsFunc(p.Placement.Ghosts, func(g pod.Ghost) bool { return g.Revision == 0 }) {
		next.Avoid = avoidWith(f, p) // its last move was stuck on this node
	}
	next.Ghosts = without(next.Ghosts, nodeName)
	next.Ghosts = append(next.Ghosts, ghost)
	next.Node, next.Digest = nodeName, digest
	next.OwnLabels = nil // an operator gave them to the copy on the former node
	applyManifest(&next, &f.RC, m)
	next.Revision, next.ChangedAt, next.AdoptedAtGeneration = p.nextRevision(f.Now), f.Now, 0
	next.LostSince, next.UnmanagedSince, next.DeadIndex, next.Switching = nil, nil, 0, false
	reason := p.Node + " may not keep it"
	if lost {
		reason = p.Node + " is lost"
	}
	ch := p.placeChange(&next, m, reason)
	if lost && f.Nodes[p.Node] != nil {
		ch.needsDead(f.death(p.Node))
	}
	for i := range next.Ghosts {
		if g := &next.Ghosts[i]; f.Nodes[g.Node] != nil && noteMachineLost(f, g) && g.MachineLost {
			ch.needsDead(f.death(g.Node))
		}
	}
	return ch
}
