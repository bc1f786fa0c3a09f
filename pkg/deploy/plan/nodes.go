package plan

import (
	"fmt"
	"maps"
	"slices"

	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/rollout"
)

// Where is a forecast of the nodes of an operation's pods, by the rules of farms. The cluster may change before farms
// act.
type Where struct {
	Nodes   []OnNode `json:"nodes"`             // by name
	Lacking int      `json:"lacking,omitempty"` // pods that find no node
	Unknown string   `json:"unknown,omitempty"` // why no node can be named; the other fields are empty then
}

// OnNode is a node and how many of the pods are on it.
type OnNode struct {
	Node string `json:"node"`
	Pods int    `json:"pods"`
}

func (w *Where) check(errs *field.Errors, path string) {
	for _, at := range w.Nodes {
		errs.CheckName(path+"nodes.node", at.Node)
		field.CheckRange(errs, path+"nodes.pods", at.Pods, 1, rc.MaxReplicas)
	}
	field.CheckRange(errs, path+"lacking", w.Lacking, 0, rc.MaxReplicas)
	errs.CheckBytes(path+"unknown", w.Unknown, maxText)
}

// whereLimit is the number of pods up to which a screen names the nodes.
const whereLimit = 20

// String names the nodes: n1, n2 (2 pods). Beyond whereLimit pods it counts them: 35 nodes, 1 to 2 pods each.
func (w *Where) String() string {
	if w.Unknown != "" {
		return "nodes unknown: " + w.Unknown
	}
	total, least, most := 0, 0, 0
	names := make([]string, 0, min(len(w.Nodes), whereLimit))
	for _, at := range w.Nodes {
		if least == 0 || at.Pods < least {
			least = at.Pods
		}
		total, most = total+at.Pods, max(most, at.Pods)
		switch {
		case len(names) == whereLimit:
		case at.Pods == 1:
			names = append(names, at.Node)
		default:
			names = append(names, at.Node+" ("+field.Count(at.Pods, "pod")+")")
		}
	}
	var text string
	switch {
	case total == 0 && w.Lacking > 0:
		return fmt.Sprintf("forecast: no node for %d", w.Lacking)
	case total == 0:
		return "forecast: no node"
	case total <= whereLimit:
		text = "forecast: " + field.Few(names, whereLimit, ", ")
	case least == most:
		text = fmt.Sprintf("forecast: %s, %s each", field.Count(len(w.Nodes), "node"), field.Count(most, "pod"))
	default:
		text = fmt.Sprintf("forecast: %s, %d to %d pods each", field.Count(len(w.Nodes), "node"), least, most)
	}
	if w.Lacking > 0 {
		text += fmt.Sprintf("; no node for %d", w.Lacking)
	}
	return text
}

func whereOf(pods []placed, n int) *Where {
	on := map[string]int{}
	for _, at := range pods[:min(n, len(pods))] {
		on[at.node]++
	}
	w := &Where{Nodes: make([]OnNode, 0, len(on)), Lacking: max(0, n-len(pods))}
	for _, name := range slices.Sorted(maps.Keys(on)) {
		w.Nodes = append(w.Nodes, OnNode{name, on[name]})
	}
	return w
}

// surplus returns the nodes of the n pods of a controller that stop first.
func (p *planner) surplus(id string, n int) *Where {
	if p.State == nil {
		return nil
	}
	var own []placed
	for _, at := range p.placed() {
		if at.id.RCID == id {
			own = append(own, at)
		}
	}
	return whereOf(own, min(n, len(own)))
}

// departures returns the nodes of n pods of a kept controller that stop because of lower counts.
func (p *planner) departures(c course, id string, n int) *Where {
	if p.State == nil || p.base.Spec.Mode == rc.EachNode && p.spec.Mode != rc.EachNode {
		return p.surplus(id, n)
	}
	_, gone := p.staying(c, p.placed())
	if p.spec.Mode != rc.EachNode {
		before, after := p.moving(c).RC.ReplicaGroups, p.spec.Groups()
		left := map[string]int{}
		for role := range rolesOf(before, after) {
			left[role] = max(0, countOf(before, role)-countOf(after, role))
		}
		// The others of gone must leave their nodes, and are placed again
		gone = slices.DeleteFunc(gone, func(at placed) bool {
			if at.id.RCID != id {
				return true
			}
			left[at.id.Role]--
			return left[at.id.Role] < 0
		})
	}
	return whereOf(gone, min(n, len(gone)))
}

// upgraded returns the nodes of n pods that get another manifest in place.
func (p *planner) upgraded(c course, limits *rc.InPlace, n int) *Where {
	if p.State == nil {
		return nil
	}
	stay, _ := p.staying(c, p.placed())
	stay = slices.DeleteFunc(stay, func(at placed) bool {
		return limits != nil && len(limits.Roles) > 0 && !limits.Counts(at.id.Role)
	})
	return whereOf(stay, min(n, len(stay)))
}

func (p *planner) destinations(c course, n int) *Where {
	switch {
	case p.State == nil:
		return nil
	case p.State.Elsewhere:
		return &Where{Unknown: "farms ask an outside scheduler"}
	case c == first || c == recreate:
		return whereOf(p.succession(p.placed()).found, n)
	}
	_, _, more := p.reshaped(c)
	return whereOf(more.found, n)
}

// forecastStages is about the most stages that a forecast simulates. A longer rollout is simulated in larger stages.
const forecastStages = 50

type succession struct {
	found []placed
	stall *stall // the first stage that lacks capacity, or nil
}

// stall is a stage that lacks capacity. At its start, there are has pods of the new revision, and old pods of others.
// wants is how many pods it starts.
type stall struct {
	has, old, wants int
	room            Room
}

// succession simulates a rollout to a new revision stage by stage, with the old pods that have not stopped yet.
func (p *planner) succession(old []placed) *succession {
	if p.arrivals == nil {
		p.arrivals = p.succeed(old)
	}
	return p.arrivals
}

func (p *planner) succeed(old []placed) *succession {
	total, u := p.wanted(), p.numbers()
	beside, stops := min(u.Surge, u.Step), min(p.stops(), u.Step) // of a stage
	if stops > 0 {
		beside = 0 // stopped pods free the capacity
	}
	least := max(1, max(total, len(old))/forecastStages) // pods of a stage
	batch := max(beside, stops, least)
	if len(old) == 0 || p.knobs.StrategyName() == rollout.BlueGreenStrategy {
		beside, batch = total, total
	}
	state := *p.State
	extra := max(0, len(old)-max(total, p.kept()))
	goes := func(n int) int {
		n = max(0, min(n, len(old)))
		state = *state.without(old[:n])
		old = old[n:]
		return n
	}
	goes(extra)
	out := &succession{}
	for len(out.found) < total {
		gone := goes(batch - beside)
		has, wants := len(out.found), min(batch, total-len(out.found))
		room := state.place(p.spec, p.missing(has+wants, out.found), out.found)
		if room.Pods == 0 && len(old) == 0 {
			break
		}
		if room.Pods < wants && out.stall == nil {
			out.stall = &stall{has, len(old), wants, room}
		}
		out.found, state.Taken = append(out.found, room.found...), room.taken
		goes(max(room.Pods, least) - gone)
	}
	return out
}
