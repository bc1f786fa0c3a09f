package farm

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/rcfarm/rcfarm/pkg/farm/reconcile"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// reported are the pods of a controller with what their nodes report of them.
type reported struct {
	pods   []reconcile.Pod // shared by all passes over the view, so nobody may change them
	doubts []string        // what cannot be read of the reports, or is not believed
}

// unread returns the copies of the pods of some controllers whose reports no pass over the view has read.
func (v *view) unread(rcIDs ...string) (copies []store.At) {
	for _, id := range rcIDs {
		if _, known := v.pods[id]; known || v.Heads[id] == nil {
			continue
		}
		for i := range v.Heads[id].Placements {
			for _, at := range copiesOf(&v.Heads[id].Placements[i].Value) {
				if _, read := v.reports[at]; !read {
					copies = append(copies, at)
				}
			}
		}
	}
	return copies
}

// readDetails reads all that a pass wants, and takes the reports among it into the view.
func (v *view) readDetails(ctx context.Context, reads Reads, w store.Wanted) (store.Details, error) {
	if w.Empty() {
		return store.Details{Intents: map[store.At]pod.Intent{}}, nil // more may be added
	}
	d, err := reads.ReadDetails(ctx, w, v.consistent)
	if err != nil {
		return d, err
	}
	if v.reports == nil {
		v.reports, v.pods = make(map[store.At]store.Report, len(d.Reports)), map[string]reported{}
	}
	maps.Copy(v.reports, d.Reports)
	return d, nil
}

// podsOf returns the pods of a controller with the reports that passes over the view have read of them, which must be
// all that there are. They are made once for all of these passes.
func (v *view) podsOf(rcID string) reported {
	if known, ok := v.pods[rcID]; ok {
		return known
	}
	placements := v.Heads[rcID].Placements
	r := reported{pods: make([]reconcile.Pod, len(placements))}
	for i := range placements {
		p := &r.pods[i]
		p.Placement, p.Index = placements[i].Value, placements[i].Index
		r.doubts = append(r.doubts, v.addReports(p)...)
	}
	if v.pods != nil {
		v.pods[rcID] = r
	}
	return r
}

// addReports adds what nodes report about a pod, and returns what cannot be read of it or is not believed.
func (v *view) addReports(p *reconcile.Pod) (doubts []string) {
	most := toldOf(&p.Placement)
	if most >= pod.MaxRevision {
		doubts = append(doubts, fmt.Sprintf(
			"no node takes another change of %s: revision of its placement, or of a former copy in it: %d; allowed: less than %d",
			p.Identity, most, pod.MaxRevision))
	}
	for _, at := range copiesOf(&p.Placement) {
		r := v.reports[at]
		switch {
		case r.Err != nil:
			doubts = append(doubts, r.Err.Error())
		case r.Reality == nil:
		case r.Reality.Revision > most:
			doubts = append(doubts, unbelievable(at.Node, p.Identity, r.Reality.Revision, most))
		case at.Node == p.Node:
			p.Reality = r.Reality
		default:
			if p.Ghosts == nil {
				p.Ghosts = map[string]*pod.Reality{}
			}
			p.Ghosts[at.Node] = r.Reality
		}
	}
	return doubts
}

// toldOf returns the highest revision that a node may report of a pod. A higher one is left out: nobody has told any
// node of it, and no clock gives it. What is decided next about the pod would take one more, and some day there is none
// (R3).
func toldOf(p *pod.Placement) int64 {
	most := max(pod.MaxReported, p.Revision)
	for _, g := range p.Ghosts {
		most = max(most, g.Revision)
	}
	return most
}

// disbelieve leaves orphans of such revisions out of a snapshot. The status names the nodes.
func disbelieve(s *reconcile.Snapshot) {
	if len(s.Orphans) == 0 {
		return
	}
	told := map[pod.Identity]int64{}
	for i := range s.Pods {
		told[s.Pods[i].Identity] = toldOf(&s.Pods[i].Placement)
	}
	s.Orphans = slices.DeleteFunc(slices.Clone(s.Orphans), func(o reconcile.Orphan) bool {
		most := max(pod.MaxReported, told[o.Identity])
		if o.Revision > most {
			s.Errors = append(s.Errors, unbelievable(o.Node, o.Identity, o.Revision, most))
		}
		return o.Revision > most
	})
}

func unbelievable(name string, id pod.Identity, revision, most int64) string {
	return fmt.Sprintf("what node %s reports of %s is not believed: revision: %d; allowed: up to %d", name, id, revision, most)
}

// copiesOf returns where a pod is or may still be.
func copiesOf(p *pod.Placement) []store.At {
	copies := make([]store.At, 1, 1+len(p.Ghosts))
	copies[0] = store.At{Node: p.Node, Identity: p.Identity}
	for _, g := range p.Ghosts {
		if at := (store.At{Node: g.Node, Identity: p.Identity}); !slices.Contains(copies, at) {
			copies = append(copies, at)
		}
	}
	return copies
}
