package place

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"

	"github.com/rcfarm/rcfarm/pkg/farm/placement"
	"github.com/rcfarm/rcfarm/pkg/farm/reconcile"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/scheduler"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// candidates are the nodes on which a pass may place pods.
type candidates struct {
	pool    scheduler.Pool    // nodes that were not taken yet
	others  scheduler.Reasons // why the other nodes are not candidates
	strict  bool              // the nodes are in the order of an outside scheduler
	spread  string            // key of the spread label; empty: no spread
	perNode map[string]int    // pods of the controller
	// perGroup counts the controller's pods by their nodes' value of the spread label: the pods that are not moved, and
	// those for which this pass has found nodes. It is empty without a spread label.
	perGroup  map[string]int
	groups    []string         // values of the spread label on eligible nodes
	tally     *scheduler.Tally // perGroup, if a maximum skew is required
	prefers   scheduler.Preferences
	pack      bool // the fullest nodes come first
	avoid     map[pod.Identity][]string
	fallback  map[string]bool                        // taken nodes that other farms try first
	mine      func(nodeName string) bool             // this farm tries the node first; nil: see pool.Preferred
	guessed   []string                               // taken before the plan was computed and not used yet
	readAhead map[string]store.Rec[node.Reservation] // the reservations of guessed
	looked    int                                    // number of nodes whose reservations were read
	tryFull   bool                                   // nodes that are known to be full are tried too
	// vacant has, by node, stopped pods that are placed again. They keep their shares until then.
	vacant map[string][]pod.Identity
	unfit  map[string]bool // tried only if no other node takes the pods
}

// candidatesOf returns the built-in scheduler's candidates, in an order that differs between farms. version is
// scheduler.View.Version.
func candidatesOf(
	by *scheduler.ByLabel, farmID string, snap *reconcile.Facts, lot *reconcile.Lot, version uint64,
) (*candidates, error) {
	spread := lot.Preferences.Spread.Label
	e, err := by.Select(scheduler.Query{
		Selector: snap.RC.NodeSelector, Spread: spread, Containers: lot.Rule.Containers, Epoch: snap.Epoch,
		Nodes: snap.Nodes, Version: version,
	})
	if err != nil {
		return nil, err
	}
	h := fnv.New64a()
	_, _ = fmt.Fprint(h, farmID, snap.RC.ID, snap.Now.UnixNano()) // writing to a hash cannot fail
	found := newCandidates(snap, lot, maps.Clone(e.Others), spread)
	ranks := found.ranking(snap, lot)
	switch {
	case found.spread != "":
		found.spreadOver(e.Groups, h.Sum64(), ranks)
		found.mine = by.First
	case len(e.Groups) > 0 && ranks != nil:
		first, rest := placement.NewWalk(e.Groups[0].First, h.Sum64()), placement.NewWalk(e.Groups[0].Rest, h.Sum64())
		names := slices.Concat(slices.Collect(first.All()), slices.Collect(rest.All()))
		slices.SortStableFunc(names, ranks)
		found.pool = scheduler.Pool{Preferred: scheduler.Preference{Order: placement.InOrder(names)}}
		found.mine = by.First
	case len(e.Groups) > 0:
		found.inOrder(placement.NewWalk(e.Groups[0].First, h.Sum64()), placement.NewWalk(e.Groups[0].Rest, h.Sum64()))
	}
	if found.pack {
		found.mine = nil // with pack, it does not matter which farm tries a node first
	}
	return found, nil
}

// newCandidates returns candidates without nodes.
func newCandidates(s *reconcile.Facts, lot *reconcile.Lot, others scheduler.Reasons, spread string) *candidates {
	if others == nil {
		others = scheduler.Reasons{}
	}
	found := &candidates{
		others: others, spread: spread, perNode: map[string]int{}, perGroup: map[string]int{},
		avoid: map[pod.Identity][]string{}, fallback: map[string]bool{}, vacant: map[string][]pod.Identity{},
	}
	for i := range s.Pods {
		if p := &s.Pods[i]; s.Vacant(p) {
			found.vacant[p.Node] = append(found.vacant[p.Node], p.Identity)
		} else {
			found.perNode[p.Node]++
		}
		found.avoid[s.Pods[i].Identity] = s.AvoidedBy(&s.Pods[i])
	}
	found.count(s, lot, nil)
	return found
}

func (c *candidates) inOrder(preferred, rest placement.Walk) {
	c.pool = scheduler.Pool{Preferred: scheduler.Preference{Order: preferred}, Rest: scheduler.Preference{Order: rest}}
	if len(c.perNode) == 0 {
		return
	}
	// Assign would choose nodes with few pods of this controller anyway.
	for _, p := range []*scheduler.Preference{&c.pool.Preferred, &c.pool.Rest} {
		names := slices.Collect(p.Order.All())
		slices.SortStableFunc(names, func(a, b string) int { return c.perNode[a] - c.perNode[b] })
		p.Order = placement.InOrder(names)
	}
}

// spreadOver adds the nodes of groups, all to pool.Preferred, because the group with the fewest pods may have only
// nodes that the farm does not prefer.
func (c *candidates) spreadOver(groups []scheduler.Group, seed uint64, ranks func(a, b string) int) {
	turns := placement.NewSpread(groups, c.perGroup, c.perNode, seed)
	if ranks != nil {
		turns.Sort(ranks)
	}
	c.pool = scheduler.Pool{Preferred: scheduler.Preference{Turns: turns}}
	for _, g := range groups {
		c.groups = append(c.groups, g.Value)
	}
}

// ranking returns how to rank nodes before their reservations are read, nil for no ranking. With pack, all farms have
// the same order, so that they fill the same nodes.
func (c *candidates) ranking(s *reconcile.Facts, lot *reconcile.Lot) func(a, b string) int {
	preferences := &lot.Preferences
	for _, p := range preferences.Affinity {
		_ = c.prefers.Prefer(p.Selector, p.Weight) // validated with the document; an invalid selector is ignored
	}
	c.pack = preferences.Placing == rc.PlacePack
	if !c.pack && len(c.prefers) == 0 {
		return nil
	}
	scores := map[string]int{}
	for name, v := range s.Nodes {
		scores[name] = c.prefers.Score(v)
	}
	return func(a, b string) int {
		order := c.perNode[a] - c.perNode[b]
		if c.pack {
			order = cmp.Or(-order, cmp.Compare(a, b))
		}
		return cmp.Or(scores[b]-scores[a], order)
	}
}

// stays guesses whether a pod is not moved.
func stays(s *reconcile.Snapshot, p *reconcile.Pod) bool {
	on := s.Nodes[p.Node]
	return p.RunState == pod.Running && (on == nil || on.Alive || !on.MachineLost)
}

// staying returns the nodes of the pods that run and need no other node by the plan; without a plan, by the guess
// stays.
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

// count sets perGroup and tally from the pods that are not moved.
func (c *candidates) count(s *reconcile.Facts, lot *reconcile.Lot, plan *reconcile.Plan) {
	if c.spread == "" {
		return
	}
	clear(c.perGroup)
	preferences := &lot.Preferences
	c.tally = scheduler.NewTally(c.spread, preferences.Spread.Held(), c.groups)
	for id, name := range staying(&s.Snapshot, plan) {
		if !preferences.Count(id.Role) {
			continue
		}
		group := scheduler.GroupOf(s.Nodes[name], c.spread)
		c.perGroup[group]++
		c.tally.Add(group, 1)
	}
}

func (c *candidates) placed(s *reconcile.Facts, nodeName string) {
	c.perNode[nodeName]++
	if c.spread != "" {
		group := scheduler.GroupOf(s.Nodes[nodeName], c.spread)
		c.perGroup[group]++
		c.tally.Add(group, 1)
	}
}

// skip skips the unfit nodes, and those for which full, if it is not nil, returns true.
func (c *candidates) skip(full func(name string) bool) {
	skip := full
	if unfit := c.unfit; len(unfit) > 0 {
		skip = func(name string) bool { return unfit[name] || full != nil && full(name) }
	}
	c.pool.Preferred.Skip, c.pool.Rest.Skip = skip, skip
}

// withoutVacant leaves out the shares of vacant pods, because such a pod may return to its share.
func (c *candidates) withoutVacant(nodeName string, res node.Reservation) node.Reservation {
	vacant := c.vacant[nodeName]
	if len(vacant) == 0 {
		return res
	}
	res = res.Clone()
	for _, id := range vacant {
		delete(res.Claims, id.String())
	}
	return res
}

func (c *candidates) only(look placement.Look) {
	for _, p := range []*scheduler.Preference{&c.pool.Preferred, &c.pool.Rest} {
		*p = scheduler.Preference{Order: placement.InOrder(look.Names(slices.Collect(p.All())))}
	}
}
