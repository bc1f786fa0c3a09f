package reconcile

import (
	"fmt"
	"slices"
	"time"

	"github.com/rcfarm/rcfarm/pkg/pod"
)

// pagesRetry is the wait before the next look at a request while a node's list of orphans is being read.
const pagesRetry = time.Second

func (d *draft) void(r *Request, to, why string) {
	d.plan.Answered = append(d.plan.Answered, r.ID)
	d.plan.Void = append(d.plan.Void, Void{Request: r.ID, Node: r.Node, Reason: fmt.Sprintf(
		"request %s to %s %s on %s is void: %s", r.ID, to, name(r.Pod), r.Node, why)})
}

// release gives back shares that nodes have reserved for pods without a copy there. It returns the nodes that may still
// have such shares.
func (d *draft) release() (left map[string]bool) {
	left = map[string]bool{}
	for _, l := range d.f.UnusedShares {
		p := d.f.find(l.Pod)
		if p != nil && p.has(l.Node) || orphaned(d.f, l) {
			continue
		}
		if d.f.Hold != "" {
			left[l.Node], d.waiting = true, true // the node may not have reported yet that the pod runs there
			continue
		}
		v := d.f.Nodes[l.Node]
		if v != nil && v.Alive && v.OrphansUnread { // its orphans are being read, and no bell rings when that is done
			left[l.Node] = true
			d.requeueAfter(pagesRetry)
			continue
		}
		if v == nil || !v.Spoke(d.f.Epoch) {
			continue // the node is away or has not spoken; the leader asks again when the node has spoken (R1)
		}
		left[l.Node] = true
		if d.changed[l.Pod] {
			continue
		}
		ch := Change{
			Action: Release, Identity: l.Pod, Reason: l.Node + " holds a share for a pod that is not there",
			Reserve: []ReserveChange{{Node: l.Node}},
		}
		if p != nil {
			same := p.Placement
			ch.Index, ch.Placement = p.Index, &same
		}
		d.add(ch)
	}
	return left
}

// orphaned reports whether the node lists the pod as an orphan, or listed it in its last report.
func orphaned(f *Facts, l UnusedShare) bool {
	v := f.Nodes[l.Node]
	return v != nil && slices.ContainsFunc(v.Orphans, func(o pod.Orphan) bool { return o.Identity == l.Pod }) ||
		slices.ContainsFunc(f.Orphans, func(o Orphan) bool { return o.Identity == l.Pod && o.Node == l.Node })
}

// answer handles the requests that ask neither to forget nor to label a pod. The pod's adoption answers a request about
// an orphan (SweepOrphan); without an adoption it is answered at once. A request to repair a reservation is answered
// when no share is left to release. waits reports whether a request waits.
func (d *draft) answer(left map[string]bool) (waits bool) {
	for _, r := range d.f.Requests {
		if r.Forget || r.Label != nil {
			continue
		}
		if r.Waits != "" {
			d.requeueAfter(RetryAfter) // no bell rings when the record is repaired
			waits = true
			continue
		}
		at := slices.IndexFunc(d.plan.Changes, func(ch Change) bool {
			return ch.Action == Adopt && ch.Identity == r.Pod
		})
		switch {
		case at >= 0:
			ch := &d.plan.Changes[at]
			ch.Answers = append(ch.Answers, r.ID)
		case r.Pod != (pod.Identity{}) || !left[r.Node]:
			d.plan.Answered = append(d.plan.Answered, r.ID)
		}
	}
	return waits
}
