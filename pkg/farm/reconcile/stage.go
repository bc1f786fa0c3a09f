package reconcile

import (
	"cmp"
	"math"
	"slices"

	"github.com/rcfarm/rcfarm/pkg/rc"
)

// A change of mode goes in stages (ADR 16). Each raises the limit of the upgrade in place: how many pods may be where
// the new mode wants them, with the new manifest. An unwanted pod is kept until another pod is available, or until the
// rollout lets it stop.

// unwanted reports whether the mode that the controller changes to does not ask for the pod.
func (f *Facts) unwanted(p *Pod) bool {
	switch {
	case !f.RC.InStages():
		return false
	case f.each != nil:
		_, leaves := f.each.leaving[p.Identity]
		return leaves
	}
	return p.Role != rc.DefaultRole // a change to counts in stages has only this role
}

// stopsInStage returns how many surplus pods may be stopped now. While the mode changes in stages, as many are kept as
// the stage keeps, and one more for each desired pod that is not available. Pods on drained nodes may stop in any case,
// because a controller with counts does not move surplus pods off them.
func (f *Facts) stopsInStage() int {
	if !f.RC.InStages() {
		return math.MaxInt
	}
	n, asked, drained := 0, 0, 0
	for p := range f.running() {
		if !f.unwanted(p) {
			asked++
		}
		switch {
		case f.mustLeave(p.Node):
			drained++
		case f.available(p) || f.unwanted(p):
			n++
		}
	}
	switch {
	case !f.foundNoNodes():
		asked = f.RC.Desired()
	case f.each != nil: // free nodes get no pod; a node whose pods all leave gets a pod in their place
		asked = f.each.count - len(f.each.nodes)
	}
	if f.each != nil {
		drained = 0 // see leavers
	}
	return max(0, n-asked-*f.RC.InPlace.Keep) + drained
}

// foundNoNodes reports whether the last pass found no nodes for new pods. Then existing pods are changed instead.
func (s *Snapshot) foundNoNodes() bool {
	return s.Previous != nil && s.Previous.Is(rc.InsufficientNodes)
}

// addsInStage returns how many new pods the stage still allows. Rollouts change the mode in stages only with one role;
// in a record from elsewhere, several roles share the limit.
func (s *scaling) addsInStage() int {
	if !s.f.RC.InStages() {
		return math.MaxInt
	}
	return max(0, s.f.RC.InPlace.Limit-updated(s.f)-s.newest)
}

// replacedByAdds returns how many of the pods that the stage may change are replaced by new pods.
func (d *draft) replacedByAdds() (n int) {
	if !d.f.RC.InStages() || d.f.foundNoNodes() {
		return 0
	}
	for _, id := range d.plan.Adds {
		if digest, chosen := d.plan.digests[id]; chosen && digest == d.f.RC.ManifestOf(id.Role) {
			n++
		}
	}
	return n
}

func (s *scaling) removeInStage(pods []*Pod, n int, spare *int, reason string) {
	before := len(s.stopped)
	s.remove(pods, min(n, s.stopsLeft), spare, reason)
	s.stopsLeft -= len(s.stopped) - before
}

// leavers returns which pods of a controller with a pod on each node may stop now, in order. While the mode changes in
// stages, these are all pods on drained nodes and on nodes that the stage's new pods need, and as many others as the
// stage allows.
func (s *scaling) leavers() []*Pod {
	var leaving []*Pod
	for p := range s.f.running() {
		if _, leaves := s.f.each.leaving[p.Identity]; leaves {
			leaving = append(leaving, p)
		}
	}
	if !s.f.RC.InStages() {
		return leaving
	}
	inTheWay, left := s.inTheWay(leaving), s.stopsLeft
	for _, p := range leaving {
		if inTheWay[p.Node] {
			left--
		}
	}
	var going []*Pod
	for _, r := range removalOrder(s.f, leaving) {
		switch {
		case s.f.mustLeave(r.Node) || inTheWay[r.Node]:
		case left > 0:
			left--
		default:
			continue
		}
		going = append(going, r.Pod)
	}
	return going
}

// inTheWay returns the nodes whose pods must stop before the stage's new pods can be placed there, those with the
// fewest pods first. Nodes that are free, or will be, are used before.
func (s *scaling) inTheWay(leaving []*Pod) map[string]bool {
	each, pods := s.f.each, map[string]int{}
	for _, p := range leaving {
		pods[p.Node]++
	}
	blocked := slices.Clone(each.blocked)
	slices.SortStableFunc(blocked, func(a, b string) int { return cmp.Compare(pods[a], pods[b]) })
	free := each.freeing
	if !s.f.foundNoNodes() {
		free += len(each.nodes)
	}
	n := min(len(blocked), max(0, s.addsInStage()-free))
	return setOfNodes(blocked[:n])
}
