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

// Groups places the pods of a document as a pass does: one role after the other.
type Groups struct {
	spec  *rc.Spec
	rule  scheduler.Rule // without the share of a pod
	nodes map[string]*node.View
	taken map[string]node.Reservation // including the shares of pods that were assigned here
	pods  []placedPod
}

type placedPod struct {
	role, node string
	runs       bool // its intent is to run
}

// NewGroups returns Groups for a document. taken is what is reserved on the nodes; the maps are not changed. It fails
// if the node selector does not parse.
func NewGroups(
	spec *rc.Spec, epoch string, nodes map[string]*node.View, taken map[string]node.Reservation,
) (*Groups, error) {
	sel, err := rc.ParseSelector(spec.NodeSelector)
	p := &Groups{
		spec: spec, rule: scheduler.Rule{Selector: sel, Epoch: epoch, MaxPerNode: spec.MaxPerNode},
		nodes: nodes, taken: map[string]node.Reservation{},
	}
	if spec.Mode == rc.EachNode {
		p.rule.MaxPerNode = 1
	}
	maps.Copy(p.taken, taken)
	return p, err
}

// Taken returns what is reserved, including pods that were assigned here. Do not change it.
func (g *Groups) Taken() map[string]node.Reservation { return g.taken }

// MaxPerNode returns how many pods of the document a node may have, zero for no limit.
func (g *Groups) MaxPerNode() int { return g.rule.MaxPerNode }

// Apart returns the groups if each must be placed by itself, nil if all pods ask for the same.
func Apart(groups []rc.ReplicaGroup) []rc.ReplicaGroup {
	if !slices.ContainsFunc(groups, func(g rc.ReplicaGroup) bool { return g.Differs() || g.HasPreferences() }) {
		return nil
	}
	return groups
}

// AddPod adds a pod that has a node. Only a pod that is meant to run counts for the spread of its role.
func (g *Groups) AddPod(role, node string, runs bool) {
	g.pods = append(g.pods, placedPod{role, node, runs})
}

// RuleFor adds to a rule what pods with this manifest ask for. The manifest may be nil.
func RuleFor(rule scheduler.Rule, m *manifest.Manifest) scheduler.Rule {
	if m != nil {
		res := m.Resources()
		rule.Ask, rule.Dynamic = node.NewClaim(pod.Identity{}, m.PortMap(), res.CPU, res.Memory), m.DynamicPorts()
		rule.Containers = m.HasImage()
	}
	return rule
}

// Lot is a number of pods that ask for the same.
type Lot struct {
	Request
	Rule        scheduler.Rule
	Preferences rc.Preferences    // their placement preferences
	Excluded    scheduler.Reasons // nodes that could not take these pods even if they were empty, by reason
}

// Lot returns the request of a role's pods, or of all pods if of is nil. The caller adds the pods. Lot fails if the
// selector of an affinity does not parse.
func (g *Groups) Lot(of *rc.ReplicaGroup) (Lot, error) {
	m := g.spec.Pod
	if of != nil {
		m = rc.GroupManifest(m, of)
	}
	rule := RuleFor(g.rule, m)
	all := rc.Preferences{Spread: g.spec.Spread, Affinity: g.spec.Affinity, Placing: g.spec.Placing}
	preferences := rc.PreferencesFor(all, of)
	r := Request{
		Want: rule.Ask, Dynamic: rule.Dynamic, MaxPerNode: rule.MaxPerNode,
		Spread: preferences.Spread.Label, Pack: preferences.Placing == rc.PlacePack,
		PerNode: map[string]int{}, PerGroup: map[string]int{}, Nodes: g.nodes, Reservations: g.taken,
	}
	for _, w := range preferences.Affinity {
		if err := r.Preferences.Prefer(w.Selector, w.Weight); err != nil {
			return Lot{}, err
		}
	}
	var excluded scheduler.Reasons
	r.Order, excluded = rule.Eligible(g.nodes)
	r.Tally = scheduler.NewTally(r.Spread, preferences.Spread.Held(), scheduler.GroupsOf(g.nodes, r.Order, r.Spread))
	for _, at := range g.pods {
		r.PerNode[at.node]++
		if at.runs && preferences.Count(at.role) {
			group := scheduler.GroupOf(g.nodes[at.node], r.Spread)
			r.PerGroup[group]++
			r.Tally.Add(group, 1)
		}
	}
	return Lot{Request: r, Rule: rule, Preferences: preferences, Excluded: excluded}, nil
}

// AddAssigned adds the pods of a lot that got a node, so that later lots see them.
func (g *Groups) AddAssigned(r *Lot, assigned []Assignment) {
	for _, a := range assigned {
		claim := r.Want
		claim.Pod = a.Pod
		// Assign has seen that the share fits.
		claim, _, _ = scheduler.ClaimOn(g.nodes[a.Node], g.taken[a.Node], claim, r.Dynamic, nil)
		g.taken[a.Node] = g.taken[a.Node].Clone()
		g.taken[a.Node].Claims[a.Pod.String()] = claim
		g.AddPod(a.Pod.Role, a.Node, true)
	}
}
