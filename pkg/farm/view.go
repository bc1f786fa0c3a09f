package farm

import (
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/rcfarm/rcfarm/pkg/farm/reconcile"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/rollout"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// view is a unit as a look has read it, with the later writes of the look. Only the look changes it: each pass gets a
// copy, and returns traces. The fields are in the order in which they are read.
type view struct {
	level      store.Level // of the reads; Consistent: no stale leader of Consul has answered
	mark       uint64      // place.Finder.Mark before the reads; the view misses later changes
	schema     store.Rec[store.Schema]
	breaker    store.Rec[store.Breaker]
	store.Unit // with its drops, which were read before the reports
	hold       string
	now        time.Time
	orphans    map[string][]reconcile.Orphan // by controller; at least as new as the reports that ended the hold
	nodes      map[string]*node.View         // taken before the reports are read; see reader.read
	version    uint64                        // of nodes
	reports    reports                       // that the passes of the look have read
	stale      bool                          // some write may have landed that is not in the view
}

// traces is what a pass has read and written, and its view lacks.
type traces struct {
	reports reports  // of the view, with those that the pass has read
	landed  []*batch // of the pass; empty if stale is true
	stale   bool     // some write of the pass may have landed that is not in landed
}

// add adds the traces of a pass. It reports whether some write of the pass may have landed.
func (v *view) add(id string, t traces) (wrote bool) {
	v.reports, v.stale = t.reports, v.stale || t.stale
	if len(t.landed) > 0 {
		v.landed(id, t.landed)
	}
	return t.stale || len(t.landed) > 0
}

// landed applies the batches of a pass. Then the view has what another read of the unit would return.
func (v *view) landed(id string, batches []*batch) {
	h := *v.Heads[id]
	written := map[pod.Identity]*store.PodWrite{}
	var answered []string
	for _, b := range batches {
		if b.Status != nil {
			h.Status = b.Status
		}
		for i := range b.Pods {
			written[b.Pods[i].Identity] = &b.Pods[i]
		}
		answered = append(answered, b.Answered...)
	}
	left := slices.DeleteFunc(slices.Clone(h.Placements), func(rec store.Rec[pod.Placement]) bool {
		_, is := written[rec.Value.Identity]
		return is
	})
	for _, w := range written {
		if w.Placement != nil {
			left = append(left, store.Rec[pod.Placement]{Value: *w.Placement, Index: w.Landed})
		}
	}
	slices.SortFunc(left, func(a, b store.Rec[pod.Placement]) int { return a.Value.Identity.Compare(b.Value.Identity) })
	h.Placements = left
	v.reports = v.reports.withoutPods(id)
	h.Requests = slices.DeleteFunc(slices.Clone(h.Requests), func(r store.Rec[store.Request]) bool {
		return slices.Contains(answered, r.Value.ID)
	})
	v.Heads[id] = &h
}

func (v *view) stepped(s *store.RolloutStep, index uint64) {
	for i := range s.RCs {
		h := *v.Heads[s.RCs[i].ID]
		h.RC = store.Rec[rc.RC]{Value: s.RCs[i], Index: index, Session: h.RC.Session}
		v.Heads[s.RCs[i].ID] = &h
	}
	switch {
	case s.Ended:
		v.Rollout = store.Rec[rollout.Record]{}
	case s.Record != nil:
		v.Rollout.Value, v.Rollout.Index = *s.Record, index
	}
	switch {
	case s.Trouble != nil:
		v.Trouble = store.Rec[store.RolloutTrouble]{Value: *s.Trouble, Index: index}
	case s.ForgetsTrouble():
		v.Trouble = store.Rec[store.RolloutTrouble]{}
	}
}

// alone reports whether the owner of the unit must handle no other controller.
func (v *view) alone(id string) bool {
	for other, h := range v.Heads {
		if other != id && h.Owned() {
			return false
		}
	}
	return true
}

// matches returns true if the labels cannot be read, so that the owner keeps the unit.
func (v *view) matches(selector labels.Selector) bool {
	h := v.Heads[v.Latest()]
	return h == nil || h.Err != nil || selector.Matches(labels.Set(h.RC.Value.Labels))
}

// troubleReporter returns the controller whose status has the rollout's trouble: the oldest readable revision that is
// not deleted. The newest may be removed when its rollout fails. Then another status would have the same trouble, and
// people would be alerted twice.
func (v *view) troubleReporter() (id string) {
	for _, next := range v.IDs() {
		h := v.Heads[next]
		if !h.Exists() || h.Err != nil || rc.IsPreDeploy(next) {
			continue
		}
		if id == "" || h.RC.Value.DeletedAt == nil {
			id = next
		}
	}
	return id
}
