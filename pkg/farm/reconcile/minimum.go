package reconcile

import (
	"slices"

	"github.com/rcfarm/rcfarm/pkg/pod"
)

// minimum is what changes depend on that take what counts as available, or need that as much does.
type minimum struct{ *room }

// guardMinimum says of each change that depends on what is available on what exactly it does (P6, ADR 11).
func (c minimum) guardMinimum() {
	changed := make(map[pod.Identity]*Change, len(c.plan.Changes))
	for i := range c.plan.Changes {
		ch := &c.plan.Changes[i]
		changed[ch.Identity] = ch
	}
	counting := slices.Clone(c.companionPods)
	for p := range c.s.all() {
		ch := changed[p.Identity]
		before, counted := c.s.countsOn(p, &p.Placement)
		if ch == nil {
			if counted {
				counting = append(counting, Copy{Node: before, Identity: p.Identity})
			}
			continue
		}
		node, counts := "", false
		if ch.Placement != nil {
			node, counts = c.s.countsOn(p, ch.Placement)
		}
		switch {
		case counts:
			counting = append(counting, Copy{Node: node, Identity: p.Identity})
			if ch.NeedsMinimum {
				ch.NeedsMinimum, ch.NeedsReports = false, []string{node}
			}
		case counted && ch.NeedsMinimum:
			counting = append(counting, Copy{Node: before, Identity: p.Identity})
			ch.Takes = true
		}
	}
	c.guard(counting)
}

// guard decides what keeps changes that take nothing which counts from taking what has come to count meanwhile: the minimum where as
// much as that counts, else the reports which show that they do not. A plan takes no more than there is to spare, so that what others
// take of it makes no difference here.
func (c minimum) guard(counting []Copy) {
	least := c.limits.least
	relied := false
	for i := range c.plan.Changes {
		ch := &c.plan.Changes[i]
		switch {
		case !ch.NeedsMinimum:
			continue
		case least == 0:
			ch.NeedsMinimum = false
		case !ch.Takes && len(counting) < least:
			ch.NeedsMinimum = false
			for _, in := range ch.Intents {
				ch.NeedsReports = append(ch.NeedsReports, in.Node)
			}
		}
		relied = relied || ch.NeedsMinimum
	}
	if relied {
		c.plan.Counting, c.plan.Minimum = counting, least
	}
}

// countsOn returns the node where a pod counts as available if its placement is, or was, the given one.
func (s *Snapshot) countsOn(p *Pod, as *pod.Placement) (node string, counts bool) {
	if as.RunState != pod.Running || as.Standby {
		return "", false
	}
	on := func(name, digest string) bool {
		r := p.Ghosts[name]
		if name == p.Node {
			r = p.Reality
		}
		return r != nil && r.Counts() && (digest == "" || r.Digest == digest) && !s.machineLost(name)
	}
	if on(as.Node, as.Digest) {
		return as.Node, true
	}
	for _, g := range as.Ghosts {
		if g.Revision == 0 && on(g.Node, "") {
			return g.Node, true
		}
	}
	return "", false
}

// counting reports whether a pod counts as available for the minimum: one that stands by does not.
func (s *Snapshot) counting(p *Pod) bool {
	_, counts := s.countsOn(p, &p.Placement)
	return counts
}
