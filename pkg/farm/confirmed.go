package farm

import (
	"slices"

	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/reconcile"
	"github.com/rcfarm/rcfarm/pkg/store"
)

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
