package reconcile

import (
	"slices"

	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
)

// forget carries out what operators declare: a copy on a node that is not alive counts as stopped. A request is answered with
// the change that it asks for, or when there is nothing to change; else it stays for the next look.
func (c *computation) forget() {
	for _, r := range c.s.Requests {
		if !r.Forget {
			continue
		}
		p := c.find(r.Pod)
		switch {
		case p == nil || r.Alive || !p.has(r.Node):
			c.plan.Answered = append(c.plan.Answered, r.ID)
		case !c.touched[p.Identity]:
			c.forgetCopy(p, r)
		}
	}
}

// has reports whether a copy of the pod is, or may still be, on a node.
func (p *Pod) has(nodeName string) bool {
	return p.Node == nodeName || slices.ContainsFunc(p.Placement.Ghosts, func(g pod.Ghost) bool { return g.Node == nodeName })
}

func (c *computation) forgetCopy(p *Pod, r Request) {
	ch := Change{
		Action: Remove, Identity: p.Identity, Index: p.Index, Reason: "an operator declared it gone", Answers: []string{r.ID},
		NeedsDead: &DeadNode{Name: r.Node, Index: r.NodeIndex},
		Intents:   []IntentChange{{Node: r.Node}}, Reserve: []ReserveChange{{Node: r.Node}},
	}
	next := p.Placement
	next.Ghosts = slices.DeleteFunc(slices.Clone(next.Ghosts), func(g pod.Ghost) bool { return g.Node == r.Node })
	switch {
	case p.Node != r.Node:
		ch.Placement = &next
	case len(next.Ghosts) > 0:
		if !c.mayStop() {
			return
		}
		c.handOn(&ch, p, next)
	}
	c.add(ch)
}

// handOn completes a change after which a pod is not where it was placed any more, while a former copy may still run: that
// one's node becomes the pod's, asked to stop. The caller knows that something may be stopped.
func (c *computation) handOn(ch *Change, p *Pod, next pod.Placement) {
	g := next.Ghosts[0]
	next.Node, next.Ports, next.Ghosts, next.RunState = g.Node, p.PortsOf(g), next.Ghosts[1:], pod.Stopped
	next.Revision, next.ChangedAt = p.nextRevision(c.s.Now), c.s.Now
	next.LostSince, next.UnmanagedSince = nil, nil
	if next.StoppingSince == nil {
		now := c.s.Now
		next.StoppingSince = &now
	}
	in := next.Intent()
	ch.Placement, ch.NeedsBreaker = &next, true
	ch.Intents = append(ch.Intents, IntentChange{Node: g.Node, Intent: &in})
}

// release gives back what is reserved for pods that are not there. It reports the nodes that hold more of it, or may.
func (c *computation) release() (left map[string]bool) {
	left = map[string]bool{}
	for _, l := range c.s.Leaks {
		p := c.find(l.Pod)
		if p != nil && p.has(l.Node) || c.orphaned(l) {
			continue
		}
		left[l.Node] = true
		if c.s.Hold != "" {
			c.waiting = true // its node may not have said yet that it runs there
			continue
		}
		if c.touched[l.Pod] {
			continue
		}
		ch := Change{
			Action: Release, Identity: l.Pod, Reason: l.Node + " holds a share for a pod that is not there",
			Reserve: []ReserveChange{{Node: l.Node, Holder: (*node.Holder)(nil)}},
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
func (c *computation) orphaned(l Leak) bool {
	v := c.s.Nodes[l.Node]
	return slices.ContainsFunc(c.s.Orphans, func(o Orphan) bool { return o.Identity == l.Pod && o.Node == l.Node }) ||
		v != nil && slices.ContainsFunc(v.Orphans, func(o pod.Orphan) bool { return o.Identity == l.Pod })
}

// answer deals with the requests that are not about forgetting: a sweep with the adoption that it is about, the repair of a
// reservation when nothing is left of it to be given back. It reports whether one waits for something else.
func (c *computation) answer(left map[string]bool) (waits bool) {
	for _, r := range c.s.Requests {
		if r.Forget {
			continue
		}
		if r.Waits != "" {
			c.lookAgain(RoomRetry) // nothing rings when the record is mended
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
