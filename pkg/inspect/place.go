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
	Name         string            `json:"name"`
	Replicas     int               `json:"replicas"` // that the document asks for
	Placed       int               `json:"placed"`   // of the controller of that name, if there is one
	Found        int               `json:"found"`    // of those that are missing, how many find a node
	Takes        PodTakes          `json:"takes"`
	NodeSelector string            `json:"node_selector,omitempty"`
	MaxPerNode   int               `json:"max_per_node,omitempty"`
	Spread       string            `json:"spread,omitempty"`
	Out          scheduler.Reasons `json:"out"`   // nodes that take no pod, by why
	Nodes        []PlacingNode     `json:"nodes"` // those that take one first, in their order
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
	Group    string           `json:"group,omitempty"`  // value of the label that pods are spread over
	Pods     int              `json:"pods"`             // of the controller
	Gets     int              `json:"gets"`             // of those that are missing
	Score    int              `json:"score,omitempty"`  // of the document's affinity
	Load     int              `json:"load"`             // thousandths: how full it would be with one more, by what it has least of
	Used     Usage            `json:"used"`
	Capacity Usage            `json:"capacity"`
}

// Place returns what would become of pods of a document. placements are those of the controller of its name.
func Place(spec *rc.Spec, placements []pod.Placement, state *plan.State) (Placing, error) {
	sel, err := rc.ParseSelector(spec.NodeSelector)
	if err != nil {
		return Placing{}, err
	}
	perNode := spec.MaxPerNode
	if spec.Mode == rc.EachNode {
		perNode = 1
	}
	rule := ruleOf(sel, state.Epoch, perNode, spec.Pod)
	request := placement.Request{
		Want: rule.Ask, Dynamic: rule.Dynamic, MaxPerNode: perNode, Spread: spec.Spread.Label, Pack: spec.Placing == rc.PlacePack, PerNode: map[string]int{}, PerGroup: map[string]int{},
		Nodes: state.Nodes, Reservations: state.Taken,
	}
	out := Placing{
		Name: spec.Name, Takes: PodTakes{CPU: rule.Ask.CPU, Memory: rule.Ask.Memory, Ports: rule.Ask.Ports, DynamicPorts: rule.Dynamic},
		NodeSelector: spec.NodeSelector, MaxPerNode: perNode, Spread: spec.Spread.Label,
	}
	for _, p := range spec.Affinity {
		if err := request.Preferences.Prefer(p.Selector, p.Weight); err != nil {
			return Placing{}, err
		}
	}
	request.Order, out.Out = rule.Eligible(state.Nodes)
	request.Tally = scheduler.NewTally(request.Spread, spec.Spread.Held(), scheduler.GroupsOf(state.Nodes, request.Order, request.Spread))
	if spec.Replicas != nil {
		out.Replicas = *spec.Replicas
	}
	for _, g := range spec.ReplicaGroups {
		out.Replicas += *g.Count
	}
	for i := range placements {
		p := &placements[i]
		request.PerNode[p.Node]++
		if p.RunState == pod.Running {
			out.Placed++
			group := scheduler.GroupOf(state.Nodes[p.Node], request.Spread)
			request.PerGroup[group]++
			request.Tally.Add(group, 1)
		}
	}
	if spec.Mode == rc.EachNode {
		out.Replicas = len(request.Order)
		for name := range request.PerNode {
			if !slices.Contains(request.Order, name) {
				out.Replicas++
			}
		}
	}
	for i := range max(1, out.Replicas-out.Placed) {
		request.Pods = append(request.Pods, pod.Identity{RCID: "planned", Role: rc.DefaultRole, Index: i})
	}
	out.rank(request, &rule)
	return out, nil
}

// rank fills in the nodes.
func (p *Placing) rank(request placement.Request, rule *scheduler.Rule) {
	gets := map[string]int{}
	if p.Placed < p.Replicas {
		assigned, _ := placement.Assign(request)
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
		p.Nodes = append(p.Nodes, line.of(request.Nodes[n.Node], n.Used))
	}
	for _, name := range slices.Sorted(maps.Keys(request.Nodes)) {
		v := request.Nodes[name]
		if reason := rule.Excludes(v); reason != "" {
			used := scheduler.UsageOf(v, request.Reservations[name])
			line := PlacingNode{Name: name, Reason: reason, Group: scheduler.GroupOf(v, request.Spread), Pods: request.PerNode[name], Load: used.Load(v, request.Want, len(request.Dynamic), 1)}
			p.Nodes = append(p.Nodes, line.of(v, used))
		}
	}
	out := p.Nodes[len(p.Ranked()):]
	slices.SortStableFunc(out, func(a, b PlacingNode) int {
		return cmp.Or(cmp.Compare(a.Reason, b.Reason), cmp.Compare(a.Name, b.Name))
	})
}

// of adds what the node has, and what is taken of it.
func (n PlacingNode) of(v *node.View, used scheduler.Usage) PlacingNode {
	n.Used, n.Capacity = usageOf(v, used), capacityOf(v)
	return n
}

// Ranked returns the nodes that take a pod, the first to be taken first.
func (p *Placing) Ranked() []PlacingNode {
	end := slices.IndexFunc(p.Nodes, func(n PlacingNode) bool { return n.Rank == 0 })
	if end < 0 {
		end = len(p.Nodes)
	}
	return p.Nodes[:end]
}

// Refusing returns the names of the nodes that take no pod for a reason.
func (p *Placing) Refusing(reason scheduler.Reason) (names []string) {
	for i := range p.Nodes {
		if p.Nodes[i].Reason == reason {
			names = append(names, p.Nodes[i].Name)
		}
	}
	return names
}
