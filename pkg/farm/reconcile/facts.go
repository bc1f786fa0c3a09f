package reconcile

import (
	"slices"

	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/scheduler"
)

// Facts is a snapshot and the facts that follow from it.
type Facts struct {
	// The pods are sorted, and no time is in the future. With a pod on each matching node, the count in RC is the
	// number of nodes that need a pod.
	Snapshot
	fleet
	each     *eachNode // nil: the controller has counts
	evidence *evidence
}

// FactsOf does not change the snapshot.
func FactsOf(s *Snapshot) *Facts {
	f := &Facts{Snapshot: *s}
	f.Pods = slices.Clone(s.Pods)
	slices.SortFunc(f.Pods, func(a, b Pod) int { return a.Identity.Compare(b.Identity) })
	for i := range f.Pods {
		f.Pods[i].clampTimes(s.Now)
	}
	if s.RC.EachNode() {
		f.RC.MaxPerNode = 1
	}
	f.fleet = fleet{views: s.Nodes, lost: lostMachines(&f.Snapshot), rule: f.ruleFor(s.Manifest)}
	if s.RC.EachNode() {
		f.each = eachNodeOf(f)
		f.RC.ReplicaGroups = f.RC.CountedBy(f.each.count).ReplicaGroups
	}
	f.evidence = evidenceOf(f)
	return f
}

// ruleFor returns which nodes may take pods with a manifest; m is nil if it is not known. A selector that cannot be
// read selects no node.
func (f *Facts) ruleFor(m *manifest.Manifest) scheduler.Rule {
	rule := scheduler.Rule{Epoch: f.Epoch, MaxPerNode: f.RC.MaxPerNode, Ask: claimOf(nil, pod.Identity{}, nil)}
	rule.Selector, _ = f.RC.Selector()
	if m != nil {
		rule.Ask, rule.Dynamic = claimOf(m, pod.Identity{}, m.PortMap()), m.DynamicPorts()
		rule.Containers = m.HasImage()
	}
	return rule
}

// availableHere reports whether the pod is available on its present node. Then its former copies may stop.
func (f *Facts) availableHere(p *Pod) bool { return p.arrived() && !f.machineLost(p.Node) }

// available reports whether the pod is available on its node or, while it moves, on its former node. On a lost machine
// no pod is available, even if its last report has it as available. On a node without a preparer the last report is
// valid.
func (f *Facts) available(p *Pod) bool {
	return f.availableHere(p) ||
		slices.ContainsFunc(p.Placement.Ghosts, func(g pod.Ghost) bool { return f.formerAvailable(p, g) })
}

func (f *Facts) formerAvailable(p *Pod, g pod.Ghost) bool {
	r := p.Ghosts[g.Node]
	return p.RunState == pod.Running && g.Revision == 0 && r != nil && r.Available && !f.machineLost(g.Node)
}

func (f *Facts) find(id pod.Identity) *Pod {
	i, ok := slices.BinarySearchFunc(f.Pods, id, func(p Pod, id pod.Identity) int { return p.Identity.Compare(id) })
	if !ok {
		return nil
	}
	return &f.Pods[i]
}
