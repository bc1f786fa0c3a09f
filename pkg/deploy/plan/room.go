package plan

import (
	"cmp"
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

// State is the cluster when a plan is made.
type State struct {
	Epoch string
	Nodes map[string]*node.View
	Taken map[string]node.Reservation
	Names map[string]string // of controllers, by their ids
	// Elsewhere: farms ask an outside scheduler for nodes, so the plan cannot forecast them.
	Elsewhere bool
}

// Room is the number of pods for which nodes have capacity, and why they take no more.
type Room struct {
	Pods    int
	Reasons scheduler.Reasons
	found   []placed                    // the pods, on the nodes that they find
	taken   map[string]node.Reservation // the reservations with the shares of these pods
	holders map[string][]string         // texts about who holds a static port, each with the names of the nodes
}

func newRoom() Room { return Room{Reasons: scheduler.Reasons{}, holders: map[string][]string{}} }

type placed struct {
	node string
	id   pod.Identity
}

// Room returns how many pods of a new revision find a node now, at most wanted. Like farms, it places one group after
// the other.
func (s *State) Room(spec *record.ServiceSpec, wanted int) Room {
	groups := []rc.ReplicaGroup{{Role: rc.DefaultRole, Count: &wanted}}
	if apart := placement.Apart(spec.ReplicaGroups); apart != nil {
		first, err := rollout.CountsAt(wanted, apart, spec.Update.GroupOrder)
		if err != nil {
			return newRoom()
		}
		groups = first
	}
	return s.place(spec, groups, nil)
}

// place returns how many of the wanted pods find a node beside the controller's present ones (there).
func (s *State) place(spec *record.ServiceSpec, wanted []rc.ReplicaGroup, there []placed) Room {
	out := newRoom()
	groups, err := placement.NewGroups(spec.RCSpec(spec.Name), s.Epoch, s.Nodes, s.Taken)
	if err != nil {
		return out
	}
	for _, at := range there {
		groups.AddPod(at.id.Role, at.node, true)
	}
	apart := placement.Apart(spec.ReplicaGroups)
	for _, w := range wanted {
		s.add(&out, groups, field.Find(apart, func(g *rc.ReplicaGroup) bool { return g.Role == w.Role }), w, len(there))
	}
	out.taken = groups.Taken()
	return out
}

// add places pods of a group, nil if all need the same. Their indices begin with first.
func (s *State) add(out *Room, groups *placement.Groups, g *rc.ReplicaGroup, wanted rc.ReplicaGroup, first int) {
	lot, err := groups.Lot(g)
	if err != nil || *wanted.Count == 0 {
		return
	}
	for i := range *wanted.Count {
		lot.Pods = append(lot.Pods, pod.Identity{RCID: planned, Role: wanted.Role, Index: first + i})
	}
	assigned, refused := placement.Assign(lot.Request)
	groups.AddAssigned(&lot, assigned)
	for _, a := range assigned {
		out.found = append(out.found, placed{a.Node, a.Pod})
	}
	out.Pods += len(assigned)
	out.also(Room{Reasons: lot.Excluded})
	out.also(Room{Reasons: refused})
	if refused[scheduler.Ports] > 0 {
		for _, name := range lot.Order {
			s.clash(out, name, lot.Reservations[name], lot.Rule.Ask)
		}
	}
}

const planned = "planned"

// clash records who holds a static port that the share needs on a node, except the new pods themselves.
func (s *State) clash(out *Room, name string, taken node.Reservation, want node.Claim) {
	clash := scheduler.ClashOf(s.Nodes[name], taken, want)
	if clash.Port == 0 || clash.Pod.RCID == planned {
		return
	}
	by := "something else on the machine"
	if !clash.Machine {
		by = cmp.Or(s.Names[clash.Pod.RCID], clash.Pod.RCID)
	}
	text := fmt.Sprintf("port %d is held by %s", clash.Port, by)
	out.holders[text] = append(out.holders[text], name)
}

// also adds the reasons and port holders of another Room. Of a common reason, the larger number is kept.
func (r *Room) also(other Room) {
	for reason, nodes := range other.Reasons {
		r.Reasons[reason] = max(r.Reasons[reason], nodes)
	}
	for text, nodes := range other.holders {
		r.holders[text] = append(r.holders[text], nodes...)
	}
}

func (s *State) without(gone []placed) *State {
	after := *s
	after.Taken = maps.Clone(s.Taken)
	for _, at := range gone {
		after.Taken[at.node] = after.Taken[at.node].Clone()
		delete(after.Taken[at.node].Claims, at.id.String())
	}
	return &after
}

// String lists the reasons why nodes take no more.
func (r Room) String() string {
	text := r.Reasons.String()
	if text == "" {
		text = "there are none"
	}
	text = "nodes that take no more: " + text
	for _, holder := range slices.Sorted(maps.Keys(r.holders)) {
		nodes := slices.Compact(slices.Sorted(slices.Values(r.holders[holder])))
		text += fmt.Sprintf("; %s on %s", holder, field.Few(nodes, 5, ", "))
	}
	return text
}
