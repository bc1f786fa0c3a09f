package farm

import (
	"context"
	"slices"

	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/placement"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/reconcile"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// candidatesPerPod is how many nodes' reservations are read for each pod to be placed.
const candidatesPerPod = 3

// minCandidates makes sure that a few full nodes do not hide a free one.
const minCandidates = 12

// candidates are the nodes that a pass may place pods on.
type candidates struct {
	pool    pool              // not taken yet
	others  placement.Reasons // why the other nodes are not among them
	perNode map[string]int    // pods of the controller
	avoid   map[pod.Identity][]string
	foreign map[string]bool // taken, and other farms try them first
	guessed []string        // taken before the plan was computed, until they are used
	early   map[string]store.Rec[node.Reservation]
}

// guess takes nodes before the plan is computed where it will most likely ask for some: what is taken on them comes with
// everything else then. A scheduler that is not ours may want to see the whole snapshot and is asked later.
func (c *ReplicationController) guess(ctx context.Context, v *view) error {
	s := v.snapshot
	if _, builtIn := c.farm.scheduler.(*selecting); !builtIn || s.Hold != "" || s.RC.Disabled || s.RC.DeletedAt != nil {
		return nil
	}
	n := s.RC.Desired()
	for i := range s.Pods {
		if on := s.Nodes[s.Pods[i].Node]; s.Pods[i].RunState == pod.Running && (on == nil || on.Alive || !on.Gone) {
			n--
		}
	}
	if n <= 0 {
		return nil
	}
	if err := c.findNodes(ctx, v); err != nil {
		return err
	}
	v.nodes.guessed = c.takeNodes(ctx, v, n)
	return nil
}

// findNodes asks the scheduler.
func (c *ReplicationController) findNodes(ctx context.Context, v *view) (err error) {
	s := v.snapshot
	found := &candidates{perNode: map[string]int{}, avoid: map[pod.Identity][]string{}, foreign: map[string]bool{}}
	if own, builtIn := c.farm.scheduler.(*selecting); builtIn {
		var e choice
		e, err = own.split(s, v.nodesVersion)
		found.pool, found.others = pool{preference{order: e.share}, preference{order: e.rest}}, e.others
	} else {
		var names []string
		names, found.others, err = c.farm.scheduler.EligibleNodes(ctx, s)
		found.pool.share.order = placement.InOrder(names)
	}
	if err != nil {
		return err
	}
	if found.others == nil {
		found.others = placement.Reasons{}
	}
	for i := range s.Pods {
		found.perNode[s.Pods[i].Node]++
		found.avoid[s.Pods[i].Identity] = nodesOf(&s.Pods[i])
	}
	if len(found.perNode) > 0 {
		// Nodes with few pods of this controller first: reading the others would be in vain.
		for _, p := range []*preference{&found.pool.share, &found.pool.rest} {
			names := slices.Collect(p.order.All())
			slices.SortStableFunc(names, func(a, b string) int { return found.perNode[a] - found.perNode[b] })
			p.order = placement.InOrder(names)
		}
	}
	v.nodes = found
	return nil
}

// takeNodes takes the next nodes for some pods, and notes them in the ledger.
func (c *ReplicationController) takeNodes(ctx context.Context, v *view, pods int) []string {
	some, foreign := c.farm.ledger.take(ctx, &v.nodes.pool, pods, len(v.taken) == 0)
	for _, name := range foreign {
		v.nodes.foreign[name] = true
	}
	v.taken = append(v.taken, some...)
	return some
}

// nextNodes returns nodes for some pods with what is taken on them; none when there are no more.
func (c *ReplicationController) nextNodes(ctx context.Context, v *view, pods int) (names []string, taken map[string]node.Reservation, err error) {
	recs := v.nodes.early
	if names = v.nodes.guessed; len(names) == 0 {
		names = c.takeNodes(ctx, v, pods)
		d, err := c.farm.cfg.Store.ReadDetails(ctx, store.Wanted{Reservations: names}, false)
		if err != nil {
			return nil, nil, err
		}
		c.keepReservations(v, d)
		recs = d.Reservations
	}
	v.nodes.guessed, v.nodes.early = nil, nil
	taken = make(map[string]node.Reservation, len(names))
	for _, name := range names {
		taken[name] = recs[name].Value
	}
	return names, taken, nil
}

// giveBack lets other passes have the nodes that this one does not write to.
func (c *ReplicationController) giveBack(v *view, changes []reconcile.Change) {
	used := map[string]bool{}
	for i := range changes {
		for _, r := range changes[i].Reserve {
			used[r.Node] = true
		}
	}
	var unused []string
	v.taken = slices.DeleteFunc(v.taken, func(name string) bool {
		if !used[name] {
			unused = append(unused, name)
		}
		return !used[name]
	})
	c.farm.ledger.giveBack(unused)
}
