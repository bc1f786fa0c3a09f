package plan

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/rcfarm/rcfarm/pkg/farm/placement"
	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/rollout"
	"github.com/rcfarm/rcfarm/pkg/scheduler"
)

// room checks whether the nodes have the capacity for a plan, and adds warnings. It returns a *RefusedError if no pod
// of a rollout would find a node, or if the first stage lacks capacity. It does not refuse a new service, because nodes
// may be added.
func (p *planner) room(c course, out *Plan) error {
	if p.State == nil || c == allow {
		return nil
	}
	pods := p.placed()
	total := p.asked(c, pods)
	if total == 0 && p.spec.Mode != rc.EachNode {
		return nil
	}
	end := p.end(c, pods)
	moved := c == update && len(pods) > 0 && p.spec.NodeSelector != p.base.Spec.NodeSelector
	switch {
	case end.Pods == 0 && (c.inPlace() && (total > 0 || len(pods) > 0) || moved):
		return p.noRoom(end, 0, "no pod can be upgraded where it is, and no node takes a new one (%s)", end)
	case c == recreate && end.Pods == 0:
		return p.noRoom(end, 0, "no node takes a pod of the new revision, not even without those that it has now (%s)",
			end)
	case c == recreate:
		if err := p.firstStage(pods, end); err != nil {
			return err
		}
	}
	out.shrinks = end.Pods < max(1, min(total, len(pods)))
	switch {
	case total == 0:
		out.Warnings = append(out.Warnings, fmt.Sprintf("no node asks for a pod (%s)", end))
	case end.Pods < total:
		out.Warnings = append(out.Warnings, fmt.Sprintf("there is room for %d of %d pods (%s)", end.Pods, total, end))
	case c == recreate:
		out.stalls = p.stalls(pods)
	}
	return nil
}

// asked returns how many pods there should be. With a pod on each node, these are the nodes where a pod is kept, and
// those that would get one with enough capacity.
func (p *planner) asked(c course, pods []placed) int {
	if p.spec.Mode != rc.EachNode {
		return p.spec.Total()
	}
	selector, err := rc.ParseSelector(p.spec.NodeSelector)
	if err != nil {
		return 0
	}
	stay, _ := p.staying(c, pods)
	on := map[string]bool{}
	for _, at := range stay {
		on[at.node] = true
	}
	for name, v := range p.State.Nodes {
		if v.Alive && v.Eligible() && v.Matches(selector) {
			on[name] = true
		}
	}
	return len(on)
}

// stalls returns why a middle stage of a rollout lacks capacity, although first stage and end have enough; nil if none
// does.
func (p *planner) stalls(pods []placed) *RefusedError {
	if p.State.Elsewhere || len(pods) == 0 {
		return nil
	}
	at := p.succession(pods).stall
	if at == nil {
		return nil
	}
	err := p.noRoom(at.room, 0,
		"with %s of the new revision and %d others left, the strategy %s has room for %d of the next %d (%s)",
		field.Count(at.has, "pod"), at.old, p.knobs.StrategyName(), at.room.Pods, at.wants, at.room)
	refused, _ := errors.AsType[*RefusedError](err)
	return refused
}

// firstStage returns a *RefusedError if a new revision's first stage lacks capacity.
func (p *planner) firstStage(pods []placed, end Room) error {
	want := p.surge()
	if stops := p.stops(); stops > 0 {
		if room := p.roomAfter(pods, stops, 1); room.Pods == 0 {
			return p.noRoom(end, 0,
				"the strategy %s stops %s before it starts others, and the nodes have room for none then (%s)",
				p.knobs.StrategyName(), field.Count(stops, "pod"), room)
		}
		return nil
	}
	room := p.roomAfter(pods, 0, want)
	if room.Pods >= want {
		return nil
	}
	return p.noRoom(end, room.Pods,
		"the strategy %s starts %s before it stops others, and the nodes have room for %d (%s)",
		p.knobs.StrategyName(), field.Count(want, "pod"), room.Pods, room)
}

// roomAfter returns State.Room after some pods have stopped. Surplus pods that a replaced or aborted rollout left stop
// before them. Pods that are surplus only because the new count is lower are kept until the new pods are available.
func (p *planner) roomAfter(pods []placed, stopped, wanted int) Room {
	gone := min(len(pods), max(0, len(pods)-p.kept())+stopped)
	return p.State.without(pods[:gone]).Room(p.spec, wanted)
}

// kept returns how many old pods are kept until new ones are available; with blue-green at least those with the
// service's name.
func (p *planner) kept() int {
	total := p.spec.Total()
	switch {
	case p.knobs.StrategyName() == rollout.BlueGreenStrategy && p.svc != nil:
		named := 0
		for i := range p.svc.Controllers {
			if r := &p.svc.Controllers[i].RC; r.DeletedAt == nil && (r.Service == nil || !r.Service.Standby) {
				named += r.Desired()
			}
		}
		return max(total, named)
	case p.current != nil:
		return max(total, p.current.RC.Desired())
	default:
		return total
	}
}

// end returns how many pods of the document run after the rollout.
func (p *planner) end(c course, pods []placed) Room {
	there, gone := p.staying(c, pods)
	after := p.State.without(gone)
	stuck := newRoom()
	if c.inPlace() {
		stuck = p.upgradeAll(after, there)
	}
	room := after.place(p.spec, p.missing(p.wanted(), there), there)
	room.Pods += len(there) - stuck.Pods
	if p.spec.Mode == rc.EachNode { // a node that has its pod already needs no capacity
		delete(room.Reasons, scheduler.MaxPerNode)
	}
	room.also(stuck)
	return room
}

// staying separates the pods that the controller keeps from those that stop. A new revision keeps none. Otherwise
// surplus pods stop, and pods that must leave their nodes. With a pod on each node, all pods of a node but one are
// surplus.
func (p *planner) staying(c course, pods []placed) (stay, gone []placed) {
	if c == first || c == recreate {
		return nil, pods
	}
	left, each := map[string]int{}, p.spec.Mode == rc.EachNode // left: pods that a role, or a node, may still have
	for _, g := range p.spec.Groups() {
		left[g.Role] = *g.Count
	}
	for name := range p.State.Nodes {
		if each {
			left[name] = 1
		}
	}
	selector, err := rc.ParseSelector(p.spec.NodeSelector)
	for _, at := range slices.Backward(pods) {
		v := p.State.Nodes[at.node]
		leaves := v != nil && err == nil && p.spec.Allocation() != rc.Static && (v.MustLeave() || !v.MayMatch(selector))
		of := at.id.Role
		if each {
			of = at.node
		}
		if at.id.RCID != p.moving(c).RC.ID || left[of] == 0 || leaves {
			gone = append(gone, at)
			continue
		}
		stay, left[of] = append(stay, at), left[of]-1
	}
	return stay, gone
}

// wanted returns how many pods there should be at most. In the mode each-node, the number of matching nodes decides,
// and the document does not bound it. So wanted then returns rc.MaxReplicas.
func (p *planner) wanted() int {
	if p.spec.Mode == rc.EachNode {
		return rc.MaxReplicas
	}
	return p.spec.Total()
}

// missing returns, by group in rolling order, how many of the pods do not exist yet. there has the existing ones.
func (p *planner) missing(pods int, there []placed) []rc.ReplicaGroup {
	if p.spec.Mode == rc.EachNode {
		left := pods - len(there)
		return []rc.ReplicaGroup{{Role: rc.DefaultRole, Count: &left}}
	}
	groups, err := rollout.CountsAt(pods, p.spec.Groups(), p.spec.Update.GroupOrder)
	if err != nil {
		return nil // such an order is refused
	}
	for i := range groups {
		for _, at := range there {
			if at.id.Role == groups[i].Role {
				*groups[i].Count--
			}
		}
	}
	return groups
}

// stuck returns how many pods have no capacity for their new version on their nodes.
func (p *planner) stuck(pods []placed) Room {
	stay, gone := p.staying(relimit, pods)
	return p.upgradeAll(p.State.without(gone), stay)
}

// upgradeAll reserves the share of each pod's new version on its node, because the next pod there must not get it. It
// returns the pods that keep their share for lack of capacity: a farm reserves the new version in addition to the old
// one. Numbers of dynamic ports do not change.
func (p *planner) upgradeAll(after *State, pods []placed) Room {
	stuck := newRoom()
	for _, at := range pods {
		v, taken := after.Nodes[at.node], after.Taken[at.node]
		if v == nil {
			continue // the pod keeps its share
		}
		claim := placement.RuleFor(scheduler.Rule{}, manifestOf(p.spec.Pod, p.spec.ReplicaGroups, at.id.Role)).Ask
		claim.Pod = at.id
		both := claim.With(taken.Claims[at.id.String()])
		if reason := scheduler.Fits(v, taken, at.id, both); reason != "" {
			stuck.Pods++
			stuck.Reasons[reason]++
			after.clash(&stuck, at.node, taken, both)
			continue
		}
		claim.Ports = both.Ports
		after.Taken[at.node] = taken.Clone()
		after.Taken[at.node].Claims[at.id.String()] = claim
	}
	return stuck
}

// placed returns the service's placed pods in the order in which they stop: revisions that stand by, then the newest
// revisions; then roles in the order of the controller. Within a role, pods on nodes that take no new pods come first,
// then the highest index.
func (p *planner) placed() []placed {
	if p.svc == nil {
		return nil
	}
	pods := map[string][]placed{} // by controller
	for _, name := range slices.Sorted(maps.Keys(p.State.Taken)) {
		for _, claim := range p.State.Taken[name].Claims {
			if id := claim.Pod; p.svc.Controller(id.RCID) != nil {
				pods[id.RCID] = append(pods[id.RCID], placed{name, id})
			}
		}
	}
	closed := func(at placed) int {
		if v := p.State.Nodes[at.node]; v != nil && v.Alive && v.Eligible() {
			return 1
		}
		return 0
	}
	var all []placed
	for _, id := range p.leaving() {
		groups := p.svc.Controller(id).RC.ReplicaGroups
		rank := func(at placed) int {
			return slices.IndexFunc(groups, func(g rc.ReplicaGroup) bool { return g.Role == at.id.Role })
		}
		all = append(all, slices.SortedFunc(slices.Values(pods[id]), func(a, b placed) int {
			return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(closed(a), closed(b)),
				cmp.Compare(b.id.Index, a.id.Index),
				a.id.Compare(b.id), cmp.Compare(a.node, b.node))
		})...)
	}
	return all
}

// leaving returns the controllers in the order in which their pods stop: those that stand by first, and then the
// newest.
func (p *planner) leaving() []string {
	var aside, ids []string
	for _, c := range slices.Backward(p.svc.Controllers) {
		if c.RC.Service != nil && c.RC.Service.Standby {
			aside = append(aside, c.RC.ID)
		} else {
			ids = append(ids, c.RC.ID)
		}
	}
	return append(aside, ids...)
}
