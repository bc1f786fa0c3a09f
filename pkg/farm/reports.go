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

// reports has what nodes report about the pods of a unit. The passes of a look share it, so its methods return new
// reports instead of changing it.
type reports struct {
	copies map[store.At]store.Report
	pods   map[string]reported // by controller: its pods with the reports in copies
}

type reported struct {
	pods   []reconcile.Pod
	doubts []string // texts about reports that are unreadable or impossible
}

// readReports reads what a pass wants, and the reports about the pods of some controllers that the view lacks. It
// returns the reports of the view together with these.
func (v *view) readReports(
	ctx context.Context, reads Reads, w store.Wanted, rcIDs ...string,
) (reports, store.Details, error) {
	for _, id := range rcIDs {
		w.Realities = append(w.Realities, v.unread(id)...)
	}
	if w.Empty() {
		d := store.Details{Intents: map[store.At]pod.Intent{}} // the caller may add intents
		return v.reports.with(nil, v.Heads, rcIDs), d, nil
	}
	d, err := reads.ReadDetails(ctx, w, v.level)
	if err != nil {
		return v.reports, d, err
	}
	return v.reports.with(d.Reports, v.Heads, rcIDs), d, nil
}

func (v *view) unread(rcID string) (copies []store.At) {
	if _, known := v.reports.pods[rcID]; known || v.Heads[rcID] == nil {
		return nil
	}
	for i := range v.Heads[rcID].Placements {
		for _, at := range copiesOf(&v.Heads[rcID].Placements[i].Value) {
			if _, read := v.reports.copies[at]; !read {
				copies = append(copies, at)
			}
		}
	}
	return copies
}

// with adds reports, and the pods of some controllers. The reports about these pods must be in r or in more.
func (r reports) with(more map[store.At]store.Report, heads map[string]*store.Head, rcIDs []string) reports {
	all := reports{copies: r.copies, pods: map[string]reported{}}
	if len(r.copies) == 0 {
		all.copies = more
	} else if len(more) > 0 {
		all.copies = maps.Clone(r.copies)
		maps.Copy(all.copies, more)
	}
	maps.Copy(all.pods, r.pods)
	for _, id := range rcIDs {
		if _, known := all.pods[id]; !known && heads[id] != nil {
			all.pods[id] = all.podsOf(heads[id].Placements)
		}
	}
	return all
}

// withoutPods drops the pods of a controller whose placements have changed, but not the reports about them.
func (r reports) withoutPods(rcID string) reports {
	pods := maps.Clone(r.pods)
	delete(pods, rcID)
	return reports{copies: r.copies, pods: pods}
}

func (r reports) podsOf(placements []store.Rec[pod.Placement]) reported {
	of := reported{pods: make([]reconcile.Pod, len(placements))}
	for i := range placements {
		p := &of.pods[i]
		p.Placement, p.Index = placements[i].Value, placements[i].Index
		of.doubts = append(of.doubts, r.addTo(p)...)
	}
	return of
}

// addTo adds its nodes' reports to a pod. It returns a text for each report that is unreadable or impossible, and one
// if the pod's revision cannot grow any more.
func (r reports) addTo(p *reconcile.Pod) (doubts []string) {
	most := highestRevision(&p.Placement)
	if most >= pod.MaxRevision {
		doubts = append(doubts, fmt.Sprintf(
			"no node takes another change of %s: "+
				"revision of its placement, or of a former copy in it: %d; allowed: less than %d",
			p.Identity, most, pod.MaxRevision))
	}
	for _, at := range copiesOf(&p.Placement) {
		report := r.copies[at]
		switch {
		case report.Err != nil:
			doubts = append(doubts, report.Err.Error())
		case report.Reality == nil:
		case report.Reality.Revision > most:
			doubts = append(doubts, implausible(at.Node, p.Identity, report.Reality.Revision, most))
		case at.Node == p.Node:
			p.Reality = report.Reality
		default:
			if p.Ghosts == nil {
				p.Ghosts = map[string]*pod.Reality{}
			}
			p.Ghosts[at.Node] = report.Reality
		}
	}
	return doubts
}

// highestRevision returns the highest revision that a node can report for a pod. No farm has written a higher one, and
// no clock leads to it. If the farm believed such a report, each change would need an even higher revision, until none
// is left (R3).
func highestRevision(p *pod.Placement) int64 {
	most := max(pod.MaxReported, p.Revision)
	for _, g := range p.Ghosts {
		most = max(most, g.Revision)
	}
	return most
}

// dropImplausible removes orphans with impossible revisions, and adds errors that name their nodes.
func dropImplausible(s *reconcile.Snapshot) {
	if len(s.Orphans) == 0 {
		return
	}
	highest := map[pod.Identity]int64{}
	for i := range s.Pods {
		highest[s.Pods[i].Identity] = highestRevision(&s.Pods[i].Placement)
	}
	s.Orphans = slices.DeleteFunc(slices.Clone(s.Orphans), func(o reconcile.Orphan) bool {
		most := max(pod.MaxReported, highest[o.Identity])
		if o.Revision > most {
			s.Errors = append(s.Errors, implausible(o.Node, o.Identity, o.Revision, most))
		}
		return o.Revision > most
	})
}

func implausible(name string, id pod.Identity, revision, most int64) string {
	return fmt.Sprintf("node %s reports of %s an impossible revision, which is ignored: %d; allowed: up to %d",
		name, id, revision, most)
}

// copiesOf returns the copies of a pod: on its node, and on the nodes where it may still be.
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
