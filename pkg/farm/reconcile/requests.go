package reconcile

import (
	"slices"
	"time"

	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
)

// pagesRetry is when a request is looked at again that waits for the pages of a node's orphans.
const pagesRetry = time.Second

// release gives back what is reserved for pods that are not there. It reports the nodes that hold more of it, or may.
func (c *draft) release() (left map[string]bool) {
	left = map[string]bool{}
	for _, l := range c.s.Leaks {
		p := c.s.find(l.Pod)
		if p != nil && p.has(l.Node) || orphaned(c.s, l) {
			continue
		}
		if c.s.Hold != "" {
			left[l.Node], c.waiting = true, true // its node may not have said yet that it runs there
			continue
		}
		v := c.s.Nodes[l.Node]
		if v != nil && v.Alive && v.OrphansUnread { // what it runs is being read, and nothing rings after that
			left[l.Node] = true
			c.requeueAfter(pagesRetry)
			continue
		}
		if v == nil || !v.Spoke(c.s.Epoch) {
			continue // nor has one that is away; the leader asks again once it has (R1)
		}
		left[l.Node] = true
		if c.changed[l.Pod] {
			continue
		}
		ch := Change{
			Action: Release, Identity: l.Pod, Reason: l.Node + " holds a share for a pod that is not there",
			Reserve: []ReserveChange{{Node: l.Node, Claim: (*node.Claim)(nil)}},
		}
		if p != nil {
			same := p.Placement
			ch.Index, ch.Placement = p.Index, &same
		}
		c.add(ch)
	}
	return left
}

// orphaned reports whether the node says, or said last, that it runs the pod without being told to.
func orphaned(s *Snapshot, l Leak) bool {
	v := s.Nodes[l.Node]
	return slices.ContainsFunc(s.Orphans, func(o Orphan) bool { return o.Identity == l.Pod && o.Node == l.Node }) ||
		v != nil && slices.ContainsFunc(v.Orphans, func(o pod.Orphan) bool { return o.Identity == l.Pod })
}

// answer deals with the requests that are about no living copy: a sweep with the adoption that it is about, the repair
// of a reservation when nothing is left of it to be given back. It reports whether one waits for something else.
func (c *draft) answer(left map[string]bool) (waits bool) {
	for _, r := range c.s.Requests {
		if r.Forget || r.Label != nil {
			continue
		}
		if r.Waits != "" {
			c.requeueAfter(RoomRetry) // nothing rings when the record is mended
			waits = true
			continue
		}
		at := slices.IndexFunc(c.plan.Changes, func(ch Change) bool { return ch.Action == Adopt && ch.Identity == r.Pod })
		switch {
		case at >= 0:
			ch := &c.plan.Changes[at]
			ch.Answers = append(ch.Answers, r.ID)
		case r.Pod != (pod.Identity{}) || !left[r.Node]:
			c.plan.Answered = append(c.plan.Answered, r.ID)
		}
	}
	return waits
}
