package checker

import (
	"slices"
	"time"
)

// A pod of a lost machine is replaced while its own copy may run on. So whoever takes a machine for lost must be right: by what
// Consul said of it since its preparer was heard last, and by what the run did to it.

// death is what a mark of loss is about.
type death struct {
	node  string
	index uint64 // of the node's record, which nobody holds
}

// losses returns which deaths a placement speaks of.
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

// lostRightly judges each machine that a write takes for lost (R10): its preparer is dead, and this is the death that the mark names; Consul
// said since then that its agent has failed; and the run had done something to it.
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
		j.violated("R10", "lost while its preparer lives", w.Index, "%s is marked as on the lost machine of %s, whose record is held", id, d.node)
	case d.index != k.Index || !w.has(k.Name, "check-index"):
		j.violated("R10", "lost by another death", w.Index, "%s is marked as lost with %s at index %d; its record is at %d, checked: %t",
			id, d.node, d.index, k.Index, w.has(k.Name, "check-index"))
	case j.away.gone[d.node] < free:
		j.violated("R10", "lost without a word of Consul", w.Index, "%s is marked as on the lost machine of %s, whose agent has not failed in the %s since its preparer was heard",
			id, d.node, time.Duration(w.At-free))
	case w.At-j.away.gone[d.node] > int64(saidLate) && !j.wasHit(n.ConsulNode, free, w.At):
		j.violated("R10", "lost although its machine lives", w.Index, "%s is marked as on the lost machine of %s; nothing was done to %s, whose agent lives for %s by Consul's word",
			id, d.node, n.ConsulNode, time.Duration(w.At-j.away.gone[d.node]))
	}
}

// saidLate is how long after Consul's last word that an agent has failed a farm may act on that.
const saidLate = 10 * time.Second

// What the run does to a machine shows in Consul a little later; see docs/testing.md.
const (
	hitLate = 10 * time.Second // of a machine
	// A new leader, and one that has restored a snapshot, compares what it knows of machines with gossip once a minute.
	speakersLate = 70 * time.Second
)

// wasHit reports whether the run did something between two moments, or shortly before, to a machine or to the servers, which speak for
// all machines.
func (j *judgement) wasHit(machine string, from, to int64) bool {
	return slices.ContainsFunc(j.hits, func(e Event) bool {
		late := speakersLate
		if e.Node != "" {
			late = hitLate
		}
		return (e.Node == "" || e.Node == machine) && e.Call <= to && e.At >= from-int64(late)
	})
}

// away is what is known of nodes without a preparer, by name, in unix nanoseconds: when they were last seen so and when their machines
// were last lost; since when they are so, and lost, without a break; missing where they are not.
type away struct{ dead, gone, free, lost, unread map[string]int64 }

func newAway() away {
	return away{dead: map[string]int64{}, gone: map[string]int64{}, free: map[string]int64{}, lost: map[string]int64{}, unread: map[string]int64{}}
}

// see notes which nodes are away after an entry of the log.
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
