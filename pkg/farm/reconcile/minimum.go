package reconcile

import (
	"slices"

	"github.com/rcfarm/rcfarm/pkg/pod"
)

type minimum struct{ *budget }

// guardMinimum sets the conditions of changes that depend on available pods (P6, docs/design/minimum.md).
func (m minimum) guardMinimum() {
	changed := make(map[pod.Identity]*Change, len(m.plan.Changes))
	for i := range m.plan.Changes {
		ch := &m.plan.Changes[i]
		changed[ch.Identity] = ch
	}
	available := slices.Clone(m.companionPods)
	for p := range m.f.all() {
		ch := changed[p.Identity]
		before, wasAvailable := m.f.availableOn(p, &p.Placement)
		if ch == nil {
			if wasAvailable {
				available = append(available, Copy{Node: before, Identity: p.Identity})
			}
			continue
		}
		node, stillAvailable := "", false
		if ch.Placement != nil {
			node, stillAvailable = m.f.availableOn(p, ch.Placement)
		}
		switch {
		case stillAvailable:
			available = append(available, Copy{Node: node, Identity: p.Identity})
			if ch.NeedsMinimum {
				ch.NeedsMinimum, ch.NeedsReports = false, []string{node}
			}
		case wasAvailable && ch.NeedsMinimum:
			available = append(available, Copy{Node: before, Identity: p.Identity})
			ch.TakesAvailable = true
		}
	}
	m.guard(available)
}

// guard makes each stop of an unavailable pod conditional, because the pod may be available by now: on the minimum if
// enough pods are available, else on its report being unchanged.
func (m minimum) guard(available []Copy) {
	least := m.limits.minimum
	relied := false
	for i := range m.plan.Changes {
		ch := &m.plan.Changes[i]
		switch {
		case !ch.NeedsMinimum:
			continue
		case least == 0:
			ch.NeedsMinimum = false
		case !ch.TakesAvailable && len(available) < least:
			ch.NeedsMinimum = false
			for _, in := range ch.Intents {
				ch.NeedsReports = append(ch.NeedsReports, in.Node)
			}
		}
		relied = relied || ch.NeedsMinimum
	}
	if relied {
		m.plan.Available, m.plan.Minimum = available, least
	}
}

// availableOn returns the node where a pod with the given placement is available for the minimum.
func (f *Facts) availableOn(p *Pod, as *pod.Placement) (node string, available bool) {
	if as.RunState != pod.Running || as.Standby {
		return "", false
	}
	on := func(name, digest string) bool {
		r := p.Ghosts[name]
		if name == p.Node {
			r = p.Reality
		}
		return r != nil && r.Counts() && (digest == "" || r.Digest == digest) && !f.machineLost(name)
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

func (f *Facts) availableForMinimum(p *Pod) bool {
	_, counts := f.availableOn(p, &p.Placement)
	return counts
}
