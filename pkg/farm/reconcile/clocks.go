package reconcile

import (
	"slices"
	"time"

	"github.com/rcfarm/rcfarm/pkg/field"
)

// clocks replaces times in placements that lie in the future, because a farm's clock was wrong. Each time starts a
// wait. A start cannot be later than now, so it becomes now, and no wait gets too short.
type clocks struct{ losses }

func (p *Pod) clampTimes(now time.Time) {
	inFuture := field.NotAhead(&p.ChangedAt, now)
	for _, mark := range []**time.Time{&p.StoppingSince, &p.LostSince, &p.UnmanagedSince} {
		inFuture = field.NoneAhead(mark, now) || inFuture
	}
	// Other readers of the record share the lists, so clone them.
	for i := range p.Placement.Ghosts {
		if since := p.Placement.Ghosts[i].Since; field.NotAhead(&since, now) {
			p.Placement.Ghosts = slices.Clone(p.Placement.Ghosts)
			p.Placement.Ghosts[i].Since, inFuture = since, true
		}
	}
	for i := range p.Avoid {
		if since := p.Avoid[i].Since; field.NotAhead(&since, now) {
			p.Avoid = slices.Clone(p.Avoid)
			p.Avoid[i].Since, inFuture = since, true
		}
	}
	p.timesInFuture = inFuture
}

// record writes the corrected times, which the decision used. If the pod has another change, that change writes them.
func (c clocks) record() {
	for p := range c.f.all() {
		if !p.timesInFuture {
			continue
		}
		next := p.Placement
		ch := p.change(Mark, &next, "the record had times in the future, from a clock that was wrong")
		if !c.changed[p.Identity] {
			c.add(ch)
		} else {
			c.recordWithoutMove(ch)
		}
	}
}
