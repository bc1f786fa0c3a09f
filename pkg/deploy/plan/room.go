package plan

import (
	"fmt"
	"maps"
	"slices"

	"github.com/rcfarm/rcfarm/pkg/deploy/record"
	"github.com/rcfarm/rcfarm/pkg/farm/placement"
	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/rollout"
	"github.com/rcfarm/rcfarm/pkg/scheduler"
)

// State is the cluster as it is when a plan is made.
type State struct {
	Epoch string
	Nodes map[string]*node.View
	Taken map[string]node.Reservation
}

// Room is how many pods more there is room for, and why nodes take no more.
type Room struct {
	Pods    int
	Reasons scheduler.Reasons
}

// Room returns how many pods of a new revision of a service find a place now, at most as many as wanted and as its groups have, as farms place them:
// one group after the other, in the order in which they roll.
func (s *State) Room(spec *record.ServiceSpec, wanted int) Room {
	out := Room{Reasons: scheduler.Reasons{}}
	groups, err := placement.NewGroups(spec.RCSpec(spec.Name), s.Epoch, s.Nodes, s.Taken)
	if err != nil {
		return out
	}
	apart := placement.Apart(spec.ReplicaGroups)
	if apart == nil {
		out.add(groups, nil, rc.DefaultRole, wanted)
		return out
	}
	first, err := rollout.FirstOf(wanted, apart, spec.Update.GroupOrder)
	if err != nil {
		return out
	}
	for _, f := range first {
		out.add(groups, field.Find(apart, func(g *rc.ReplicaGroup) bool { return g.Role == f.Role }), f.Role, *f.Count)
	}
	return out
}

// add places pods of a group, nil for all, and counts those that find a place.
func (r *Room) add(groups *placement.Groups, g *rc.ReplicaGroup, role string, wanted int) {
	lot, err := groups.Lot(g)
	if err != nil || wanted == 0 {
		return
	}
	for i := range wanted {
		lot.Pods = append(lot.Pods, pod.Identity{RCID: "planned", Role: role, Index: i})
	}
	assigned, refused := placement.Assign(lot.Request)
	groups.Took(&lot, assigned)
	r.Pods += len(assigned)
	for _, why := range []scheduler.Reasons{lot.Excluded, refused} {
		for reason, nodes := range why {
			r.Reasons[reason] = max(r.Reasons[reason], nodes)
		}
	}
}

// room returns a *RefusedError where the nodes that match have no room for what the strategy starts before it stops others, and warns
// where a new service finds no room for all of its pods.
func (p *planner) room(c course) (warnings []string, err error) {
	total := p.spec.Total()
	if p.State == nil || total == 0 {
		return nil, nil
	}
	switch {
	case c == first:
		if room := p.State.Room(p.spec, total); room.Pods < total {
			warnings = append(warnings, fmt.Sprintf("there is room for %d of %d pods (nodes that take no more: %s)", room.Pods, total, nodesOf(room)))
		}
		return warnings, nil
	case c != recreate || p.knobs.StopsFirst():
		return nil, nil
	}
	want := p.surge()
	room := p.roomFor(want)
	if room.Pods >= want {
		return nil, nil
	}
	return nil, p.refused(p.whatHasRoom(room.Pods),
		"no-room: the strategy %s starts %s before it stops others, and the nodes have room for %d (nodes that take no more: %s)",
		p.knobs.Kind(), field.Count(want, "pod"), room.Pods, nodesOf(room))
}

// roomFor is State.Room after the first pods have gone. A replaced or aborted rollout may leave more pods than the
// service has in effect and is to have: these go before a new pod comes. Pods that only a lower number makes too many
// stay until the new pods serve.
func (p *planner) roomFor(wanted int) Room {
	after := *p.State
	after.Taken = maps.Clone(p.State.Taken)
	pods := map[string][]placed{} // by controller
	total := p.spec.Total()
	if p.current != nil && p.knobs.Kind() != rollout.BlueGreenStrategy {
		total = max(total, p.current.RC.Desired())
	}
	more := -total
	for _, name := range slices.Sorted(maps.Keys(p.State.Taken)) {
		after.Taken[name] = p.State.Taken[name].Clone()
		for _, key := range slices.Sorted(maps.Keys(p.State.Taken[name].Claims)) {
			if id := p.State.Taken[name].Claims[key].Pod.RCID; p.svc.Controller(id) != nil {
				pods[id] = append(pods[id], placed{name, key})
				more++
			}
		}
	}
	for _, id := range p.leaving() {
		for _, at := range pods[id] {
			if more > 0 {
				delete(after.Taken[at.node].Claims, at.holder)
				more--
			}
		}
	}
	return after.Room(p.spec, wanted)
}

// placed is where a pod has its claim on a node.
type placed struct{ node, holder string }

// leaving returns the controllers of the service in the order in which they give pods up: first those that stand by, then the newest.
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

func nodesOf(r Room) string {
	if len(r.Reasons) == 0 {
		return "there are none"
	}
	return r.Reasons.String()
}

// whatHasRoom says which strategies would work with this much room.
func (p *planner) whatHasRoom(pods int) string {
	text := ""
	switch kind := p.knobs.Kind(); {
	case pods > 0 && kind == rollout.BlueGreenStrategy:
		text = fmt.Sprintf("the strategy availability with max_surge: %d has room; ", pods)
	case pods > 0:
		text = fmt.Sprintf("max_surge: %d has room; ", pods)
	}
	return text + "the strategies resourceutil (old pods stop first) and in-place need none"
}
