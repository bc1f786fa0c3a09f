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

// Placing shows which nodes would take one more pod of a controller now, and why others would not.
type Placing struct {
	Name         string `json:"name"`
	NodeSelector string `json:"node_selector,omitempty"`
	MaxPerNode   int    `json:"max_per_node,omitempty"`
	GroupPlacing
	// Groups is set if groups have different demands on nodes. Then GroupPlacing has no Nodes and no Takes.
	Groups []GroupPlacing `json:"groups,omitempty"`
}

// GroupPlacing is about the pods of one replica group, or of all.
type GroupPlacing struct {
	Role     string            `json:"role,omitempty"` // empty: all roles
	Replicas int               `json:"replicas"`       // that the document asks for
	Placed   int               `json:"placed"`         // of the controller of that name, if there is one
	Found    int               `json:"found"`          // how many of the missing replicas find a node
	Takes    PodTakes          `json:"takes"`
	Spread   string            `json:"spread,omitempty"`   // pods are spread over the values of this node label
	Skew     int               `json:"skew,omitempty"`     // the required skew
	Affinity []rc.Preference   `json:"affinity,omitempty"` // which nodes come first
	Pack     bool              `json:"pack,omitempty"`     // nodes with the most pods come first
	Out      scheduler.Reasons `json:"out"`                // nodes that take no pod, by reason
	Nodes    []PlacingNode     `json:"nodes"`              // first the nodes that take a pod, by rank
}

// PodTakes is what one pod takes of a node.
type PodTakes struct {
	CPU          int64    `json:"cpu"`    // thousandths of a core
	Memory       int64    `json:"memory"` // bytes
	Ports        []int    `json:"ports,omitempty"`
	DynamicPorts []string `json:"dynamic_ports,omitempty"`
}

// PlacingNode is one node of a GroupPlacing.
type PlacingNode struct {
	Name   string           `json:"name"`
	Rank   int              `json:"rank,omitempty"`   // from 1; zero: it takes no pod
	Reason scheduler.Reason `json:"reason,omitempty"` // why it takes no pod
	Lacks  string           `json:"lacks,omitempty"`  // with the reason ports: which port, and who has it
	Group  string           `json:"group,omitempty"`  // value of the label over which pods are spread
	Pods   int              `json:"pods"`             // of the controller
	Gets   int              `json:"gets"`             // how many of the missing replicas it gets
	// sum of the weights of the affinity that match
	Score int `json:"score,omitempty"`
	// thousandths: how full it would be with one more pod, by its scarcest resource
	Load     int   `json:"load"`
	Used     Usage `json:"used"`
	Capacity Usage `json:"capacity"`
}

// Place applies the farms' rule and ranking. placements are the pods of the controller with the document's name.
func Place(spec *rc.Spec, placements []pod.Placement, state *plan.State) (Placing, error) {
	groups, err := placement.NewGroups(spec, state.Epoch, state.Nodes, state.Taken)
	if err != nil {
		return Placing{}, err
	}
	p := placer{spec: spec, groups: groups, placements: placements}
	for i := range placements {
		groups.AddPod(placements[i].Role, placements[i].Node, placements[i].RunState == pod.Running)
	}
	out := Placing{
		Name: spec.Name, NodeSelector: spec.NodeSelector, MaxPerNode: groups.MaxPerNode(),
		GroupPlacing: GroupPlacing{Out: scheduler.Reasons{}, Nodes: []PlacingNode{}},
	}
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

type placer struct {
	spec       *rc.Spec
	groups     *placement.Groups
	placements []pod.Placement
}

// place returns the placing of one group; nil: of all pods.
func (p *placer) place(g *rc.ReplicaGroup) (GroupPlacing, error) {
	lot, err := p.groups.Lot(g)
	if err != nil {
		return GroupPlacing{}, err
	}
	out := GroupPlacing{
		Takes:  PodTakes{CPU: lot.Want.CPU, Memory: lot.Want.Memory, Ports: lot.Want.Ports, DynamicPorts: lot.Dynamic},
		Spread: lot.Spread, Skew: lot.Preferences.Spread.Held(), Affinity: lot.Preferences.Affinity, Pack: lot.Pack,
		Out: lot.Excluded, Replicas: p.replicas(g),
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
	p.groups.AddAssigned(&lot, out.rank(lot.Request, &lot.Rule))
	return out, nil
}

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

func (g *GroupPlacing) rank(request placement.Request, rule *scheduler.Rule) (assigned []placement.Assignment) {
	gets := map[string]int{}
	if g.Placed < g.Replicas {
		assigned, _ = placement.Assign(request)
		g.Found = len(assigned)
		for _, a := range assigned {
			gets[a.Node]++
		}
	}
	for i, n := range placement.Rank(request) {
		line := PlacingNode{
			Name: n.Node, Reason: n.Reason, Group: n.Group, Pods: n.Pods, Gets: gets[n.Node],
			Load: n.Load, Score: n.Score,
		}
		if n.Reason == "" {
			line.Rank = i + 1
		} else {
			g.Out[n.Reason]++
		}
		if n.Reason == scheduler.Ports {
			line.Lacks = scheduler.ClashOf(request.Nodes[n.Node], request.Reservations[n.Node], request.Want).String()
		}
		g.Nodes = append(g.Nodes, line.of(request.Nodes[n.Node], n.Used))
	}
	for _, name := range slices.Sorted(maps.Keys(request.Nodes)) {
		v := request.Nodes[name]
		if reason := rule.Excludes(v); reason != "" {
			used := scheduler.UsageOf(v, request.Reservations[name])
			line := PlacingNode{
				Name: name, Reason: reason, Group: scheduler.GroupOf(v, request.Spread),
				Pods: request.PerNode[name], Load: used.Load(v, request.Want, len(request.Dynamic), 1),
				Score: request.Preferences.Score(v),
			}
			g.Nodes = append(g.Nodes, line.of(v, used))
		}
	}
	out := g.Nodes[len(g.Ranked()):]
	slices.SortStableFunc(out, func(a, b PlacingNode) int {
		return cmp.Or(cmp.Compare(a.Reason, b.Reason), cmp.Compare(a.Name, b.Name))
	})
	return assigned
}

func (p PlacingNode) of(v *node.View, used scheduler.Usage) PlacingNode {
	p.Used, p.Capacity = usageOf(v, used), capacityOf(v)
	return p
}

// Ranked returns the nodes that take a pod, the first choice first.
func (g *GroupPlacing) Ranked() []PlacingNode {
	end := slices.IndexFunc(g.Nodes, func(n PlacingNode) bool { return n.Rank == 0 })
	if end < 0 {
		end = len(g.Nodes)
	}
	return g.Nodes[:end]
}

// Refusing returns the nodes that take no pod because of the reason.
func (g *GroupPlacing) Refusing(reason scheduler.Reason) (names []string) {
	for i := range g.Nodes {
		if g.Nodes[i].Reason == reason {
			names = append(names, g.Nodes[i].Name)
		}
	}
	return names
}
