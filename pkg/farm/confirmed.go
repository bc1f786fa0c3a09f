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
func (c *ReplicationController) noteConfirmed(v *view, plan *reconcile.Plan) {
	if len(c.confirmed) > maxConfirmed {
		c.confirmed = nil
	}
	note := func(node string, r *pod.Reality) {
		if r == nil || r.State != pod.StateStopped {
			return
		}
		if c.confirmed == nil {
			c.confirmed = map[store.At]int64{}
		}
		at := store.At{Node: node, Identity: r.Identity}
		c.confirmed[at] = max(c.confirmed[at], r.Revision)
	}
	removed := map[pod.Identity]bool{}
	for i := range plan.Changes {
		removed[plan.Changes[i].Identity] = removed[plan.Changes[i].Identity] || plan.Changes[i].Action == reconcile.Remove
	}
	for i := range v.snapshot.Pods {
		p := &v.snapshot.Pods[i]
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
func (c *ReplicationController) stoppedAt() map[pod.Identity]int64 {
	at := make(map[pod.Identity]int64, len(c.confirmed))
	for where, revision := range c.confirmed {
		at[where.Identity] = max(at[where.Identity], revision)
	}
	return at
}

// notConfirmed leaves out what its node has confirmed to have stopped since it was listed.
func (c *ReplicationController) notConfirmed(orphans []reconcile.Orphan) []reconcile.Orphan {
	if len(c.confirmed) == 0 || len(orphans) == 0 {
		return orphans
	}
	return slices.DeleteFunc(slices.Clone(orphans), func(o reconcile.Orphan) bool {
		stopped, known := c.confirmed[store.At{Node: o.Node, Identity: o.Identity}]
		return known && o.Revision <= stopped
	})
}
