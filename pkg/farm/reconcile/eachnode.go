package reconcile

import (
	"fmt"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
)

// eachNode is what follows from the nodes for a controller that has a pod on each (ADR 24).
type eachNode struct {
	nodes   []string                // that ask for a pod and have no copy of one, by name
	leaving map[pod.Identity]string // pods that must go, with the reason
	count   int                     // nodes that ask for a pod
	lost    int                     // of these, those on machines that are lost
	matches bool                    // the selector matches a node
	placed  int                     // pods that are meant to run, and those of slipped that stop
	slipped int                     // pods on nodes that it does not match any more, those that stop included
	blocked []string                // nodes that ask for a pod and have only such as must go, by name
	freeing int                     // nodes that ask for a pod, and where the last copy stops
}

// countNodes counts the nodes that ask for a pod, and makes them the count of the record. The pods are in order.
func (s *Snapshot) countNodes() {
	if s.RC.EachNode() {
		s.each = eachNodeOf(s)
		s.RC = s.RC.CountedBy(s.each.count)
		s.RC.MaxPerNode, s.rule = 1, nil
	}
}

func eachNodeOf(s *Snapshot) *eachNode {
	e := &eachNode{leaving: map[pod.Identity]string{}}
	served, copies := map[string]bool{}, map[string]bool{} // nodes with the pod that stays there, and with whatever copy
	running := map[string]bool{}                           // nodes with a pod that is meant to run
	for p := range s.all() {
		copies[p.Node] = true
		running[p.Node] = running[p.Node] || p.RunState == pod.Running
		for _, g := range p.Placement.Ghosts {
			copies[g.Node] = true
		}
		v := s.Nodes[p.Node]
		slipped := v != nil && !s.matches(v)
		if slipped {
			e.slipped++
		}
		if slipped || p.RunState == pod.Running {
			e.placed++
		}
		switch {
		case p.RunState != pod.Running:
		case slipped:
			e.leaving[p.Identity] = p.Node + " does not match the selector"
		case v != nil && v.MustLeave() && !s.rests(p):
			e.leaving[p.Identity] = p.Node + " is drained"
		case p.Role != rc.DefaultRole:
			e.leaving[p.Identity] = "no role " + p.Role + " desired"
		case served[p.Node]:
			e.leaving[p.Identity] = p.Node + " has another pod of the controller"
		default:
			served[p.Node] = true
			if s.machineLost(p.Node) {
				e.lost++
			}
		}
	}
	for _, o := range s.Orphans {
		copies[o.Node] = true
	}
	for _, name := range slices.Sorted(maps.Keys(s.Nodes)) {
		if s.matches(s.Nodes[name]) {
			e.matches = true
		}
		if !served[name] && s.eligible(name) {
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

// What is more than a slip of a selector or a label may take of a controller's pods at once: as of the mass-stop breaker, which counts the pods
// of all controllers of a farm.
const slipLeast = 10

// maySlip returns why pods stay on nodes that the selector does not match any more, "" where they may go (P4). Pods that stop already count,
// or labels that are lost one after the other would take all pods in small portions.
func (s *Snapshot) maySlip() string {
	e := s.each
	switch {
	case AllowsMassStop(&s.RC) && !s.massStopUsed():
		return ""
	case !e.matches:
		return "no node matches; if that is right, change the controller with --allow-mass-stop, or drain the nodes"
	case e.slipped >= slipLeast && 2*e.slipped > e.placed:
		return fmt.Sprintf("%d nodes of %d with its pods match no more; if that is right, change the controller with --allow-mass-stop", e.slipped, e.placed)
	}
	return ""
}

// massStopUsed reports whether what the last change of the controller allows is done with: it has been as the change asks for, so that what slips
// later slips by itself. A farm of a former version says in a status no more than that the controller is converged.
func (s *Snapshot) massStopUsed() bool {
	was, generation := s.Previous, s.RC.Generation
	return s.each != nil && was != nil && (was.MassStopUsed == generation || was.ObservedGeneration == generation && was.Is(rc.Converged))
}

// WantedNodes returns the nodes that pods are to be placed on, by name, where the controller has one on each node; ok is false for others. It
// is known once the plan is computed.
func (s *Snapshot) WantedNodes() (names []string, ok bool) {
	if s.each == nil {
		return nil, false
	}
	return s.each.nodes, true
}

// Follows returns the selector of the nodes of which each has a pod of the controller; nil: of another controller, or it cannot be read.
func (s *Snapshot) Follows() labels.Selector {
	if rule, err := s.Rule(); s.RC.EachNode() && err == nil {
		return rule.Selector
	}
	return nil
}

// follow stops pods on nodes that do not ask for one any more, and asks for one on each node that does.
func (c *scaling) follow(spare *int) {
	for _, p := range c.leavers() {
		if c.changed[p.Identity] || kept(c.s, p) != "" {
			continue
		}
		c.remove([]*Pod{p}, 1, spare, c.s.each.leaving[p.Identity])
		if !c.changed[p.Identity] && c.s.Hold == "" && c.s.Breaker == "" {
			c.block(fmt.Sprintf("%s.%d must leave %s, but a minimum of %d available replicas leaves no room", p.Role, p.Identity.Index, p.Node, c.limits.least))
		}
	}
	wanted := setOfNodes(c.s.each.nodes)
	for i := range c.plan.Changes {
		if next := c.plan.Changes[i].Placement; next != nil {
			delete(wanted, next.Node) // adopted in this very plan
		}
	}
	c.s.each.nodes = slices.Sorted(maps.Keys(wanted))
	n := min(len(wanted), c.mayCome())
	c.later = len(wanted) - n
	if c.mayAdd() {
		c.place(rc.DefaultRole, nil, n, &n)
	}
}

func setOfNodes(names []string) map[string]bool {
	set := make(map[string]bool, len(names))
	for _, name := range names {
		set[name] = true
	}
	return set
}

// leastOfItsOwn returns how many available pods the controller itself must keep. Where it has one on each node, machines that are lost ask for
// none unless a document says so: in a large fleet some are at any time.
func (s *Snapshot) leastOfItsOwn() int {
	if s.each != nil && s.RC.MinAvailable == nil {
		return max(0, s.each.count-s.each.lost-1)
	}
	return s.RC.MinimumAvailable()
}
