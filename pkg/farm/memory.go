package farm

import (
	"slices"
	"time"

	"github.com/rcfarm/rcfarm/pkg/farm/reconcile"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/scheduler"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// memory is what a controller's owner knows of it from one pass to the next, and a pass takes and returns.
type memory struct {
	*tenure    // of its unit
	last       evidence
	panicked   string // what the last look that panicked died of; it is told once
	recordless bool   // there is no record: what it left behind is stopped, as somebody asked for

	confirmed map[store.At]int64 // revisions at which nodes confirmed stops, after which the placements went

	booked   map[scheduler.Allocation]bool // by an outside scheduler's books, where they are known
	bookless bool                          // that scheduler could keep books and said that it keeps none
	unfit    map[pod.Identity][]string     // nodes that it named and that had no room, the last one last, until it names another or none

	notified map[string]bool // what was told and is not stored yet, by alert.Tell.ID

	reported time.Time  // when a status was written last
	found    *rc.Status // what the last pass found, also where it was not written; nil: it did not come so far
}

// maxUnfit is how many nodes without room are remembered for one pod: a scheduler that names more has to find room by itself.
const maxUnfit = 8

// noteUnfit notes the shares that had no room, of those that were asked for.
func (m *memory) noteUnfit(asked []pod.Identity, unfit []scheduler.Allocation) {
	named := make(map[pod.Identity]string, len(unfit))
	for _, a := range unfit {
		named[a.Pod] = a.Node
	}
	for _, id := range asked {
		name, lacks := named[id]
		switch names := m.unfit[id]; {
		case !lacks:
			delete(m.unfit, id)
		case m.unfit == nil:
			m.unfit = map[pod.Identity][]string{id: {name}}
		case !slices.Contains(names, name):
			m.unfit[id] = append(names[max(0, len(names)+1-maxUnfit):], name)
		}
	}
}

// evidence is what the owner last read of its controller: evidence of the store's time, nothing else.
type evidence struct {
	rc         uint64 // index of the record
	placements map[pod.Identity]uint64
}

func evidenceOf(rc uint64, placements []store.Rec[pod.Placement]) evidence {
	e := evidence{rc: rc, placements: make(map[pod.Identity]uint64, len(placements))}
	for _, p := range placements {
		e.placements[p.Value.Identity] = p.Index
	}
	return e
}

// after reports whether the evidence is of a later time than what was read now: a record has an older version. One that is
// merely missing may have been removed by hand, which is how an operator gets rid of one that cannot be read.
func (e evidence) after(rc uint64, placements []store.Rec[pod.Placement]) bool {
	if rc < e.rc {
		return true
	}
	for _, p := range placements {
		if index, known := e.placements[p.Value.Identity]; known && p.Index < index {
			return true
		}
	}
	return false
}

// maxConfirmed bounds what is remembered of confirmed stops.
const maxConfirmed = 10_000

// noteConfirmed remembers the stops that nodes have confirmed and whose placements the plan takes away. A node's list of
// orphans may be older than that.
func (m *memory) noteConfirmed(pods []reconcile.Pod, plan *reconcile.Plan) {
	if len(m.confirmed) > maxConfirmed {
		m.confirmed = nil
	}
	note := func(node string, r *pod.Reality) {
		if r == nil || r.State != pod.StateStopped {
			return
		}
		if m.confirmed == nil {
			m.confirmed = map[store.At]int64{}
		}
		at := store.At{Node: node, Identity: r.Identity}
		m.confirmed[at] = max(m.confirmed[at], r.Revision)
	}
	removed := map[pod.Identity]bool{}
	for i := range plan.Changes {
		removed[plan.Changes[i].Identity] = removed[plan.Changes[i].Identity] || plan.Changes[i].Action == reconcile.Remove
	}
	for i := range pods {
		p := &pods[i]
		if !removed[p.Identity] {
			continue
		}
		note(p.Node, p.Reality)
		for node, r := range p.Ghosts {
			note(node, r)
		}
	}
}

// stoppedAt returns the highest revision of a confirmed stop by replica.
func (m *memory) stoppedAt() map[pod.Identity]int64 {
	at := make(map[pod.Identity]int64, len(m.confirmed))
	for where, revision := range m.confirmed {
		at[where.Identity] = max(at[where.Identity], revision)
	}
	return at
}

// notConfirmed leaves out what its node has confirmed to have stopped since it was listed.
func (m *memory) notConfirmed(orphans []reconcile.Orphan) []reconcile.Orphan {
	if len(m.confirmed) == 0 || len(orphans) == 0 {
		return orphans
	}
	return slices.DeleteFunc(slices.Clone(orphans), func(o reconcile.Orphan) bool {
		stopped, known := m.confirmed[store.At{Node: o.Node, Identity: o.Identity}]
		return known && o.Revision <= stopped
	})
}
