package reconcile

import (
	"fmt"
	"slices"
	"time"

	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
)

// secondNodes gives pods another node that never became available on their first one, once each (ADR 8).
//
// Such a pod stops, its placement remembers the node, and keeps the identity. Once the stop is confirmed the pod is
// placed again like a new replica: where the scheduler says, within the same bounds, and on the same node only where
// no other takes it.
type secondNodes struct{ *room }

// experience is what the controller's pods tell of a manifest, and of nodes.
type experience struct {
	serves map[string]bool          // digests at which a pod is available
	tried  map[string]int           // by digest: pods that have had, or wait for, their second node
	tells  map[string]time.Duration // by digest: how long pods that start may take still, until all of them have told whether it works
	nodes  []string                 // two eligible nodes that take another pod of the controller as far as the pods tell, or as many as there are
	looked bool                     // for nodes
}

// experience returns what the pods tell. It is reckoned once.
func (s *Snapshot) experience() *experience {
	if s.told != nil {
		return s.told
	}
	e := &experience{serves: map[string]bool{}, tried: map[string]int{}, tells: map[string]time.Duration{}}
	for p := range s.all() {
		if s.availableHere(p) {
			e.serves[p.Digest] = true
		}
		if p.RunState == pod.Running && s.aliveOn(p.Node) && !s.available(p) && !hasFailed(p) && !s.unfit(p) {
			e.tells[p.Digest] = max(e.tells[p.Digest], deadline(s, p)-s.Now.Sub(p.ChangedAt))
		}
		if p.Placement.Tried() != nil {
			e.tried[p.Digest]++
		}
	}
	s.told = e
	return e
}

// hasOther reports whether a node besides the given one may take another pod of the controller.
func (s *Snapshot) hasOther(than string) bool {
	e := s.experience()
	if !e.looked {
		e.looked = true
		perNode := map[string]int{}
		for p := range s.all() {
			perNode[p.Node]++
		}
		for name := range s.Nodes {
			if len(e.nodes) < 2 && (s.RC.MaxPerNode == 0 || perNode[name] < s.RC.MaxPerNode) && s.eligible(name) {
				e.nodes = append(e.nodes, name)
			}
		}
	}
	return slices.ContainsFunc(e.nodes, func(name string) bool { return name != than })
}

// unfit reports whether the node says that a pod which it should run was never available there, and the pod is
// hopeless or has had its time.
func (s *Snapshot) unfit(p *Pod) bool {
	return s.neverAvailable(p) && (p.Reality.Hopeless || s.overdue(p))
}

func (s *Snapshot) overdue(p *Pod) bool { return s.Now.Sub(p.ChangedAt) >= deadline(s, p) }

// neverAvailable reports whether a living node says that a pod, as it is placed there, has not been available there
// yet.
func (s *Snapshot) neverAvailable(p *Pod) bool {
	r := p.Reality
	return p.RunState == pod.Running && s.aliveOn(p.Node) && r != nil && r.NeverAvailable && !r.Available && r.Digest == p.Digest && r.Revision >= p.Revision
}

// mayTryTwice reports whether pods like this one may get a second node at all.
func (s *Snapshot) mayTryTwice(p *Pod) bool {
	m := s.ManifestOf(p.Digest)
	return m != nil && !m.RunsOnce() && s.mayComeBack(p)
}

// mayComeBack reports whether pods like this one may be placed again that leave their nodes for a second one. It does
// not depend on the manifest: while that cannot be read a pod that has left waits, and is not forgotten.
func (s *Snapshot) mayComeBack(p *Pod) bool {
	switch {
	case s.each != nil, s.ordered(p.Role), s.RC.Strategy == rc.Static, s.RC.InPlace != nil, s.RC.Disabled, s.RC.DeletedAt != nil:
		return false
	default: // another manifest is another try anyway
		return s.digestFor(&p.Placement) == p.Digest && len(p.Placement.Ghosts) == 0
	}
}

// triesElsewhere reports whether a pod that is unfit where it is gets, or will get, its second node. Where nothing of
// its manifest is available and some pods have had theirs, it is the manifest that does not work.
func (s *Snapshot) triesElsewhere(p *Pod) bool {
	if !s.mayTryTwice(p) || s.stays(p) || p.Placement.Tried() != nil {
		return false
	}
	e := s.experience()
	return (e.serves[p.Digest] || e.tried[p.Digest] < rc.MaxTries) && s.hasOther(p.Node)
}

// WantsSecondNode reports whether a pod leaves its node, or would, if there were another one.
func (s *Snapshot) WantsSecondNode() bool {
	for p := range s.all() {
		if s.leaves(p) || s.unfit(p) && s.mayTryTwice(p) && p.Placement.Tried() == nil {
			return true
		}
	}
	return false
}

// mayYet returns for how long an unfit pod may get its second node still although its turn has not come: pods of its
// manifest are on their way, and tell whether it works at all. Zero: it gets none.
func (s *Snapshot) mayYet(p *Pod) time.Duration {
	if !s.mayTryTwice(p) || s.stays(p) || p.Placement.Tried() != nil || !s.hasOther(p.Node) {
		return 0
	}
	return s.experience().tells[p.Digest]
}

// hopeless reports whether waiting does not help a pod: it fails for good where it is, and gets no second node.
func (s *Snapshot) hopeless(p *Pod) bool {
	r := p.Reality
	return r != nil && r.Revision >= p.Revision && r.Hopeless && !(s.unfit(p) && (s.triesElsewhere(p) || s.mayYet(p) > 0))
}

// leaves reports whether a pod stops, or has stopped, to be tried on its second node.
func (s *Snapshot) leaves(p *Pod) bool {
	return p.Leaves() != nil && s.mayComeBack(p)
}

// Vacant reports whether such a pod has stopped, as its node confirmed, and no other copy is known: it takes no room,
// and its placement keeps the identity until it is placed.
func (s *Snapshot) Vacant(p *Pod) bool {
	return s.leaves(p) && confirmed(p.Reality, p.Revision) && s.saysNow(p.Node) && !s.hasOrphan(p)
}

// onItsWay reports whether a pod is between its nodes and will get there as far as is known: others wait for what it
// tells.
func (s *Snapshot) onItsWay(p *Pod) bool {
	switch {
	case !s.leaves(p):
		return false
	case s.Vacant(p):
		return s.ManifestOf(p.Digest) != nil
	default:
		return s.aliveOn(p.Node) && !s.late(p)
	}
}

// hasOrphan reports whether another copy of a pod is known, which is adopted or stopped first.
func (s *Snapshot) hasOrphan(p *Pod) bool {
	return slices.ContainsFunc(s.Orphans, func(o Orphan) bool { return o.Identity == p.Identity && o.Node != p.Node })
}

// late reports whether a pod that leaves takes longer to stop than pods have to become available: nobody waits for it
// any more.
func (s *Snapshot) late(p *Pod) bool {
	return p.StoppingSince != nil && s.Now.Sub(*p.StoppingSince) >= deadline(s, p)
}

// begin has one pod leave the node where it never became available. Others wait until it is placed again: where they
// all fail because of their manifest, few of them are moved.
func (c secondNodes) begin() {
	var next *Pod
	for p := range c.s.all() {
		switch {
		case c.s.onItsWay(p):
			return
		case c.changed[p.Identity] || !c.s.neverAvailable(p) || !c.s.triesElsewhere(p) || c.s.hasOrphan(p) || c.surplus(p.Role):
		case !c.s.unfit(p):
			c.requeueAfter(deadline(c.s, p) - c.s.Now.Sub(p.ChangedAt))
		case next == nil:
			next = p
		}
	}
	if next == nil {
		return
	}
	as := next.Placement
	as.Avoid = append(avoidedStill(c.s, next), pod.Avoided{
		Node: next.Node, Since: c.s.Now, Generation: c.s.RC.Generation, Digest: next.Digest, Reason: field.Cut(describe(next.Reality), maxAvoidedReason),
	})
	c.stopAs(next, as, "it never became available there, and is tried on another node", true)
	for i := range c.plan.Changes { // by the time it is written the pod may have become available
		if ch := &c.plan.Changes[i]; ch.Identity == next.Identity && ch.Action == Stop {
			ch.NeedsReports = []string{next.Node}
		}
	}
}

// secondNodesOf returns the pods of a role that are placed again, as their stop is confirmed, and how many stop for
// that.
func (c *scaling) secondNodesOf(role string) (vacant []*Pod, leaving int) {
	for p := range c.s.all() {
		switch {
		case p.Role != role || !c.s.leaves(p):
		case c.s.Vacant(p) && !c.changed[p.Identity]:
			vacant = append(vacant, p)
		case c.s.aliveOn(p.Node) && !c.s.late(p):
			leaving++
			if p.StoppingSince != nil {
				c.requeueAfter(deadline(c.s, p) - c.s.Now.Sub(*p.StoppingSince))
			}
		}
	}
	return vacant, leaving
}

// forgetVacant forgets pods that have stopped to be placed again, and are not desired any more.
func (c *scaling) forgetVacant(pods []*Pod) {
	for _, p := range pods {
		ch := Change{
			Action: Remove, Identity: p.Identity, Index: p.Index, Reason: "the node confirmed the stop",
			Intents: []IntentChange{{Node: p.Node}}, Reserve: []ReserveChange{{Node: p.Node}},
		}
		if stopMayBeOld(c.s, p.Reality, p.Revision) {
			ch.NeedsReports = []string{p.Node}
		}
		c.add(ch)
	}
}

// again returns the change that places a pod again which has stopped for that. What it had on the node before is given
// back.
func again(s *Snapshot, p *Pod, nodeName string) Change {
	next, m := p.Placement, s.ManifestOf(p.Digest)
	if nodeName != p.Node {
		next.OwnLabels = nil // they were given to the copy on the former node
	}
	next.Node, next.PodID, next.Ports = nodeName, m.ID, m.PortMap()
	next.Labels, next.Replicas, next.Standby = s.RC.PodLabelSet(m.ID, m.Labels, next.OwnLabels), s.RC.CountOf(p.Role), s.standsBy()
	next.RunState, next.StoppingSince, next.Switching = pod.Running, nil, false
	next.Revision, next.ChangedAt, next.AdoptedAtGeneration = p.nextRevision(s.Now), s.Now, 0
	next.LostSince, next.UnmanagedSince, next.DeadIndex = nil, nil, 0
	in, claim := next.Intent(), NewClaim(s, p.Identity)
	ch := Change{
		Action: Move, Identity: p.Identity, Index: p.Index, Placement: &next, Reason: fmt.Sprintf("it never became available on %s", p.Node), NeedsSchema: true,
		Intents: []IntentChange{{Node: nodeName, Intent: &in}},
		Reserve: []ReserveChange{{Node: nodeName, Claim: &claim, Dynamic: m.DynamicPorts()}},
	}
	if nodeName != p.Node {
		ch.Intents = append(ch.Intents, IntentChange{Node: p.Node})
		ch.Reserve = append(ch.Reserve, ReserveChange{Node: p.Node})
	}
	if stopMayBeOld(s, p.Reality, p.Revision) {
		ch.NeedsReports = []string{p.Node}
	}
	return ch
}

// LastChoice returns the nodes that new replicas get only where no other node takes them, for the pods that room is
// looked for: those where pods of the controller never became available although others do elsewhere, and those that
// pods left which are placed again. Where no pod is available nobody knows whether it is the node.
func (s *Snapshot) LastChoice() map[string]bool {
	digest := s.RC.ManifestDigest
	if s.lot.Digest != "" {
		digest = s.lot.Digest
	}
	last, well := map[string]bool{}, map[string]bool{}
	serves := s.experience().serves[digest]
	for p := range s.all() {
		if p.Digest != digest {
			continue
		}
		if s.availableHere(p) {
			well[p.Node] = true
		}
		if a := p.Placement.Tried(); a != nil && (s.Vacant(p) || serves && s.Now.Before(s.RC.AvoidedUntil(*a))) {
			last[a.Node] = true
		}
		if serves && s.unfit(p) {
			last[p.Node] = true
		}
	}
	for p := range s.all() { // a vacant pod did not work where others do
		if s.Vacant(p) {
			delete(well, p.Node)
		}
	}
	for name := range well {
		delete(last, name)
	}
	return last
}
