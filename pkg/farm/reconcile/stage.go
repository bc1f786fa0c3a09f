package reconcile

import (
	"cmp"
	"math"
	"slices"

	"github.com/rcfarm/rcfarm/pkg/rc"
)

// A change of mode goes in stages (ADR 16). Each stage raises the limit of the upgrade in place: so many pods may be
// where the new mode asks for them, and run the manifest that it asks for. Pods that the new mode asks for nowhere
// stay until others serve, or until the rollout lets them go.

// unasked reports whether the mode that the controller changes to asks for the pod nowhere.
func (s *Snapshot) unasked(p *Pod) bool {
	switch {
	case !s.RC.InStages():
		return false
	case s.each != nil:
		_, leaves := s.each.leaving[p.Identity]
		return leaves
	}
	return p.Role != rc.DefaultRole // the only one of counts that a change of mode goes to in stages
}

// mayGo returns how many pods beyond those that the controller asks for may be stopped now. While its mode changes in
// stages, those stay that the stage keeps, and one for each pod that is asked for and does not serve yet. Pods on nodes
// that are drained are not among them: they go in any case. Of counts, too, where there are more: they are not moved
// then.
func (s *Snapshot) mayGo() int {
	if !s.RC.InStages() {
		return math.MaxInt
	}
	n, asked, drained := 0, 0, 0
	for p := range s.running() {
		if !s.unasked(p) {
			asked++
		}
		switch {
		case s.mustLeave(p):
			drained++
		case s.available(p) || s.unasked(p):
			n++
		}
	}
	switch {
	case !s.foundNoNodes():
		asked = s.RC.Desired()
	case s.each != nil: // on a node that has only pods which leave, one comes in their place
		asked = s.each.count - len(s.each.nodes)
	}
	if s.each != nil {
		drained = 0 // see leavers
	}
	return max(0, n-asked-*s.RC.InPlace.Keep) + drained
}

// foundNoNodes reports whether the pass before found no nodes for new pods of the stage: what is there has to do.
func (s *Snapshot) foundNoNodes() bool {
	return s.Previous != nil && s.Previous.Is(rc.InsufficientNodes)
}

// mustLeave reports whether the pod has to leave its node whatever the stage says.
func (s *Snapshot) mustLeave(p *Pod) bool {
	v := s.Nodes[p.Node]
	return v != nil && v.MustLeave()
}

// mayCome returns how many new pods the stage lets come.
func (c *scaling) mayCome() int {
	if !c.s.RC.InStages() {
		return math.MaxInt
	}
	return max(0, c.s.RC.InPlace.Limit-updated(c.s)-c.newest)
}

// comingInStage returns for how many of the pods that the stage lets change new ones come. Where the pass before found
// no nodes for new pods, those that are there change in their place.
func (c *draft) comingInStage() (n int) {
	if !c.s.RC.InStages() || c.s.foundNoNodes() {
		return 0
	}
	for _, id := range c.plan.Adds {
		if digest, chosen := c.s.chosen[id]; chosen && digest == c.s.RC.ManifestOf(id.Role) {
			n++
		}
	}
	return n
}

// removeInStage is remove for no more pods than the stage lets go.
func (c *scaling) removeInStage(pods []*Pod, n int, spare *int, reason string) {
	before := len(c.stopped)
	c.remove(pods, min(n, c.mayGo), spare, reason)
	c.mayGo -= len(c.stopped) - before
}

// leavers returns the pods of a controller with one on each node that may leave now, in the order in which they do.
// While its mode changes in stages these are, besides those on drained nodes, as many as the stage lets go, and those
// that keep a new pod of the stage from a node.
func (c *scaling) leavers() []*Pod {
	var leaving []*Pod
	for p := range c.s.running() {
		if _, leaves := c.s.each.leaving[p.Identity]; leaves {
			leaving = append(leaving, p)
		}
	}
	if !c.s.RC.InStages() {
		return leaving
	}
	inTheWay, left := c.inTheWay(leaving), c.mayGo
	for _, p := range leaving {
		if inTheWay[p.Node] {
			left--
		}
	}
	var going []*Pod
	for _, r := range removalOrder(c.s, leaving) {
		switch {
		case c.s.mustLeave(r.Pod) || inTheWay[r.Node]:
		case left > 0:
			left--
		default:
			continue
		}
		going = append(going, r.Pod)
	}
	return going
}

// inTheWay returns the nodes whose pods go so that new ones of the stage can come, those with the fewest first. Nodes
// that are free, or will be, come before.
func (c *scaling) inTheWay(leaving []*Pod) map[string]bool {
	each, pods := c.s.each, map[string]int{}
	for _, p := range leaving {
		pods[p.Node]++
	}
	blocked := slices.Clone(each.blocked)
	slices.SortStableFunc(blocked, func(a, b string) int { return cmp.Compare(pods[a], pods[b]) })
	free := each.freeing
	if !c.s.foundNoNodes() {
		free += len(each.nodes)
	}
	n := min(len(blocked), max(0, c.mayCome()-free))
	return setOfNodes(blocked[:n])
}
