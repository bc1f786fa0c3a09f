package reconcile

import (
	"cmp"
	"slices"

	"github.com/rcfarm/rcfarm/pkg/pod"
)

// Leftover is a pod that a node was told about, of a controller without a record, and of which no placement tells. Somebody asked for its end.
type Leftover struct {
	Node    string
	Intent  pod.Intent
	Reality *pod.Reality // nil: the node reports nothing
}

// leftovers gives what is left of a controller back to its placements.
type leftovers struct{ *draft }

// stop has leftovers stop. Each becomes a placement, or a former copy of one, that is told to stop: from there on it stops, is waited for, and
// goes like any other pod. It reports whether one waits for something else.
func (c leftovers) stop() (waits bool) {
	left := slices.Clone(c.s.Leftovers)
	slices.SortFunc(left, func(a, b Leftover) int {
		return cmp.Or(a.Intent.Compare(b.Intent.Identity), cmp.Compare(b.Intent.Revision, a.Intent.Revision), cmp.Compare(a.Node, b.Node))
	})
	for i := range left {
		l := &left[i]
		p := c.s.find(l.Intent.Identity)
		switch {
		case p != nil && p.has(l.Node):
		case c.changed[l.Intent.Identity] || !c.mayStop():
			waits = true
		default:
			c.stopOne(l, p)
		}
	}
	return waits
}

// stopOne makes a leftover the placement that is missing, or a former copy of the one that is there.
func (c leftovers) stopOne(l *Leftover, p *Pod) {
	seen := []int64{l.Intent.Revision}
	if l.Reality != nil {
		seen = append(seen, l.Reality.Revision)
	}
	in, now := l.Intent, c.s.Now
	ch := Change{
		Action: Stop, Identity: in.Identity, NeedsBreaker: true, NeedsSchema: true,
		Reason: "its controller has no record, and no placement told of it",
	}
	if p != nil {
		next := p.Placement
		ghost := pod.Ghost{Node: l.Node, Revision: p.nextRevision(now, seen...), Since: now, Ports: in.Ports}
		next.Ghosts = append(slices.Clone(next.Ghosts), ghost)
		in = next.GhostIntent(ghost)
		ch.Index, ch.Placement = p.Index, &next
	} else {
		in.State, in.Revision = pod.Stopped, pod.NextRevision(now, append(seen, c.s.Stopped[in.Identity])...)
		ch.Placement = &pod.Placement{
			Identity: in.Identity, Node: l.Node, PodID: in.PodID, Digest: in.Digest, Labels: in.Labels, Ports: in.Ports, Standby: in.Standby, Replicas: in.Replicas,
			RunState: pod.Stopped, Revision: in.Revision, ChangedAt: now, StoppingSince: &now,
		}
	}
	ch.Intents = []IntentChange{{Node: l.Node, Intent: &in}}
	c.add(ch)
}
