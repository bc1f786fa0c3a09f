package inspect

import (
	"cmp"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/labels"

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
	p := placer{spec: spec, selector: sel, placements: placements, state: state, perNode: spec.MaxPerNode, taken: map[string]node.Reservation{}}
	if spec.Mode == rc.EachNode {
		p.perNode = 1
	}
	maps.Copy(p.taken, state.Taken)
	out := Placing{Name: spec.Name, NodeSelector: spec.NodeSelector, MaxPerNode: p.perNode, GroupPlacing: GroupPlacing{Out: scheduler.Reasons{}, Nodes: []PlacingNode{}}}
	if !slices.ContainsFunc(spec.ReplicaGroups, func(g rc.ReplicaGroup) bool { return g.Differs() || g.Wishes() }) {
		out.GroupPlacing, err = p.place(nil)
		return out, err
	}
	for i := range spec.ReplicaGroups {
		one, err := p.place(&spec.ReplicaGroups[i])
		if err != nil {
			return Placing{}, err
		}
		out.Groups = append(out.Groups, one)
		out.Replicas, out.Placed, out.Found = out.Replicas+one.Replicas, out.Placed+one.Placed, out.Found+one.Found
	}
	return out, nil
}

// placer places the pods of a document, one group after the other as a pass does.
type placer struct {
	spec       *rc.Spec
	selector   labels.Selector
	placements []pod.Placement
	state      *plan.State
	perNode    int // limit
	// What the groups before got.
	taken map[string]node.Reservation
	got   []gotten
}

// gotten is a pod that found a node.
type gotten struct{ role, node string }

// place is Place for a group; nil: for all pods.
func (p *placer) place(g *rc.ReplicaGroup) (GroupPlacing, error) {
	m := p.spec.Pod
	if g != nil {
		m = rc.GroupManifest(m, g)
	}
	wishes := rc.WishesFor(rc.Wishes{Spread: p.spec.Spread, Affinity: p.spec.Affinity, Placing: p.spec.Placing}, g)
	rule := ruleOf(p.selector, p.state.Epoch, p.perNode, m)
	request := placement.Request{
		Want: rule.Ask, Dynamic: rule.Dynamic, MaxPerNode: p.perNode, Spread: wishes.Spread.Label, Pack: wishes.Placing == rc.PlacePack, PerNode: map[string]int{}, PerGroup: map[string]int{},
		Nodes: p.state.Nodes, Reservations: p.taken,
	}
	out := GroupPlacing{
		Takes:  PodTakes{CPU: rule.Ask.CPU, Memory: rule.Ask.Memory, Ports: rule.Ask.Ports, DynamicPorts: rule.Dynamic},
		Spread: wishes.Spread.Label, Skew: wishes.Spread.Held(), Affinity: wishes.Affinity, Pack: request.Pack,
	}
	for _, w := range wishes.Affinity {
		if err := request.Preferences.Prefer(w.Selector, w.Weight); err != nil {
			return GroupPlacing{}, err
		}
	}
	request.Order, out.Out = rule.Eligible(p.state.Nodes)
	request.Tally = scheduler.NewTally(request.Spread, wishes.Spread.Held(), scheduler.GroupsOf(p.state.Nodes, request.Order, request.Spread))
	out.Replicas = p.replicas(g)
	p.count(&request, &wishes, &out, g)
	if p.spec.Mode == rc.EachNode {
		out.Replicas = len(request.Order)
		for name := range request.PerNode {
			if !slices.Contains(request.Order, name) {
				out.Replicas++
			}
		}
	}
	role := rc.DefaultRole
	if g != nil {
		out.Role, role = g.Role, g.Role
	}
	for i := range max(1, out.Replicas-out.Placed) {
		request.Pods = append(request.Pods, pod.Identity{RCID: "planned", Role: role, Index: i})
	}
	p.take(&request, out.rank(request, &rule))
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

// count notes where pods are: those that are placed, and those that the groups before have got.
func (p *placer) count(request *placement.Request, wishes *rc.Wishes, out *GroupPlacing, g *rc.ReplicaGroup) {
	note := func(role, name string) {
		if wishes.Count(role) {
			group := scheduler.GroupOf(p.state.Nodes[name], request.Spread)
			request.PerGroup[group]++
			request.Tally.Add(group, 1)
		}
	}
	for i := range p.placements {
		at := &p.placements[i]
		request.PerNode[at.Node]++
		if at.RunState != pod.Running {
			continue
		}
		if g == nil || at.Role == g.Role {
			out.Placed++
		}
		note(at.Role, at.Node)
	}
	for _, at := range p.got {
		request.PerNode[at.node]++
		note(at.role, at.node)
	}
}

// take notes what a group got, for those after it.
func (p *placer) take(request *placement.Request, assigned []placement.Assignment) {
	for _, a := range assigned {
		claim := request.Want
		claim.Pod = a.Pod
		claim, _, _ = scheduler.ClaimOn(p.state.Nodes[a.Node], p.taken[a.Node], claim, request.Dynamic, nil) // it was found room for
		p.taken[a.Node] = p.taken[a.Node].Clone()
		p.taken[a.Node].Claims[a.Pod.String()] = claim
		p.got = append(p.got, gotten{a.Pod.Role, a.Node})
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
