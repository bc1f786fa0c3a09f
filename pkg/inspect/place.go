package inspect

import (
	"cmp"
	"maps"
	"slices"

	"github.com/rcfarm/rcfarm/pkg/deploy/plan"
	"github.com/rcfarm/rcfarm/pkg/farm/placement"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/scheduler"
)

// Placing says of every node whether it would take one more pod of a controller now, and in which order: by the rule and the ranking of farms.
type Placing struct {
	Name         string `json:"name"`
	NodeSelector string `json:"node_selector,omitempty"`
	MaxPerNode   int    `json:"max_per_node,omitempty"`
	GroupPlacing
	// Groups are said apart where not all pods want the same; then there are neither nodes nor what a pod takes above.
	Groups []GroupPlacing `json:"groups,omitempty"`
}

// GroupPlacing is Placing for the pods of one replica group, or of all.
type GroupPlacing struct {
	Role     string            `json:"role,omitempty"` // empty: of all
	Replicas int               `json:"replicas"`       // that the document asks for
	Placed   int               `json:"placed"`         // of the controller of that name, if there is one
	Found    int               `json:"found"`          // of those that are missing, how many find a node
	Takes    PodTakes          `json:"takes"`
	Spread   string            `json:"spread,omitempty"`   // label that pods are spread over
	Skew     int               `json:"skew,omitempty"`     // that is held
	Affinity []rc.Preference   `json:"affinity,omitempty"` // which nodes come first
	Pack     bool              `json:"pack,omitempty"`     // nodes with most come first
	Out      scheduler.Reasons `json:"out"`                // nodes that take no pod, by why
	Nodes    []PlacingNode     `json:"nodes"`              // those that take one first, in their order
}

// PodTakes is what one pod takes of a node.
type PodTakes struct {
	CPU          int64    `json:"cpu"`    // thousandths of a core
	Memory       int64    `json:"memory"` // bytes
	Ports        []int    `json:"ports,omitempty"`
	DynamicPorts []string `json:"dynamic_ports,omitempty"`
}

// PlacingNode is one of them.
type PlacingNode struct {
	Name     string           `json:"name"`
	Rank     int              `json:"rank,omitempty"`   // from 1; zero: it takes none
	Reason   scheduler.Reason `json:"reason,omitempty"` // why it takes none
	Lacks    string           `json:"lacks,omitempty"`  // which port, and what has it, where the reason is ports
	Group    string           `json:"group,omitempty"`  // value of the label that pods are spread over
	Pods     int              `json:"pods"`             // of the controller
	Gets     int              `json:"gets"`             // of those that are missing
	Score    int              `json:"score,omitempty"`  // sum of the weights of the document's affinity whose selectors match
	Load     int              `json:"load"`             // thousandths: how full it would be with one more, by what it has least of
	Used     Usage            `json:"used"`
	Capacity Usage            `json:"capacity"`
}

// Place returns what would become of pods of a document. placements are those of the controller of its name.
func Place(spec *rc.Spec, placements []pod.Placement, state *plan.State) (Placing, error) {
	groups, err := placement.NewGroups(spec, state.Epoch, state.Nodes, state.Taken)
	if err != nil {
		return Placing{}, err
	}
	p := placer{spec: spec, groups: groups, placements: placements}
	for i := range placements {
		groups.Has(placements[i].Role, placements[i].Node, placements[i].RunState == pod.Running)
	}
	out := Placing{Name: spec.Name, NodeSelector: spec.NodeSelector, MaxPerNode: groups.MaxPerNode(), GroupPlacing: GroupPlacing{Out: scheduler.Reasons{}, Nodes: []PlacingNode{}}}
	lots := placement.Apart(spec.ReplicaGroups)
	if lots == nil {
		out.GroupPlacing, err = p.place(nil)
		return out, err
	}
	for i := range lots {
		one, err := p.place(&lots[i])
		if err != nil {
			return Placing{}, err
		}
		out.Groups = append(out.Groups, one)
		out.Replicas, out.Placed, out.Found = out.Replicas+one.Replicas, out.Placed+one.Placed, out.Found+one.Found
	}
	return out, nil
}

// placer places the pods of a document, one group after the other.
type placer struct {
	spec       *rc.Spec
	groups     *placement.Groups
	placements []pod.Placement
}

// place is Place for a group; nil: for all pods.
func (p *placer) place(g *rc.ReplicaGroup) (GroupPlacing, error) {
	lot, err := p.groups.Lot(g)
	if err != nil {
		return GroupPlacing{}, err
	}
	out := GroupPlacing{
		Takes:  PodTakes{CPU: lot.Want.CPU, Memory: lot.Want.Memory, Ports: lot.Want.Ports, DynamicPorts: lot.Dynamic},
		Spread: lot.Spread, Skew: lot.Wishes.Spread.Held(), Affinity: lot.Wishes.Affinity, Pack: lot.Pack, Out: lot.Excluded, Replicas: p.replicas(g),
	}
	for i := range p.placements {
		if at := &p.placements[i]; at.RunState == pod.Running && (g == nil || at.Role == g.Role) {
			out.Placed++
		}
	}
	if p.spec.Mode == rc.EachNode {
		out.Replicas = len(lot.Order)
		for name := range lot.PerNode {
			if !slices.Contains(lot.Order, name) {
				out.Replicas++
			}
		}
	}
	role := rc.DefaultRole
	if g != nil {
		out.Role, role = g.Role, g.Role
	}
	for i := range max(1, out.Replicas-out.Placed) {
		lot.Pods = append(lot.Pods, pod.Identity{RCID: "planned", Role: role, Index: i})
	}
	p.groups.Took(&lot, out.rank(lot.Request, &lot.Rule))
	return out, nil
}

// replicas returns how many the document asks for, of a group or in all.
func (p *placer) replicas(g *rc.ReplicaGroup) int {
	switch {
	case g != nil:
		return *g.Count
	case p.spec.Replicas != nil:
		return *p.spec.Replicas
	default:
		return rc.Total(p.spec.ReplicaGroups)
	}
}

// rank fills in the nodes, and returns what the missing pods get.
func (p *GroupPlacing) rank(request placement.Request, rule *scheduler.Rule) (assigned []placement.Assignment) {
	gets := map[string]int{}
	if p.Placed < p.Replicas {
		assigned, _ = placement.Assign(request)
		p.Found = len(assigned)
		for _, a := range assigned {
			gets[a.Node]++
		}
	}
	for i, n := range placement.Rank(request) {
		line := PlacingNode{Name: n.Node, Reason: n.Reason, Group: n.Group, Pods: n.Pods, Gets: gets[n.Node], Load: n.Load, Score: n.Score}
		if n.Reason == "" {
			line.Rank = i + 1
		} else {
			p.Out[n.Reason]++
		}
		if n.Reason == scheduler.Ports {
			line.Lacks = scheduler.ClashOf(request.Nodes[n.Node], request.Reservations[n.Node], request.Want).String()
		}
		p.Nodes = append(p.Nodes, line.of(request.Nodes[n.Node], n.Used))
	}
	for _, name := range slices.Sorted(maps.Keys(request.Nodes)) {
		v := request.Nodes[name]
		if reason := rule.Excludes(v); reason != "" {
			used := scheduler.UsageOf(v, request.Reservations[name])
			line := PlacingNode{Name: name, Reason: reason, Group: scheduler.GroupOf(v, request.Spread), Pods: request.PerNode[name], Load: used.Load(v, request.Want, len(request.Dynamic), 1), Score: request.Preferences.Score(v)}
			p.Nodes = append(p.Nodes, line.of(v, used))
		}
	}
	out := p.Nodes[len(p.Ranked()):]
	slices.SortStableFunc(out, func(a, b PlacingNode) int {
		return cmp.Or(cmp.Compare(a.Reason, b.Reason), cmp.Compare(a.Name, b.Name))
	})
	return assigned
}

// of adds what the node has, and what is taken of it.
func (n PlacingNode) of(v *node.View, used scheduler.Usage) PlacingNode {
	n.Used, n.Capacity = usageOf(v, used), capacityOf(v)
	return n
}

// Ranked returns the nodes that take a pod, the first to be taken first.
func (p *GroupPlacing) Ranked() []PlacingNode {
	end := slices.IndexFunc(p.Nodes, func(n PlacingNode) bool { return n.Rank == 0 })
	if end < 0 {
		end = len(p.Nodes)
	}
	return p.Nodes[:end]
}

// Refusing returns the names of the nodes that take no pod for a reason.
func (p *GroupPlacing) Refusing(reason scheduler.Reason) (names []string) {
	for i := range p.Nodes {
		if p.Nodes[i].Reason == reason {
			names = append(names, p.Nodes[i].Name)
		}
	}
	return names
}
