package farm

import (
	"slices"
	"time"

	"github.com/rcfarm/rcfarm/pkg/farm/place"
	"github.com/rcfarm/rcfarm/pkg/farm/reconcile"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// memory is what the owner of a controller keeps from one pass to the next.
type memory struct {
	last       evidence
	panicked   string // text of the last panic, so that its stack is logged once
	recordless bool   // the controller has no record, but a request is about its remains

	confirmed confirmedStops
	places    place.Memory // of an outside scheduler

	notified map[string]bool // alerts that were sent and are not stored yet, by alert.Notification.ID
	reported time.Time       // when a status was written last
	found    *rc.Status      // status that the last pass computed, even if it was not written; nil: there was none
}

// noteFound keeps a copy, because a pointer into the plan would keep all that the pass has read in memory.
func (m *memory) noteFound(status rc.Status) { m.found = &status }

// evidence has the Consul indices that the owner last read in the records of its controller. They only show that the
// store went back in time.
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

// after reports whether the store now has an older version of some record. A missing record proves nothing, because
// operators remove unreadable records by hand.
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

// confirmedStops has, by copy without a placement, the revision of its confirmed stop.
type confirmedStops map[store.At]int64

const maxConfirmed = 10_000

// noteConfirmed remembers the confirmed stops of replicas whose placements the plan removes, because a node's list of
// orphans may be older than the stop.
func (m *memory) noteConfirmed(pods []reconcile.Pod, plan *reconcile.Plan) {
	if len(m.confirmed) > maxConfirmed {
		m.confirmed = nil
	}
	note := func(node string, r *pod.Reality) {
		if r == nil || r.State != pod.StateStopped {
			return
		}
		if m.confirmed == nil {
			m.confirmed = confirmedStops{}
		}
		at := store.At{Node: node, Identity: r.Identity}
		m.confirmed[at] = max(m.confirmed[at], r.Revision)
	}
	removed := map[pod.Identity]bool{}
	for i := range plan.Changes {
		id := plan.Changes[i].Identity
		removed[id] = removed[id] || plan.Changes[i].Action == reconcile.Remove
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

// highest returns the highest revision of each replica.
func (c confirmedStops) highest() map[pod.Identity]int64 {
	at := make(map[pod.Identity]int64, len(c))
	for where, revision := range c {
		at[where.Identity] = max(at[where.Identity], revision)
	}
	return at
}

// without leaves out the orphans whose nodes have confirmed the stop.
func (c confirmedStops) without(orphans []reconcile.Orphan) []reconcile.Orphan {
	if len(c) == 0 || len(orphans) == 0 {
		return orphans
	}
	return slices.DeleteFunc(slices.Clone(orphans), func(o reconcile.Orphan) bool {
		stopped, known := c[store.At{Node: o.Node, Identity: o.Identity}]
		return known && o.Revision <= stopped
	})
}
