package checker

import (
	"slices"
	"time"
)

// A lost machine's pod is replaced although its copy may still run. So a farm may count a machine as lost only if,
// since its preparer was last alive, the run disturbed it and Consul reported that its agent failed.

// death identifies one death of a node, to which a `lost_since` belongs.
type death struct {
	node  string
	index uint64 // of the node's record, which no preparer holds
}

func (p *placement) losses() []death {
	if p == nil {
		return nil
	}
	var out []death
	if p.LostSince != nil {
		out = append(out, death{p.Node, p.DeadIndex})
	}
	for _, g := range p.Ghosts {
		if g.Gone {
			out = append(out, death{g.Node, g.DeadIndex})
		}
	}
	return out
}

// lostRightly judges each machine that a write counts as lost (R10). The preparer must be dead, and the placement must
// name this death.
func (j *judgement) lostRightly(w *Write) {
	for i := range w.Changes {
		c := &w.Changes[i]
		said := c.Before.placement().losses()
		for _, d := range c.After.placement().losses() {
			if slices.Contains(said, d) {
				continue
			}
			j.looked("R10 lost")
			j.lost(w, c.After.placement().id(), d)
		}
	}
}

func (j *judgement) lost(w *Write, id string, d death) {
	n, k := w.state.node(d.node)
	if n == nil {
		j.violated("R10", "lost without a record", w.Index, "%s is marked as on the lost machine of %s", id, d.node)
		return
	}
	free := j.away.free[d.node]
	switch {
	case k.Session != "":
		j.violated("R10", "lost while its preparer lives", w.Index,
			"%s is marked as on the lost machine of %s, whose record is held", id, d.node)
	case d.index != k.Index || !w.has(k.Name, "check-index"):
		j.violated("R10", "lost by another death", w.Index,
			"%s is marked as lost with %s at index %d; its record is at %d, checked: %t",
			id, d.node, d.index, k.Index, w.has(k.Name, "check-index"))
	case j.away.gone[d.node] < free:
		j.violated("R10", "lost without a word of Consul", w.Index,
			"%s is marked as on the lost machine of %s, "+
				"whose agent has not failed in the %s since its preparer was heard",
			id, d.node, time.Duration(w.At-free))
	case w.At-j.away.gone[d.node] > int64(saidLate) && !j.wasHit(n.ConsulNode, free, w.At):
		j.violated("R10", "lost although its machine lives", w.Index,
			"%s is marked as on the lost machine of %s; "+
				"nothing was done to %s, whose agent lives for %s by Consul's word",
			id, d.node, n.ConsulNode, time.Duration(w.At-j.away.gone[d.node]))
	}
}

const saidLate = 10 * time.Second

// How long after the end of a fault Consul may still report an agent as failed.
const (
	hitLate = 10 * time.Second // of a machine
	// A leader that is new, or has restored a snapshot, compares machines with gossip once a minute.
	speakersLate = 70 * time.Second
)

// wasHit reports whether the run disturbed a machine, or the servers, between two moments or shortly before.
func (j *judgement) wasHit(machine string, from, to int64) bool {
	return slices.ContainsFunc(j.hits, func(e Event) bool {
		late := speakersLate
		if e.Node != "" {
			late = hitLate
		}
		return (e.Node == "" || e.Node == machine) && e.Call <= to && e.At >= from-int64(late)
	})
}

// away has times of nodes, by name, in unix nanoseconds. dead, gone and unread: when a node last had no preparer, when
// its machine was last lost, and when its record was last unreadable. free and lost: since when it has no preparer, and
// since when its machine is lost, if so now.
type away struct{ dead, gone, free, lost, unread map[string]int64 }

func newAway() away {
	return away{
		dead: map[string]int64{}, gone: map[string]int64{}, free: map[string]int64{},
		lost: map[string]int64{}, unread: map[string]int64{},
	}
}

func (a *away) see(s *state, at int64) {
	for _, k := range s.groups["nodes"] {
		n := k.nodeRecord()
		if n == nil {
			continue
		}
		if k.hostile() {
			a.unread[n.Name] = at
		}
		if k.Session != "" {
			delete(a.free, n.Name)
			delete(a.lost, n.Name)
			continue
		}
		a.dead[n.Name] = at
		begin(a.free, n.Name, at)
		if !s.machineLost(n.Name) {
			delete(a.lost, n.Name)
			continue
		}
		a.gone[n.Name] = at
		begin(a.lost, n.Name, at)
	}
}

func begin(since map[string]int64, name string, at int64) {
	if _, begun := since[name]; !begun {
		since[name] = at
	}
}
