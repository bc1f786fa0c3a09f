package farm

import (
	"fmt"
	"slices"

	"github.com/rcfarm/rcfarm/pkg/farm/reconcile"
	"github.com/rcfarm/rcfarm/pkg/pod"
)

// disbelieve leaves out of a snapshot what nodes say about revisions that nobody has told them, and that no clock gives: what is decided next about the
// pod would take one more, and some day there is none (R3). The status names the nodes.
func disbelieve(s *reconcile.Snapshot) {
	told := map[pod.Identity]int64{}
	for i := range s.Pods {
		p := &s.Pods[i]
		most := max(pod.MaxReported, p.Revision)
		for _, g := range p.Placement.Ghosts {
			most = max(most, g.Revision)
		}
		told[p.Identity] = most
		if most >= pod.MaxRevision {
			s.Errors = append(s.Errors, fmt.Sprintf("no node takes another change of %s: revision of its placement, or of a former copy in it: %d; allowed: less than %d",
				p.Identity, most, pod.MaxRevision))
		}
		if p.Reality != nil && p.Reality.Revision > most {
			s.Errors = append(s.Errors, unbelievable(p.Node, p.Identity, p.Reality.Revision, most))
			p.Reality = nil
		}
		for name, r := range p.Ghosts {
			if r.Revision > most {
				s.Errors = append(s.Errors, unbelievable(name, p.Identity, r.Revision, most))
				delete(p.Ghosts, name)
			}
		}
	}
	believed := func(o reconcile.Orphan) bool { return o.Revision <= max(pod.MaxReported, told[o.Identity]) }
	if slices.IndexFunc(s.Orphans, func(o reconcile.Orphan) bool { return !believed(o) }) < 0 {
		return
	}
	var orphans []reconcile.Orphan
	for _, o := range s.Orphans {
		if believed(o) {
			orphans = append(orphans, o)
		} else {
			s.Errors = append(s.Errors, unbelievable(o.Node, o.Identity, o.Revision, max(pod.MaxReported, told[o.Identity])))
		}
	}
	s.Orphans = orphans
}

func unbelievable(name string, id pod.Identity, revision, most int64) string {
	return fmt.Sprintf("what node %s reports of %s is not believed: revision: %d; allowed: up to %d", name, id, revision, most)
}
