package reconcile

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/rcfarm/rcfarm/pkg/pod"
)

type scaling struct {
	*budget
	// newest is the number of new replicas of this plan with the present manifest that the limit of an upgrade in place
	// counts.
	newest    int
	stopsLeft int // surplus pods that the stage lets stop; see stage.go
}

// scale brings the number of replicas of each role to the desired count.
func (s *scaling) scale() {
	inUse, spare := s.adoptedCopies(), s.spare()
	for p := range s.f.all() {
		// copies leaves out most stops on nodes without a preparer, because a stop that hangs must not delay new pods.
		inUse += copies(s.f, p)
	}
	adopted := map[string]int{} // in this plan, by role
	for i := range s.plan.Changes {
		ch := &s.plan.Changes[i]
		if ch.Placement == nil || ch.Placement.RunState != pod.Running {
			continue
		}
		if was := s.f.find(ch.Identity); was == nil || was.RunState != pod.Running {
			adopted[ch.Identity.Role]++
		}
	}
	s.stopsLeft = s.f.stopsInStage()
	if s.f.each != nil {
		s.scaleEachNode(&spare)
		return
	}
	slots := s.maxCopies() - inUse - s.replaced
	known := map[string]bool{}
	for _, g := range s.f.RC.ReplicaGroups {
		known[g.Role] = true
		if g.Ordered {
			s.scaleOrdered(g.Role, *g.Count, &spare, &slots)
			continue
		}
		var running []*Pod
		for p := range s.f.running() {
			if p.Role == g.Role {
				running = append(running, p)
			}
		}
		// Without this, other pods would stop in place of the pods that are kept as adopted.
		removable := slices.DeleteFunc(slices.Clone(running), s.f.keptAsAdopted)
		s.removeInStage(removable, len(removable)-*g.Count, &spare,
			fmt.Sprintf("%d replicas of role %s desired", *g.Count, g.Role))
		again, leaving := s.secondNodesOf(g.Role)
		lacking := max(0, *g.Count-len(running)-adopted[g.Role]-leaving)
		wanted := min(lacking, s.addsInStage())
		s.later += lacking - wanted
		s.forgetVacant(again[min(wanted, len(again)):])
		s.place(g.Role, again[:min(wanted, len(again))], s.allowed(wanted, slots), &slots)
	}
	for p := range s.open() {
		if !known[p.Role] && s.f.Vacant(p) {
			s.forgetVacant([]*Pod{p})
		}
	}
	for p := range s.f.running() {
		if !known[p.Role] && !s.f.keptAsAdopted(p) {
			s.removeInStage([]*Pod{p}, 1, &spare, "no role "+p.Role+" desired")
		}
	}
}

// remove stops pods until the plan stops n of them, including pods that it stops already. Pods on ineligible nodes stop
// first, then outdated, unavailable, newest, and highest-index pods. Available pods stop only if the minimum allows it.
func (s *scaling) remove(pods []*Pod, n int, spare *int, reason string) {
	for _, p := range pods {
		if s.stopped[p.Identity] {
			n--
		}
	}
	if n <= 0 {
		return
	}
	for _, r := range removalOrder(s.f, pods) {
		if n == 0 {
			return
		}
		p := r.Pod
		if s.stopped[p.Identity] {
			continue
		}
		if s.changed[p.Identity] || r.forMinimum && *spare <= 0 {
			if r.forMinimum && s.f.hasCompanions() {
				s.awaitService(fmt.Sprintf("%s is not stopped: of all revisions of %s %d pods must stay available",
					name(p.Identity), s.f.RC.Service.Name, s.limits.minimum))
			}
			continue
		}
		if r.forMinimum {
			*spare--
		}
		s.stop(p, reason, keepingMinimum)
		n--
	}
}

type removable struct {
	*Pod
	eligible, available, forMinimum bool
	outdated                        bool // the mode changes in stages, and the pod does not have the new manifest yet
}

func removalOrder(f *Facts, pods []*Pod) []removable {
	order := make([]removable, len(pods))
	for i, p := range pods {
		order[i] = removable{
			Pod: p, eligible: f.eligible(p.Node), available: f.available(p), forMinimum: f.availableForMinimum(p),
			outdated: f.RC.InStages() && !f.current(p),
		}
	}
	slices.SortFunc(order, func(a, b removable) int {
		return cmp.Or(
			boolFirst(!a.eligible, !b.eligible),
			boolFirst(a.outdated, b.outdated),
			boolFirst(!a.available, !b.available),
			b.ChangedAt.Compare(a.ChangedAt),
			cmp.Compare(b.Identity.Index, a.Identity.Index),
		)
	})
	return order
}

func boolFirst(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	default:
		return 1
	}
}

// place asks for n identities of a role: first pods that are placed again, then the lowest free indices. An index is
// free when the stop of its former pod is confirmed.
func (s *scaling) place(role string, again []*Pod, n int, slots *int) {
	if n <= 0 || s.f.ManifestOf(s.newDigest(role)) == nil {
		return
	}
	if s.f.Hold != "" {
		s.waiting = true
		return
	}
	for _, p := range again[:min(n, len(again))] {
		n--
		if s.f.ManifestOf(p.Digest) == nil {
			continue // the pod waits for its manifest
		}
		s.placeElsewhere(p.Identity)
		*slots--
	}
	used := map[int]bool{}
	for p := range s.f.all() {
		if p.Role == role {
			used[p.Identity.Index] = true
		}
	}
	// Pods that this plan adopts take their indices too.
	for id := range s.changed {
		if id.Role == role {
			used[id.Index] = true
		}
	}
	for index := 0; n > 0; index++ {
		if used[index] {
			continue
		}
		if !s.placeOne(pod.Identity{RCID: s.f.RC.ID, Role: role, Index: index}, slots) {
			return
		}
		n--
	}
}

// placeOne asks for a new identity, unless its manifest cannot be read.
func (s *scaling) placeOne(id pod.Identity, slots *int) bool {
	digest := s.newDigest(id.Role)
	if s.f.ManifestOf(digest) == nil {
		return false
	}
	if digest == s.f.RC.ManifestOf(id.Role) && s.f.RC.InPlace != nil && s.f.RC.InPlace.Counts(id.Role) {
		s.newest++
	}
	s.plan.digests[id] = digest
	s.plan.Adds = append(s.plan.Adds, id)
	*slots--
	return true
}

func (s *Snapshot) standsBy() bool { return s.RC.Service != nil && s.RC.Service.Standby }

type naming struct{ *budget }

// switchNames gives pods their service's name, or takes it away if the record has `standby`. This restarts no process.
// For the minimum, a pod that loses the name is like a pod that stops (P6).
func (n naming) switchNames() {
	if n.f.Hold != "" {
		return
	}
	leaves := n.f.standsBy()
	spare := n.spare()
	for p := range n.openRunning() {
		if p.Placement.Standby == leaves || n.f.keptAsAdopted(p) || n.startsBeside(p) {
			continue
		}
		if n.f.availableForMinimum(p) {
			if spare <= 0 {
				n.awaitService(fmt.Sprintf("%s stays in the service's name: %d pods in it must stay available",
					name(p.Identity), n.limits.minimum))
				continue
			}
			spare--
		}
		next := p.Placement
		next.Standby, next.Revision, next.ChangedAt = leaves, p.nextRevision(n.f.Now), n.f.Now
		reason := "it takes its service's name"
		if leaves {
			reason = "it leaves its service's name"
		}
		ch := p.change(Switch, &next, reason)
		ch.NeedsSchema, ch.NeedsMinimum = true, leaves
		ch.setIntent(p.Node, next.Intent())
		n.add(ch)
	}
}
