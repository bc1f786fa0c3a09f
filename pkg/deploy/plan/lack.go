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

// room fills in what a plan says about room. It returns a *RefusedError where no pod of a rollout would find a place,
// or those of its first stage would not. A new service is deployed all the same: nodes may come.
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
	case end.Pods == 0 && (c == inPlace && (total > 0 || len(pods) > 0) || moved):
		return p.noRoom(end, 0, "no pod can be upgraded where it is, and no node takes a new one (%s)", end)
	case c == recreate && end.Pods == 0:
		return p.noRoom(end, 0, "no node takes a pod of the new revision, not even without those that it has now (%s)", end)
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

// asked returns how many pods there are to be: where each node has one, one on each node where one stays, and on each
// other node that would get one if it had room.
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

// stalls returns why a rollout that has room for its first stage and at its end has none between them, nil where it
// has.
func (p *planner) stalls(pods []placed) *RefusedError {
	if p.State.Elsewhere || len(pods) == 0 {
		return nil
	}
	at := p.succession(pods).stall
	if at == nil {
		return nil
	}
	err := p.noRoom(at.room, 0, "with %s of the new revision and %d others left, the strategy %s has room for %d of the next %d (%s)",
		field.Count(at.has, "pod"), at.old, p.knobs.Kind(), at.room.Pods, at.wants, at.room)
	refused, _ := errors.AsType[*RefusedError](err)
	return refused
}

// firstStage returns a *RefusedError where the first stage of a new revision has no room.
func (p *planner) firstStage(pods []placed, end Room) error {
	want := p.surge()
	if stops := p.stops(); stops > 0 {
		if room := p.roomAfter(pods, stops, 1); room.Pods == 0 {
			return p.noRoom(end, 0,
				"the strategy %s stops %s before it starts others, and the nodes have room for none then (%s)",
				p.knobs.Kind(), field.Count(stops, "pod"), room)
		}
		return nil
	}
	room := p.roomAfter(pods, 0, want)
	if room.Pods >= want {
		return nil
	}
	return p.noRoom(end, room.Pods,
		"the strategy %s starts %s before it stops others, and the nodes have room for %d (%s)",
		p.knobs.Kind(), field.Count(want, "pod"), room.Pods, room)
}

// roomAfter is State.Room after some pods have stopped, and those that go before them: a replaced or aborted rollout
// may leave more pods than the service has in effect and is to have. Pods that only a lower number makes too many stay
// until the new pods serve.
func (p *planner) roomAfter(pods []placed, stopped, wanted int) Room {
	gone := min(len(pods), max(0, len(pods)-p.kept())+stopped)
	return p.State.without(pods[:gone]).Room(p.spec, wanted)
}

// kept returns how many old pods stay until new ones serve: those in the service's name as long as blue-green adds all
// new ones beside them.
func (p *planner) kept() int {
	total := p.spec.Total()
	switch {
	case p.knobs.Kind() == rollout.BlueGreenStrategy && p.svc != nil:
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

// end returns how many pods run as the document says when all is done: those that stay, and the others that find a
// place.
func (p *planner) end(c course, pods []placed) Room {
	there, gone := p.staying(c, pods)
	after := p.State.without(gone)
	stuck := Room{Reasons: scheduler.Reasons{}, holders: map[string][]string{}}
	if c == inPlace {
		stuck = p.upgradeAll(after, there)
	}
	room := after.place(p.spec, p.missing(p.wanted(), there), there)
	room.Pods += len(there) - stuck.Pods
	if p.spec.Mode == rc.EachNode { // a node that has its pod lacks no room
		delete(room.Reasons, scheduler.MaxPerNode)
	}
	room.also(stuck)
	return room
}

// staying tells the pods that stay pods of their controller from those that go. In place, and where only counts
// change, those go that are too many, and those that have to leave their nodes. Where each node has one, the others on
// that node are too many.
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

// wanted returns how many pods there are to be at most: as many as nodes take one, where each node has one.
func (p *planner) wanted() int {
	if p.spec.Mode == rc.EachNode {
		return rc.MaxReplicas
	}
	return p.spec.Total()
}

// missing returns how many pods of each group have no place yet when there are to be so many in all, the groups in the
// order in which they roll.
func (p *planner) missing(pods int, there []placed) []rc.ReplicaGroup {
	if p.spec.Mode == rc.EachNode {
		left := pods - len(there)
		return []rc.ReplicaGroup{{Role: rc.DefaultRole, Count: &left}}
	}
	groups, err := rollout.FirstOf(pods, p.spec.Groups(), p.spec.Update.GroupOrder)
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

// stuck returns how many pods have no room for their new version where they are.
func (p *planner) stuck(pods []placed) Room {
	stay, gone := p.staying(inPlace, pods)
	return p.upgradeAll(p.State.without(gone), stay)
}

// upgradeAll gives pods what their new version takes. Those that it returns are stuck.
func (p *planner) upgradeAll(after *State, pods []placed) Room {
	stuck := Room{Reasons: scheduler.Reasons{}, holders: map[string][]string{}}
	for _, at := range pods {
		p.upgrade(after, at, &stuck)
	}
	return stuck
}

// upgrade gives a pod what its new version takes, so that the next pod on its node finds that taken. Where the node has
// no room for the new version besides the old one, as a farm reserves it, the pod is counted as stuck and keeps what it
// has. Numbers of dynamic ports stay.
func (p *planner) upgrade(after *State, at placed, stuck *Room) {
	v := after.Nodes[at.node]
	if v == nil {
		return // whatever it has
	}
	m := p.spec.Pod
	if g := field.Find(p.spec.ReplicaGroups, func(g *rc.ReplicaGroup) bool { return g.Role == at.id.Role }); g != nil {
		m = rc.GroupManifest(m, g)
	}
	taken := after.Taken[at.node]
	claim := placement.RuleFor(scheduler.Rule{}, m).Ask
	claim.Pod = at.id
	both := claim.With(taken.Claims[at.id.String()])
	if reason := scheduler.Fits(v, taken, at.id, both); reason != "" {
		stuck.Pods++
		stuck.Reasons[reason]++
		after.clash(stuck, at.node, taken, both)
		return
	}
	claim.Ports = both.Ports
	after.Taken[at.node] = taken.Clone()
	after.Taken[at.node].Claims[at.id.String()] = claim
}

// placed returns the service's pods that have a place in the order in which they go: those of revisions that stand by,
// then of the newest. Of each revision one role goes after the other, as its controller names them; of each role those
// on nodes that are not open come first, then those with the highest index.
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
			return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(closed(a), closed(b)), cmp.Compare(b.id.Index, a.id.Index),
				a.id.Compare(b.id), cmp.Compare(a.node, b.node))
		})...)
	}
	return all
}

// leaving returns the controllers of the service in the order in which they give pods up: first those that stand by,
// then the newest.
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
