package reconcile

import (
	"cmp"
	"slices"

	"github.com/rcfarm/rcfarm/pkg/pod"
)

// Leftover is a pod with an intent but without a placement. Its controller has no record, and an operator asked for its
// stop.
type Leftover struct {
	Node    string
	Intent  pod.Intent
	Reality *pod.Reality // nil: the node reports nothing
}

type leftovers struct{ *draft }

// stop gives each leftover a placement that is asked to stop, or makes it a former copy of an existing placement. From
// then on it stops like any pod. waits reports whether a leftover has to wait.
func (l leftovers) stop() (waits bool) {
	left := slices.Clone(l.f.Leftovers)
	slices.SortFunc(left, func(a, b Leftover) int {
		return cmp.Or(
			a.Intent.Compare(b.Intent.Identity),
			cmp.Compare(b.Intent.Revision, a.Intent.Revision),
			cmp.Compare(a.Node, b.Node),
		)
	})
	for i := range left {
		old := &left[i]
		p := l.f.find(old.Intent.Identity)
		switch {
		case p != nil && p.has(old.Node):
		case l.changed[old.Intent.Identity] || !l.mayStop():
			waits = true
		default:
			l.stopOne(old, p)
		}
	}
	return waits
}

func (l leftovers) stopOne(old *Leftover, p *Pod) {
	seen := []int64{old.Intent.Revision}
	if old.Reality != nil {
		seen = append(seen, old.Reality.Revision)
	}
	in, now := old.Intent, l.f.Now
	ch := Change{
		Action: Stop, Identity: in.Identity, NeedsBreaker: true, NeedsSchema: true,
		Reason: "neither its controller nor a placement has a record",
	}
	if p != nil {
		next := p.Placement
		ghost := pod.Ghost{Node: old.Node, Revision: p.nextRevision(now, seen...), Since: now, Ports: in.Ports}
		next.Ghosts = append(slices.Clone(next.Ghosts), ghost)
		in = next.GhostIntent(ghost)
		ch.Index, ch.Placement = p.Index, &next
	} else {
		in.State, in.Revision = pod.Stopped, pod.NextRevision(now, append(seen, l.f.Stopped[in.Identity])...)
		ch.Placement = &pod.Placement{
			Identity: in.Identity, Node: old.Node, PodID: in.PodID, Digest: in.Digest, Labels: in.Labels,
			Ports: in.Ports, Standby: in.Standby, Replicas: in.Replicas, RunState: pod.Stopped,
			Revision: in.Revision, ChangedAt: now, StoppingSince: &now,
		}
	}
	ch.Intents = []IntentChange{{Node: old.Node, Intent: &in}}
	l.add(ch)
}
