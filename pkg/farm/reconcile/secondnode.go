package reconcile

import (
	"slices"
	"sync"
	"time"

	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
)

// secondNodes gives a pod another node, once, if it never became available on its first (docs/design/leaving.md).
//
// First the pod stops; its placement keeps the identity and the node's name. When the stop is confirmed, it is placed
// again like a new replica. It returns to the first node only if no other node takes it.
type secondNodes struct{ *budget }

// evidence is what reports about the controller's pods prove about manifests and nodes.
type evidence struct {
	f      *Facts
	serves map[string]bool // digests at which a pod is available
	tried  map[string]int  // by digest: pods that have had, or wait for, their second node
	// startingFor has, by digest, in how much time all pods have shown whether the manifest works.
	startingFor map[string]time.Duration
	// others returns at most two eligible nodes with fewer pods of the controller than max_per_node.
	others func() []string
}

func evidenceOf(f *Facts) *evidence {
	e := &evidence{f: f, serves: map[string]bool{}, tried: map[string]int{}, startingFor: map[string]time.Duration{}}
	for p := range f.all() {
		if f.availableHere(p) {
			e.serves[p.Digest] = true
		}
		if p.RunState == pod.Running && f.aliveOn(p.Node) && !f.available(p) && !hasFailed(p) && !e.failedToStart(p) {
			e.startingFor[p.Digest] = max(e.startingFor[p.Digest], deadline(f, p)-f.Now.Sub(p.ChangedAt))
		}
		if p.Placement.Tried() != nil {
			e.tried[p.Digest]++
		}
	}
	e.others = sync.OnceValue(func() (names []string) {
		perNode := map[string]int{}
		for p := range f.all() {
			perNode[p.Node]++
		}
		for name := range f.Nodes {
			if len(names) < 2 && (f.RC.MaxPerNode == 0 || perNode[name] < f.RC.MaxPerNode) && f.eligible(name) {
				names = append(names, name)
			}
		}
		return names
	})
	return e
}

func (e *evidence) hasOther(than string) bool {
	return slices.ContainsFunc(e.others(), func(name string) bool { return name != than })
}

// failedToStart reports whether a pod that should run was never available on its node, and is hopeless or overdue.
func (e *evidence) failedToStart(p *Pod) bool {
	return e.neverAvailable(p) && (p.Reality.Hopeless || e.overdue(p))
}

func (e *evidence) overdue(p *Pod) bool { return e.f.Now.Sub(p.ChangedAt) >= deadline(e.f, p) }

// neverAvailable reports whether a living node reports that a pod, with its present placement, was not available there
// yet.
func (e *evidence) neverAvailable(p *Pod) bool {
	r := p.Reality
	return p.RunState == pod.Running && e.f.aliveOn(p.Node) && r != nil && r.NeverAvailable && !r.Available &&
		r.Digest == p.Digest && r.Revision >= p.Revision
}

func (e *evidence) mayTryTwice(p *Pod) bool {
	m := e.f.ManifestOf(p.Digest)
	return m != nil && !m.RunsOnce() && e.f.mayComeBack(p)
}

// mayComeBack reports whether pods of this kind may be placed again after they left for a second node. The manifest
// does not matter: while it cannot be read, a pod that has left waits, and is not forgotten.
func (f *Facts) mayComeBack(p *Pod) bool {
	switch {
	case f.each != nil, f.ordered(p.Role), f.RC.Strategy == rc.Static, f.RC.InPlace != nil:
		return false
	case f.RC.Disabled, f.RC.DeletedAt != nil:
		return false
	default: // if the pod gets another manifest, it is tried again in any case
		return f.digestFor(&p.Placement) == p.Digest && len(p.Placement.Ghosts) == 0
	}
}

// triesElsewhere reports whether a pod that fails to start gets a second node, now or later. If no pod of its manifest
// is available after some second nodes, the cause is the manifest, not the node.
func (e *evidence) triesElsewhere(p *Pod) bool {
	if !e.mayTryTwice(p) || e.f.keptAsAdopted(p) || p.Placement.Tried() != nil {
		return false
	}
	return (e.serves[p.Digest] || e.tried[p.Digest] < rc.MaxTries) && e.hasOther(p.Node)
}

// WantsSecondNode reports whether a pod leaves for a second node, or would if there were another node.
func (f *Facts) WantsSecondNode() bool {
	for p := range f.all() {
		if f.leaves(p) || f.evidence.failedToStart(p) && f.evidence.mayTryTwice(p) && p.Placement.Tried() == nil {
			return true
		}
	}
	return false
}

// secondNodeWait returns how long a pod that fails to start waits until other starting pods of its manifest have shown
// whether the manifest works; zero: not at all.
func (e *evidence) secondNodeWait(p *Pod) time.Duration {
	if !e.mayTryTwice(p) || e.f.keptAsAdopted(p) || p.Placement.Tried() != nil || !e.hasOther(p.Node) {
		return 0
	}
	return e.startingFor[p.Digest]
}

// hopeless reports whether waiting does not help a pod: its node reports so, and it gets no second node.
func (e *evidence) hopeless(p *Pod) bool {
	r := p.Reality
	return r != nil && r.Revision >= p.Revision && r.Hopeless &&
		!(e.failedToStart(p) && (e.triesElsewhere(p) || e.secondNodeWait(p) > 0))
}

// leaves reports whether a pod stops, or has stopped, to be tried on its second node.
func (f *Facts) leaves(p *Pod) bool {
	return p.Leaves() != nil && f.mayComeBack(p)
}

// Vacant reports whether a pod that leaves for its second node has confirmed its stop, and no other copy is known. Its
// placement only keeps the identity until the pod is placed again.
func (f *Facts) Vacant(p *Pod) bool {
	return f.leaves(p) && confirmed(p.Reality, p.Revision) && f.reportIsCurrent(p.Node) && !f.hasOrphan(p)
}

// betweenNodes reports whether a pod has left its first node, and will probably reach its second. Other pods wait for
// the result.
func (e *evidence) betweenNodes(p *Pod) bool {
	switch {
	case !e.f.leaves(p):
		return false
	case e.f.Vacant(p):
		return e.f.ManifestOf(p.Digest) != nil
	default:
		return e.f.aliveOn(p.Node) && !e.late(p)
	}
}

// hasOrphan reports whether another copy of a pod is known. It is adopted or stopped first.
func (s *Snapshot) hasOrphan(p *Pod) bool {
	return slices.ContainsFunc(s.Orphans, func(o Orphan) bool { return o.Identity == p.Identity && o.Node != p.Node })
}

// late reports whether a pod that leaves is stopping for longer than its deadline to become available. Then no pod
// waits for it.
func (e *evidence) late(p *Pod) bool {
	return p.StoppingSince != nil && e.f.Now.Sub(*p.StoppingSince) >= deadline(e.f, p)
}

// begin makes one pod leave the node where it never became available. The others wait until it is placed again, because
// a bad manifest must move only few pods.
func (s secondNodes) begin() {
	var next *Pod
	for p := range s.f.all() {
		switch {
		case s.f.evidence.betweenNodes(p):
			return
		case s.changed[p.Identity] || !s.f.evidence.neverAvailable(p) || !s.f.evidence.triesElsewhere(p):
		case s.f.hasOrphan(p) || s.surplus(p.Role):
		case !s.f.evidence.failedToStart(p):
			s.requeueAfter(deadline(s.f, p) - s.f.Now.Sub(p.ChangedAt))
		case next == nil:
			next = p
		}
	}
	if next == nil {
		return
	}
	as := next.Placement
	as.Avoid = append(stillAvoided(s.f, next), pod.Avoided{
		Node: next.Node, Since: s.f.Now, Generation: s.f.RC.Generation, Digest: next.Digest,
		Reason: field.Cut(describe(next.Reality), maxAvoidedReason),
	})
	s.stopAs(next, as, "it never became available there, and is tried on another node", keepingMinimum)
	for i := range s.plan.Changes { // the pod may have become available before the change is written
		if ch := &s.plan.Changes[i]; ch.Identity == next.Identity && ch.Action == Stop {
			ch.NeedsReports = []string{next.Node}
		}
	}
}

// secondNodesOf returns the pods of a role that may be placed again, and how many others stop for a second node.
func (s *scaling) secondNodesOf(role string) (vacant []*Pod, leaving int) {
	for p := range s.f.all() {
		switch {
		case p.Role != role || !s.f.leaves(p):
		case s.f.Vacant(p) && !s.changed[p.Identity]:
			vacant = append(vacant, p)
		case s.f.aliveOn(p.Node) && !s.f.evidence.late(p):
			leaving++
			if p.StoppingSince != nil {
				s.requeueAfter(deadline(s.f, p) - s.f.Now.Sub(*p.StoppingSince))
			}
		}
	}
	return vacant, leaving
}

func (s *scaling) forgetVacant(pods []*Pod) {
	for _, p := range pods {
		ch := p.change(Remove, nil, "the node confirmed the stop")
		ch.release(p.Node)
		if s.f.stopMayBeStale(p.Reality, p.Revision) {
			ch.NeedsReports = []string{p.Node}
		}
		s.add(ch)
	}
}

// placeAgain places a pod on its second node, and gives back its share of the first.
func placeAgain(f *Facts, p *Pod, nodeName string) Change {
	next, m := p.Placement, f.ManifestOf(p.Digest)
	if nodeName != p.Node {
		next.OwnLabels = nil // an operator gave them to the copy on the former node
	}
	next.Node, next.Standby = nodeName, f.standsBy()
	applyManifest(&next, &f.RC, m)
	next.RunState, next.StoppingSince, next.Switching = pod.Running, nil, false
	next.Revision, next.ChangedAt, next.AdoptedAtGeneration = p.nextRevision(f.Now), f.Now, 0
	next.LostSince, next.UnmanagedSince, next.DeadIndex = nil, nil, 0
	ch := p.placeChange(&next, m, "it never became available on "+p.Node)
	if nodeName != p.Node {
		ch.release(p.Node)
	}
	if f.stopMayBeStale(p.Reality, p.Revision) {
		ch.NeedsReports = []string{p.Node}
	}
	return ch
}

// LeastPreferred returns the nodes that new replicas of a lot get only if no other node takes them: former nodes of
// pods that are placed again, and nodes where pods never became available although pods elsewhere did. If no pod is
// available anywhere, the node may not be the cause.
func (f *Facts) LeastPreferred(lot *Lot) map[string]bool {
	last, well := map[string]bool{}, map[string]bool{}
	serves := f.evidence.serves[lot.Digest]
	for p := range f.all() {
		if p.Digest != lot.Digest {
			continue
		}
		if f.availableHere(p) {
			well[p.Node] = true
		}
		if a := p.Placement.Tried(); a != nil && (f.Vacant(p) || serves && f.Now.Before(f.RC.AvoidedUntil(*a))) {
			last[a.Node] = true
		}
		if serves && f.evidence.failedToStart(p) {
			last[p.Node] = true
		}
	}
	for p := range f.all() { // a node where a vacant pod failed is not good, even if other pods are available there
		if f.Vacant(p) {
			delete(well, p.Node)
		}
	}
	for name := range well {
		delete(last, name)
	}
	return last
}
