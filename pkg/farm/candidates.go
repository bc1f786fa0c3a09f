package farm

import (
	"cmp"
	"context"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"

	"github.com/rcfarm/rcfarm/pkg/farm/placement"
	"github.com/rcfarm/rcfarm/pkg/farm/reconcile"
	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/obs"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/scheduler"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// candidates are the nodes that a pass may place pods on.
type candidates struct {
	pool    scheduler.Pool    // not taken yet
	others  scheduler.Reasons // why the other nodes are not among them
	strict  bool              // their order is that of an outside scheduler
	spread  string            // key of the label over whose values the pods are spread; empty: over none
	perNode map[string]int    // pods of the controller
	// perGroup are those pods of the controller that stay where they are, and those that this pass has found nodes for, by the
	// value of the label that they are spread over.
	perGroup map[string]int
	groups   []string         // values of that label that nodes have which may take pods
	tally    *scheduler.Tally // perGroup, where a skew is required
	prefers  scheduler.Preferences
	pack     bool // nodes with most come first
	avoid    map[pod.Identity][]string
	fallback map[string]bool            // of those taken: other farms try them first
	mine     func(nodeName string) bool // this farm tries the node first; nil: the pool has those apart
	guessed  []string                   // taken before the plan was computed, until they are used
	early    map[string]store.Rec[node.Reservation]
	looked   int                       // at how many nodes' reservations
	last     bool                      // those that were full as far as is known are tried, too
	vacant   map[string][]pod.Identity // by node: pods that have stopped to be placed again, and hold their shares until then
	unfit    map[string]bool           // tried only when no other has room
}

// guess takes nodes before the plan is computed where it will most likely ask for some: what is taken on them comes with
// everything else then. A scheduler that is not ours may want to see the whole snapshot and is asked later.
func (f *finder) guess(ctx context.Context) error {
	s := f.snapshot
	if f.kit.outside != nil || s.Hold != "" || s.RC.Disabled || s.RC.DeletedAt != nil || s.RC.AnyWishes() {
		return nil
	}
	if !f.roomKnown(s) || s.Manifest == nil && f.kit.usage.tight(len(s.Nodes), s.Now) {
		return nil
	}
	n := s.RC.Desired()
	for i := range s.Pods {
		if s.Pods[i].Placement.Tried() != nil {
			return nil // which nodes come last depends on what nodes say of its manifest
		}
		if stays(s, &s.Pods[i]) {
			n--
		}
	}
	if n <= 0 {
		return nil
	}
	if err := f.findNodes(ctx); err != nil {
		return err
	}
	if s.Manifest != nil {
		f.putOff()
	}
	f.nodes.guessed = f.takeNodes(ctx, n)
	return nil
}

// findNodes asks the scheduler.
func (f *finder) findNodes(ctx context.Context) (err error) {
	s := f.snapshot
	if f.kit.outside == nil {
		if wanted, is := s.WantedNodes(); is {
			f.nodes = newCandidates(s, nil, "")
			f.nodes.inOrder(placement.InOrder(wanted), placement.Walk{})
			return nil
		}
		f.nodes, err = candidatesOf(f.kit.byLabel, f.kit.farm, s, f.version)
		return err
	}
	view := viewOf(s, f.version)
	names, others, err := f.kit.outside.eligible(ctx, view)
	if err != nil {
		return err
	}
	spread := ""
	if wished := s.Wishes().Spread; wished.Held() > 0 {
		spread = wished.Label
	}
	f.nodes = newCandidates(s, others, spread)
	open, _ := view.Eligible() // nodes that the scheduler leaves out make groups too: the skew is held whatever it answers
	f.nodes.groups = field.Each(open, func(n scheduler.Node) string { return n.Label(spread) })
	f.nodes.strict = true
	f.nodes.inOrder(placement.InOrder(names), placement.Walk{})
	return nil
}

// newCandidates returns candidates without nodes, of which pods are to be spread over the values of a label, or over none.
func newCandidates(s *reconcile.Snapshot, others scheduler.Reasons, spread string) *candidates {
	if others == nil {
		others = scheduler.Reasons{}
	}
	found := &candidates{
		others: others, spread: spread, perNode: map[string]int{}, perGroup: map[string]int{}, avoid: map[pod.Identity][]string{}, fallback: map[string]bool{}, vacant: map[string][]pod.Identity{},
	}
	for i := range s.Pods {
		if p := &s.Pods[i]; s.Vacant(p) {
			found.vacant[p.Node] = append(found.vacant[p.Node], p.Identity)
		} else {
			found.perNode[p.Node]++
		}
		found.avoid[s.Pods[i].Identity] = s.AvoidedBy(&s.Pods[i])
	}
	found.count(s, nil)
	return found
}

// inOrder makes candidates of the nodes that the farm prefers and of the rest.
func (n *candidates) inOrder(preferred, rest placement.Walk) {
	n.pool = scheduler.Pool{Preferred: scheduler.Preference{Order: preferred}, Rest: scheduler.Preference{Order: rest}}
	if len(n.perNode) == 0 {
		return
	}
	// Nodes with few pods of this controller first: reading the others would be in vain.
	for _, p := range []*scheduler.Preference{&n.pool.Preferred, &n.pool.Rest} {
		names := slices.Collect(p.Order.All())
		slices.SortStableFunc(names, func(a, b string) int { return n.perNode[a] - n.perNode[b] })
		p.Order = placement.InOrder(names)
	}
}

// spreadOver makes candidates of the nodes of some groups. Preferred ones and the rest are not apart then: the emptiest group may have
// nodes of the rest alone. Within a group the preferred ones come first.
func (n *candidates) spreadOver(groups []scheduler.Group, seed uint64, ranks func(a, b string) int) {
	turns := placement.NewSpread(groups, n.perGroup, n.perNode, seed)
	if ranks != nil {
		turns.Sort(ranks)
	}
	n.pool = scheduler.Pool{Preferred: scheduler.Preference{Turns: turns}}
	for _, g := range groups {
		n.groups = append(n.groups, g.Value)
	}
}

// ranking returns how nodes are ranked for the pods before anything is known of what they have, nil where they are not. Who packs has an order that all
// farms share, so that they fill the same nodes.
func (n *candidates) ranking(s *reconcile.Snapshot) func(a, b string) int {
	wishes := s.Wishes()
	for _, p := range wishes.Affinity {
		_ = n.prefers.Prefer(p.Selector, p.Weight) // it was read with the document; one that nobody can read prefers nothing
	}
	n.pack = wishes.Placing == rc.PlacePack
	if !n.pack && len(n.prefers) == 0 {
		return nil
	}
	scores := map[string]int{}
	for name, v := range s.Nodes {
		scores[name] = n.prefers.Score(v)
	}
	return func(a, b string) int {
		order := n.perNode[a] - n.perNode[b]
		if n.pack {
			order = cmp.Or(-order, cmp.Compare(a, b))
		}
		return cmp.Or(scores[b]-scores[a], order)
	}
}

// stays reports whether a pod most likely needs no other node.
func stays(s *reconcile.Snapshot, p *reconcile.Pod) bool {
	on := s.Nodes[p.Node]
	return p.RunState == pod.Running && (on == nil || on.Alive || !on.MachineLost)
}

// staying returns where the pods are that need no other node, as the plan has it; nil: as it most likely will. Those that stop
// are nowhere.
func staying(s *reconcile.Snapshot, plan *reconcile.Plan) map[pod.Identity]string {
	if plan == nil {
		plan = &reconcile.Plan{}
		for i := range s.Pods {
			if p := &s.Pods[i]; !stays(s, p) {
				plan.Adds = append(plan.Adds, p.Identity)
			}
		}
	}
	on := make(map[pod.Identity]string, len(s.Pods))
	note := func(p *pod.Placement) {
		if p.RunState == pod.Running {
			on[p.Identity] = p.Node
		} else {
			delete(on, p.Identity)
		}
	}
	for i := range s.Pods {
		note(&s.Pods[i].Placement)
	}
	for i := range plan.Changes {
		if p := plan.Changes[i].Placement; p != nil {
			note(p)
		} else {
			delete(on, plan.Changes[i].Identity)
		}
	}
	for _, id := range plan.Adds {
		delete(on, id)
	}
	return on
}

// count counts the pods of each group that stay there by a plan; nil: as most likely they will.
func (n *candidates) count(s *reconcile.Snapshot, plan *reconcile.Plan) {
	if n.spread == "" {
		return
	}
	clear(n.perGroup)
	wishes := s.Wishes()
	n.tally = scheduler.NewTally(n.spread, wishes.Spread.Held(), n.groups)
	for id, name := range staying(s, plan) {
		if !wishes.Count(id.Role) {
			continue
		}
		group := scheduler.GroupOf(s.Nodes[name], n.spread)
		n.perGroup[group]++
		n.tally.Add(group, 1)
	}
}

// placed counts a pod that was found a node.
func (n *candidates) placed(s *reconcile.Snapshot, nodeName string) {
	n.perNode[nodeName]++
	if n.spread != "" {
		group := scheduler.GroupOf(s.Nodes[nodeName], n.spread)
		n.perGroup[group]++
		n.tally.Add(group, 1)
	}
}

// takeNodes takes the next nodes for some pods, and notes them in the ledger.
func (f *finder) takeNodes(ctx context.Context, pods int) []string {
	some, fallback := f.kit.ledger.Take(ctx, &f.nodes.pool, pods, len(f.taken) == 0)
	if f.nodes.mine != nil {
		fallback = slices.DeleteFunc(slices.Clone(some), f.nodes.mine)
	}
	for _, name := range fallback {
		f.nodes.fallback[name] = true
	}
	f.taken = append(f.taken, some...)
	f.nodes.looked += len(some)
	return some
}

// giveBack lets other passes have the nodes that this one does not write to.
func (f *finder) giveBack(changes []reconcile.Change) {
	used := map[string]bool{}
	for i := range changes {
		for _, r := range changes[i].Reserve {
			used[r.Node] = true
		}
	}
	var unused []string
	f.taken = slices.DeleteFunc(f.taken, func(name string) bool {
		if !used[name] {
			unused = append(unused, name)
		}
		return !used[name]
	})
	f.kit.ledger.GiveBack(unused)
}

// keep keeps what is taken for the batches: their writes are refused where it is outdated.
func (f *finder) keep(d store.Details) {
	for name, e := range d.Unreadable {
		f.log.WithError(e).WithField(obs.Node, name).Error("nothing is placed on a node")
	}
	if len(d.Unreadable) == 0 { // else the batches read again, and say which one it is
		maps.Copy(f.reserved, d.Reservations)
	}
	for name, rec := range d.Reservations {
		if d.Unreadable[name] == nil && disagrees(f.snapshot.Nodes[name], rec.Value) {
			f.kit.mismatched.add(name)
		}
	}
}

// candidatesOf returns the nodes for a pass as the built-in scheduler has them, tried in an order that other farms do not share. The version
// is that of the snapshot's nodes; zero: not known.
func candidatesOf(by *scheduler.ByLabel, farmID string, snap *reconcile.Snapshot, version uint64) (*candidates, error) {
	spread := snap.Wishes().Spread.Label
	e, err := by.Select(scheduler.Query{
		Selector: snap.RC.NodeSelector, Spread: spread, Epoch: snap.Epoch, Nodes: snap.Nodes, Version: version,
	})
	if err != nil {
		return nil, err
	}
	h := fnv.New64a()
	_, _ = fmt.Fprint(h, farmID, snap.RC.ID, snap.Now.UnixNano()) // writing to a hash cannot fail
	found := newCandidates(snap, maps.Clone(e.Others), spread)
	ranks := found.ranking(snap)
	switch {
	case found.spread != "":
		found.spreadOver(e.Groups, h.Sum64(), ranks)
		found.mine = by.First
	case len(e.Groups) > 0 && ranks != nil:
		names := slices.Concat(slices.Collect(placement.NewWalk(e.Groups[0].First, h.Sum64()).All()), slices.Collect(placement.NewWalk(e.Groups[0].Rest, h.Sum64()).All()))
		slices.SortStableFunc(names, ranks)
		found.pool = scheduler.Pool{Preferred: scheduler.Preference{Order: placement.InOrder(names)}}
		found.mine = by.First
	case len(e.Groups) > 0:
		found.inOrder(placement.NewWalk(e.Groups[0].First, h.Sum64()), placement.NewWalk(e.Groups[0].Rest, h.Sum64()))
	}
	if found.pack {
		found.mine = nil // whose share a node is makes it no fuller
	}
	return found, nil
}

// preferNodes has each node tried first by one of the farms that live now: those that place at the same time rarely meet then.
func (f *Farm) preferNodes() {
	members := f.Members()
	f.kit.byLabel.Prefer(func(name string) bool { return placement.PreferredOwner(name, members) == f.cfg.ID })
}

// viewOf returns a snapshot as schedulers see it. The version is that of its nodes; zero: not known.
func viewOf(s *reconcile.Snapshot, version uint64) *scheduler.View {
	claim, wishes := reconcile.NewClaim(s, pod.Identity{}), s.Wishes()
	c := scheduler.Cluster{
		Ask: scheduler.Ask{
			RCID: s.RC.ID, RCName: s.RC.Name, Labels: s.RC.Labels, PodLabels: s.RC.PodLabels, Strategy: string(s.RC.Strategy),
			Selector: s.RC.NodeSelector, Spread: wishes.Spread.Label, SpreadSkew: wishes.Spread.Held(), SpreadRole: wishes.Alone, Placing: string(wishes.Placing), MaxPerNode: s.RC.MaxPerNode, Desired: s.RC.Desired(),
			CPU: claim.CPU, Memory: claim.Memory, Ports: claim.Ports,
		},
		Nodes: s.Nodes, Version: version,
		Pods: func(yield func(scheduler.Placed) bool) {
			for i := range s.Pods {
				p := &s.Pods[i]
				if !yield(scheduler.Placed{Pod: p.Identity, Node: p.Node, Stopping: p.RunState != pod.Running}) {
					return
				}
			}
		},
	}
	for _, p := range wishes.Affinity {
		c.Ask.Affinity = append(c.Ask.Affinity, scheduler.Affinity{Selector: p.Selector, Weight: p.Weight})
	}
	if m := s.Placing(); m != nil {
		c.Ask.PodID, c.Ask.Manifest, c.Ask.DynamicPorts = m.ID, m.WithoutSecrets(), m.DynamicPorts()
	}
	if wanted, is := s.WantedNodes(); is {
		c.Nodes, c.Version = map[string]*node.View{}, 0
		for _, name := range wanted {
			c.Nodes[name] = s.Nodes[name]
		}
	}
	var err error
	if c.Rule, err = s.Rule(); err != nil {
		c.Rule = &scheduler.Rule{} // what nobody can read selects nothing
	}
	return scheduler.NewView(c)
}
