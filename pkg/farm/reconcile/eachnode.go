package reconcile

import (
	"fmt"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
)

// eachNode is, for a controller with a pod on each matching node, which nodes need a pod and which pods must leave (ADR
// 24).
type eachNode struct {
	nodes     []string                // nodes that need a pod and have no copy, by name
	leaving   map[pod.Identity]string // pods that must leave, with the reason
	count     int                     // nodes that need a pod
	lost      int                     // of count: nodes whose machines are lost
	matches   bool                    // the selector matches a node
	placed    int                     // pods that are meant to run, and stopping pods on unmatched nodes
	unmatched int                     // pods on nodes that the selector does not match any more, also pods that stop
	blocked   []string                // nodes that need a pod and have only pods that must leave, by name
	freeing   int                     // nodes that need a pod and on which the last copy stops
}

func eachNodeOf(f *Facts) *eachNode {
	e := &eachNode{leaving: map[pod.Identity]string{}}
	// served: the nodes whose pod is kept, or that need one. copies: those with any copy.
	served, copies := map[string]bool{}, map[string]bool{}
	running := map[string]bool{} // nodes with a pod that is meant to run
	for p := range f.all() {
		copies[p.Node] = true
		running[p.Node] = running[p.Node] || p.RunState == pod.Running
		for _, g := range p.Placement.Ghosts {
			copies[g.Node] = true
		}
		v := f.Nodes[p.Node]
		slipped := v != nil && !f.matches(v)
		if slipped {
			e.unmatched++
		}
		if slipped || p.RunState == pod.Running {
			e.placed++
		}
		switch {
		case p.RunState != pod.Running:
		case slipped:
			e.leaving[p.Identity] = p.Node + " does not match the selector"
		case v != nil && v.MustLeave() && !f.finished(p):
			e.leaving[p.Identity] = p.Node + " is drained"
		case p.Role != rc.DefaultRole:
			e.leaving[p.Identity] = "no role " + p.Role + " desired"
		case served[p.Node]:
			e.leaving[p.Identity] = p.Node + " has another pod of the controller"
		default:
			served[p.Node] = true
			if f.machineLost(p.Node) {
				e.lost++
			}
		}
	}
	for _, o := range f.Orphans {
		copies[o.Node] = true
	}
	for _, name := range slices.Sorted(maps.Keys(f.Nodes)) {
		if f.matches(f.Nodes[name]) {
			e.matches = true
		}
		if !served[name] && f.eligible(name) {
			served[name] = true
			switch {
			case !copies[name]:
				e.nodes = append(e.nodes, name)
			case running[name]:
				e.blocked = append(e.blocked, name)
			default:
				e.freeing++
			}
		}
	}
	e.count = len(served)
	return e
}

// minUnmatched guards against a mistake in a selector or a label. At the same time, either fewer than minUnmatched pods
// may leave their nodes, or at most half of the pods.
const minUnmatched = 10

// whyUnmatchedStay returns why pods are kept on nodes that the selector does not match any more, "" if they may stop
// (P4). Pods that are stopping are in the count. Otherwise nodes that lost their labels one by one would stop all pods.
func (f *Facts) whyUnmatchedStay() string {
	e := f.each
	switch {
	case AllowsMassStop(&f.RC) && !massStopUsed(f):
		return ""
	case !e.matches:
		return "no node matches; if that is right, change the controller with --allow-mass-stop, or drain the nodes"
	case e.unmatched >= minUnmatched && 2*e.unmatched > e.placed:
		return fmt.Sprintf("%d nodes of %d with its pods match no more; "+
			"if that is right, change the controller with --allow-mass-stop", e.unmatched, e.placed)
	}
	return ""
}

// massStopUsed reports whether the controller has once reached the state that its last change asks for, so that
// change's permission is used up. A status of a farm before MassStopUsed shows only whether the controller has
// converged.
func massStopUsed(f *Facts) bool {
	was, generation := f.Previous, f.RC.Generation
	return f.each != nil && was != nil &&
		(was.MassStopUsed == generation || was.ObservedGeneration == generation && was.Is(rc.Converged))
}

// EachNodeSelector returns the selector of a controller with a pod on each matching node; nil for other controllers,
// and if the selector cannot be read.
func (f *Facts) EachNodeSelector() labels.Selector {
	if f.each == nil {
		return nil
	}
	return f.rule.Selector
}

// WantedNodes returns the nodes for the plan's adds, by name. ok is false unless the controller has a pod on each
// matching node.
func (p *Plan) WantedNodes() (names []string, ok bool) { return p.nodes, p.nodes != nil }

func (s *scaling) scaleEachNode(spare *int) {
	for _, p := range s.leavers() {
		if s.changed[p.Identity] || whyNotMoved(s.f, p) != "" {
			continue
		}
		s.remove([]*Pod{p}, 1, spare, s.f.each.leaving[p.Identity])
		if !s.changed[p.Identity] && s.f.Hold == "" && s.f.Breaker == "" {
			s.block(fmt.Sprintf("%s must leave %s, but a minimum of %d available replicas leaves no spare pod",
				name(p.Identity), p.Node, s.limits.minimum))
		}
	}
	wanted := setOfNodes(s.f.each.nodes)
	for i := range s.plan.Changes {
		if next := s.plan.Changes[i].Placement; next != nil {
			delete(wanted, next.Node) // this plan has adopted a pod there
		}
	}
	s.plan.nodes = append([]string{}, slices.Sorted(maps.Keys(wanted))...)
	n := min(len(wanted), s.addsInStage())
	s.later = len(wanted) - n
	if s.mayAdd() {
		s.place(rc.DefaultRole, nil, n, &n)
	}
}

func setOfNodes(names []string) map[string]bool {
	set := make(map[string]bool, len(names))
	for _, name := range names {
		set[name] = true
	}
	return set
}

// ownMinimum returns how many available pods the controller itself must keep. With a pod on each node, lost machines
// lower the minimum unless min_available is set, because in a large cluster some machines are always lost.
func ownMinimum(f *Facts) int {
	if f.each != nil && f.RC.MinAvailable == nil {
		return max(0, f.each.count-f.each.lost-1)
	}
	return f.RC.MinimumAvailable()
}
