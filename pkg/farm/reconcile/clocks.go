package reconcile

import (
	"slices"

	"github.com/rcfarm/rcfarm/pkg/field"
)

// clocks replaces times of placements that lie in the future, because the clock of the farm that wrote them was wrong.
// Waits count from now then, so that none is shorter than it was: what a record says began no later than now.
type clocks struct{ losses }

// readRight has the decision see no time in the future. The pods remember whether their placements have any, until note
// has that written.
func (s *Snapshot) readRight() {
	for i := range s.Pods {
		p, now := &s.Pods[i], s.Now
		ahead := field.NotAhead(&p.ChangedAt, now)
		ahead = field.NoneAhead(&p.StoppingSince, now) || ahead
		ahead = field.NoneAhead(&p.LostSince, now) || ahead
		ahead = field.NoneAhead(&p.UnmanagedSince, now) || ahead
		// The lists may be shared with others who have read the record.
		for j := range p.Placement.Ghosts {
			if since := p.Placement.Ghosts[j].Since; field.NotAhead(&since, now) {
				p.Placement.Ghosts = slices.Clone(p.Placement.Ghosts)
				p.Placement.Ghosts[j].Since, ahead = since, true
			}
		}
		for j := range p.Avoid {
			if since := p.Avoid[j].Since; field.NotAhead(&since, now) {
				p.Avoid = slices.Clone(p.Avoid)
				p.Avoid[j].Since, ahead = since, true
			}
		}
		p.timesAhead = p.timesAhead || ahead
	}
}

// note has the times written that the decision was made with, once: with what changes anyway, else alone.
func (c clocks) note() {
	for p := range c.s.all() {
		if !p.timesAhead {
			continue
		}
		next := p.Placement
		ch := Change{Action: Mark, Identity: p.Identity, Index: p.Index, Placement: &next, Reason: "the record had times in the future, from a clock that was wrong"}
		if !c.changed[p.Identity] {
			c.add(ch)
		} else {
			c.markInstead(ch)
		}
	}
}
