package farm

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/rcfarm/rcfarm/pkg/farm/placement"
	"github.com/rcfarm/rcfarm/pkg/farm/reconcile"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/scheduler"
	"github.com/rcfarm/rcfarm/pkg/store"
	"github.com/rcfarm/rcfarm/pkg/wait"
)

// scarcity is placement.Scarcity for all workers.
type scarcity struct {
	mu sync.Mutex
	s  placement.Scarcity
}

// with does something with what is remembered.
func (s *scarcity) with(do func(*placement.Scarcity)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	do(&s.s)
}

func (s *scarcity) known(shape placement.Shape, now time.Time) (look placement.Look) {
	s.with(func(s *placement.Scarcity) { look = s.Known(shape, now) })
	return look
}

// mark is asked before the nodes are taken that room is looked for on.
func (s *scarcity) mark() (at uint64) {
	s.with(func(s *placement.Scarcity) { at = s.Mark() })
	return at
}

// changed notes nodes that may have room now.
func (s *scarcity) changed(nodes []string) {
	if len(nodes) > 0 {
		s.with(func(s *placement.Scarcity) { s.Changed(nodes) })
	}
}

// shapeOf returns the shape of the pods that a plan adds. The controller's own pods keep it from using room that others may use where
// it limits how many a node has, and where a pod that moves must not come back.
func shapeOf(s *reconcile.Snapshot, adds []pod.Identity) placement.Shape {
	shape := placement.ShapeOf(s.RC.NodeSelector, reconcile.NewClaim(s, pod.Identity{}), len(s.Placing().DynamicPorts()))
	if s.RC.MaxPerNode > 0 {
		shape.RCID = s.RC.ID
	}
	if wishes := s.Wishes(); wishes.Spread.Held() > 0 { // what keeps it from using room depends on where its pods are
		perGroup := map[string]int{}
		for i := range s.Pods {
			if p := &s.Pods[i]; wishes.Count(p.Role) {
				perGroup[scheduler.GroupOf(s.Nodes[p.Node], wishes.Spread.Label)]++
			}
		}
		shape.RCID, shape.Avoid = s.RC.ID, fmt.Sprint(wishes.Alone, wishes.Spread, perGroup)
	}
	if len(s.Pods) == 0 {
		return shape
	}
	added := setOf(adds)
	for i := range s.Pods {
		if p := &s.Pods[i]; added[p.Identity] {
			shape.RCID = s.RC.ID
			for _, a := range s.RC.Avoided(&p.Placement, s.Now) {
				shape.Avoid += a.Node + " "
			}
		}
	}
	return shape
}

// finder finds nodes with room for the pods of one pass.
type finder struct {
	*reading
	version  uint64                                 // of the snapshot's nodes
	mark     uint64                                 // nodes told of later may have room that this pass does not see
	reserved map[string]store.Rec[node.Reservation] // read so far, by node
	nodes    *candidates                            // for new pods; nil until they are looked for
	taken    []string                               // from the ledger, until the pass is over
}

// roomKnown reports whether a guess which nodes to read beforehand is worth it: it is known that no node has room otherwise.
func (f *finder) roomKnown(s *reconcile.Snapshot) bool {
	if s.Manifest == nil {
		return true // it is not known what the pods need
	}
	shape := shapeOf(s, nil)
	own := shape
	own.RCID = s.RC.ID
	return f.kit.scarcity.known(shape, s.Now).All && f.kit.scarcity.known(own, s.Now).All
}

// beginLook says where room for the plan's adds is to be looked for. A scheduler that is not ours is asked each time.
func (f *finder) beginLook(plan *reconcile.Plan) placement.Look {
	look := placement.Look{All: true}
	if f.kit.outside == nil {
		shape := shapeOf(f.snapshot, plan.Adds)
		f.kit.scarcity.with(func(known *placement.Scarcity) { look = known.Begin(shape, f.snapshot.Now, f.mark) })
	}
	return look
}

// search finds nodes for the plan's adds and places them there. It returns those left over, how long to wait before all nodes are
// looked at again, and why none has room.
func (f *finder) search(ctx context.Context, plan *reconcile.Plan, look placement.Look) (left []pod.Identity, wait time.Duration, why scheduler.Reasons, err error) {
	s, left := f.snapshot, plan.Adds
	if look.All {
		f.putOff()
	} else {
		f.nodes.only(look)
		f.nodes.unfit = s.LastChoice()
		f.nodes.skip(nil)
	}
	for i := range s.Pods { // without books nobody needs to be told: it is the last choice anyway
		if s.Vacant(&s.Pods[i]) {
			delete(f.nodes.avoid, s.Pods[i].Identity)
		}
	}
	f.nodes.count(s, plan)
	for first := true; len(left) > 0 && (!f.nodes.pool.Empty() || len(f.nodes.guessed) > 0); first = false {
		unseen := look.All && !f.nodes.last && (first || f.kit.usage.tight(len(s.Nodes), s.Now)) // those are known to be full that are
		names, reservations, err := f.nextNodes(ctx, len(left), unseen)
		if err != nil {
			return nil, 0, nil, err
		}
		if len(names) == 0 && !f.putOn() {
			break
		}
		if left = f.place(plan, left, names, reservations); len(left) > 0 {
			f.kit.usage.saw(f.reserved, s.Now)
		}
		f.giveBack(plan.Changes) // what has no room is not kept from others while this one looks on
	}
	if f.nodes.strict {
		return left, reconcile.RoomRetry, f.nodes.others, nil
	}
	shape := shapeOf(s, plan.Adds)
	f.kit.scarcity.with(func(known *placement.Scarcity) {
		switch {
		case len(left) == 0:
			known.Found(shape)
		case look.All:
			wait, why = known.Short(shape, s.Now, f.mark, f.nodes.looked, f.nodes.others), f.nodes.others
		default:
			wait, why = look.Wait, look.Reasons
		}
	})
	return left, wait, why, nil
}

// putOff has those nodes not tried for now that have no room for the pods as far as this farm knows, and those on
// which pods of the controller never became available.
func (f *finder) putOff() {
	n, s := f.nodes, f.snapshot
	if n.last {
		return
	}
	n.unfit = s.LastChoice()
	if n.strict {
		n.skip(nil)
		return
	}
	n.skip(f.kit.usage.full(s.Nodes, reconcile.NewClaim(s, pod.Identity{}), len(s.Placing().DynamicPorts()), s.Now))
}

// skip has nodes not tried for now: those given, and the unfit ones; nil: no others.
func (n *candidates) skip(full func(name string) bool) {
	skip := full
	if unfit := n.unfit; len(unfit) > 0 {
		skip = func(name string) bool { return unfit[name] || full != nil && full(name) }
	}
	n.pool.Preferred.Skip, n.pool.Rest.Skip = skip, skip
}

// putOn has nodes tried that were put off: those that are full as far as is known, then those that are unfit. It
// reports whether there are some.
func (f *finder) putOn() bool {
	n := f.nodes
	skipped := n.pool.Preferred.Skip != nil && !n.pool.Empty()
	if n.last {
		n.unfit = nil
	}
	n.last = true
	n.skip(nil)
	return skipped
}

// place places pods on some nodes as far as they fit, and returns those left over.
func (f *finder) place(plan *reconcile.Plan, pods []pod.Identity, names []string, reservations map[string]node.Reservation) []pod.Identity {
	s, nodes := f.snapshot, f.nodes
	assigned, refused := placement.Assign(placement.Request{
		Pods: pods, Want: reconcile.NewClaim(s, pod.Identity{}), Dynamic: s.Placing().DynamicPorts(), MaxPerNode: s.RC.MaxPerNode, PerNode: nodes.perNode, Avoid: nodes.avoid,
		Spread: nodes.spread, PerGroup: nodes.perGroup, Tally: nodes.tally, Preferences: nodes.prefers, Pack: nodes.pack, Strict: nodes.strict, Order: names, Reluctant: nodes.fallback, Nodes: s.Nodes, Reservations: reservations,
	})
	placer := reconcile.NewPlacer(s)
	plan.Changes = slices.Grow(plan.Changes, len(assigned))
	for _, a := range assigned {
		plan.Changes = append(plan.Changes, placer.On(a.Pod, a.Node))
		nodes.placed(s, a.Node)
	}
	for reason, n := range refused {
		nodes.others[reason] += n
	}
	return unplaced(pods, assigned)
}

// nextNodes returns nodes for some pods with what is taken on them; none when there are no more. Those that come first are
// taken unseen, and most often have room.
func (f *finder) nextNodes(ctx context.Context, pods int, unseen bool) (names []string, taken map[string]node.Reservation, err error) {
	recs := f.nodes.early
	if names = f.nodes.guessed; len(names) == 0 {
		if unseen {
			names = f.takeNodes(ctx, pods)
		} else if names, err = f.lookAround(ctx, pods); err != nil {
			return nil, nil, err
		}
		d, err := f.kit.reads.ReadDetails(ctx, store.Wanted{Reservations: names, Nodes: len(f.snapshot.Nodes)}, false)
		if err != nil {
			return nil, nil, err
		}
		f.keep(d)
		recs = d.Reservations
	}
	f.nodes.guessed, f.nodes.early = nil, nil
	taken = make(map[string]node.Reservation, len(names))
	for _, name := range names {
		taken[name] = recs[name].Value
	}
	return names, taken, nil
}

// lookAtOnce is how many nodes' reservations are read together while room is looked for: what one request may hold.
const lookAtOnce = 128

// lookAround reads what is taken on the nodes that this pass has not seen, in their order, until some seem to have room for pods, and
// takes those. It holds none while it looks: others would wait for nodes that are of no use to this one.
func (f *finder) lookAround(ctx context.Context, pods int) ([]string, error) {
	s, enough := f.snapshot, max(scheduler.MinCandidates, pods)
	rule := scheduler.Rule{MaxPerNode: s.RC.MaxPerNode, Ask: reconcile.NewClaim(s, pod.Identity{}), Dynamic: s.Placing().DynamicPorts()}
	var found, fallback []string
	look := func(from *scheduler.Preference, rest bool) error {
		for names := range slices.Chunk(slices.Collect(from.All()), lookAtOnce) {
			if len(found) >= enough {
				return nil
			}
			started, before := time.Now(), len(found)
			from.Take(names)
			f.nodes.looked += len(names)
			d, err := f.kit.reads.ReadDetails(ctx, store.Wanted{Reservations: names}, false)
			if err != nil {
				return err
			}
			f.kit.usage.saw(d.Reservations, s.Now)
			for _, name := range names {
				if d.Unreadable[name] == nil && disagrees(s.Nodes[name], d.Reservations[name].Value) {
					f.kit.mismatched.add(name)
				}
				at := scheduler.Candidate{View: s.Nodes[name], Reservation: f.nodes.withoutVacant(name, d.Reservations[name].Value), Pods: f.nodes.perNode[name]}
				reason := rule.Refuses(at, pod.Identity{})
				if reason != "" {
					f.nodes.others[reason]++
					continue
				}
				if found = append(found, name); rest || f.nodes.mine != nil && !f.nodes.mine(name) {
					fallback = append(fallback, name)
				}
			}
			if len(found) == before { // it may be a look at all nodes: it rests as long as it reads, and others are placed meanwhile
				if err := wait.Pause(ctx, time.Since(started)); err != nil {
					return err
				}
			}
		}
		return nil
	}
	if err := look(&f.nodes.pool.Preferred, false); err != nil {
		return nil, err
	}
	if err := look(&f.nodes.pool.Rest, true); err != nil {
		return nil, err
	}
	for _, name := range fallback {
		f.nodes.fallback[name] = true
	}
	f.kit.ledger.Reserve(found)
	f.taken = append(f.taken, found...)
	return found, nil
}

// withoutVacant returns a reservation without the shares of pods that are to be placed again: each may have its own.
func (n *candidates) withoutVacant(nodeName string, res node.Reservation) node.Reservation {
	vacant := n.vacant[nodeName]
	if len(vacant) == 0 {
		return res
	}
	res = res.Clone()
	for _, id := range vacant {
		delete(res.Claims, id.String())
	}
	return res
}

// only leaves the nodes that a look is about.
func (n *candidates) only(look placement.Look) {
	for _, p := range []*scheduler.Preference{&n.pool.Preferred, &n.pool.Rest} {
		*p = scheduler.Preference{Order: placement.InOrder(look.Names(slices.Collect(p.All())))}
	}
}

// frees reports whether changes give room back.
func frees(changes []reconcile.Change) bool {
	return slices.ContainsFunc(changes, func(ch reconcile.Change) bool { return len(freedBy(&ch)) > 0 })
}

// freedBy returns the nodes where a change gives room back.
func freedBy(ch *reconcile.Change) []string {
	var names []string
	for _, r := range ch.Reserve {
		if r.Claim == nil || ch.Action == reconcile.FinishUpgrade {
			names = append(names, r.Node)
		}
	}
	return names
}
