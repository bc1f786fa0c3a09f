package placement

import (
	"maps"
	"slices"

	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/scheduler"
)

// Groups places the pods of a document, one group after the other as a pass does.
type Groups struct {
	spec  *rc.Spec
	rule  scheduler.Rule // of a pod that takes nothing
	nodes map[string]*node.View
	taken map[string]node.Reservation // what groups before have got, too
	pods  []there
}

// there is a pod that has a node.
type there struct {
	role, node string
	runs       bool // is meant to
}

// NewGroups returns what places pods of a document on nodes where something is taken. It changes neither. The error is that of the selector.
func NewGroups(spec *rc.Spec, epoch string, nodes map[string]*node.View, taken map[string]node.Reservation) (*Groups, error) {
	sel, err := rc.ParseSelector(spec.NodeSelector)
	p := &Groups{
		spec: spec, rule: scheduler.Rule{Selector: sel, Epoch: epoch, MaxPerNode: spec.MaxPerNode}, nodes: nodes, taken: map[string]node.Reservation{},
	}
	if spec.Mode == rc.EachNode {
		p.rule.MaxPerNode = 1
	}
	maps.Copy(p.taken, taken)
	return p, err
}

// Taken returns what is taken on nodes, with what groups have got. It is not to be changed.
func (p *Groups) Taken() map[string]node.Reservation { return p.taken }

// MaxPerNode returns how many pods of the document a node takes, zero for no limit.
func (p *Groups) MaxPerNode() int { return p.rule.MaxPerNode }

// Apart returns the groups that are to be placed apart; none where all pods want the same.
func Apart(groups []rc.ReplicaGroup) []rc.ReplicaGroup {
	if !slices.ContainsFunc(groups, func(g rc.ReplicaGroup) bool { return g.Differs() || g.Wishes() }) {
		return nil
	}
	return groups
}

// Has notes a pod that has a node. It counts where its group is spread if it is meant to run.
func (p *Groups) Has(role, node string, runs bool) { p.pods = append(p.pods, there{role, node, runs}) }

// RuleFor completes a rule for pods with a manifest, which may be nil.
func RuleFor(rule scheduler.Rule, m *manifest.Manifest) scheduler.Rule {
	if m != nil {
		res := m.Resources()
		rule.Ask, rule.Dynamic = node.NewClaim(pod.Identity{}, m.PortMap(), res.CPU, res.Memory), m.DynamicPorts()
	}
	return rule
}

// Lot is pods that want the same.
type Lot struct {
	Request
	Rule     scheduler.Rule
	Wishes   rc.Wishes
	Excluded scheduler.Reasons // nodes that take none of them whatever is taken there, by why
}

// Lot returns what pods of a group want, nil for all pods, and the nodes that may take them. Which pods there are is left to the caller. The error is
// that of a selector.
func (p *Groups) Lot(g *rc.ReplicaGroup) (Lot, error) {
	m := p.spec.Pod
	if g != nil {
		m = rc.GroupManifest(m, g)
	}
	rule := RuleFor(p.rule, m)
	wishes := rc.WishesFor(rc.Wishes{Spread: p.spec.Spread, Affinity: p.spec.Affinity, Placing: p.spec.Placing}, g)
	r := Request{
		Want: rule.Ask, Dynamic: rule.Dynamic, MaxPerNode: rule.MaxPerNode, Spread: wishes.Spread.Label, Pack: wishes.Placing == rc.PlacePack,
		PerNode: map[string]int{}, PerGroup: map[string]int{}, Nodes: p.nodes, Reservations: p.taken,
	}
	for _, w := range wishes.Affinity {
		if err := r.Preferences.Prefer(w.Selector, w.Weight); err != nil {
			return Lot{}, err
		}
	}
	var excluded scheduler.Reasons
	r.Order, excluded = rule.Eligible(p.nodes)
	r.Tally = scheduler.NewTally(r.Spread, wishes.Spread.Held(), scheduler.GroupsOf(p.nodes, r.Order, r.Spread))
	for _, at := range p.pods {
		r.PerNode[at.node]++
		if at.runs && wishes.Count(at.role) {
			group := scheduler.GroupOf(p.nodes[at.node], r.Spread)
			r.PerGroup[group]++
			r.Tally.Add(group, 1)
		}
	}
	return Lot{Request: r, Rule: rule, Wishes: wishes, Excluded: excluded}, nil
}

// Took notes what pods of a lot got, for those after it.
func (p *Groups) Took(r *Lot, assigned []Assignment) {
	for _, a := range assigned {
		claim := r.Want
		claim.Pod = a.Pod
		claim, _, _ = scheduler.ClaimOn(p.nodes[a.Node], p.taken[a.Node], claim, r.Dynamic, nil) // it was found room for
		p.taken[a.Node] = p.taken[a.Node].Clone()
		p.taken[a.Node].Claims[a.Pod.String()] = claim
		p.Has(a.Pod.Role, a.Node, true)
	}
}
