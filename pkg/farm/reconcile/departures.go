package reconcile

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/rcfarm/rcfarm/pkg/pod"
)

// departures forgets pods and copies that have stopped, and decides where a pod is then whose other copies run on.
type departures struct{ *draft }

// confirmStops forgets pods and ghosts whose stop the node has confirmed. A stop that the
// node remembers and an older store does not is confirmed too: what it freed may be taken, so the pod is not started again
// where it was; if it is desired it is given back to a former copy that was left running, or placed like any other (R1, R8).
// A stop that the node may only have confirmed before the store went back says nothing: see saysNow.
func (c departures) confirmStops() {
	for p := range c.open() {
		if c.s.Vacant(p) {
			continue // it keeps its identity, see scaling
		}
		ch := Change{Action: Remove, Identity: p.Identity, Index: p.Index, Reason: "the node confirmed the stop"}
		next := p.Placement
		next.Ghosts = nil
		for _, g := range p.Placement.Ghosts {
			if !p.hasStopped(g) || !c.s.saysNow(g.Node) {
				next.Ghosts = append(next.Ghosts, g)
				continue
			}
			ch.Intents = append(ch.Intents, IntentChange{Node: g.Node})
			ch.Reserve = append(ch.Reserve, ReserveChange{Node: g.Node})
			if stopMayBeOld(c.s, p.Ghosts[g.Node], g.Revision) {
				ch.NeedsReports = append(ch.NeedsReports, g.Node)
			}
		}
		var asked int64
		if p.RunState == pod.Stopped {
			asked = p.Revision
		}
		stopped := c.s.saysNow(p.Node) && (asked != 0 && confirmed(p.Reality, asked) || confirmed(p.Reality, p.Revision+1))
		// Its node is done with it, also where a former copy may stay for long because its machine is lost.
		passedOn := stopped && len(next.Ghosts) > 0 && c.passOn(&ch, p, next)
		if gone := stopped && len(next.Ghosts) == 0; gone || passedOn {
			ch.Intents = slices.Insert(ch.Intents, 0, IntentChange{Node: p.Node})
			ch.Reserve = append(ch.Reserve, ReserveChange{Node: p.Node})
			if stopMayBeOld(c.s, p.Reality, asked) {
				ch.NeedsReports = append(ch.NeedsReports, p.Node)
			}
		} else {
			ch.Placement = &next
		}
		if len(ch.Intents) > 0 {
			c.add(ch)
		}
	}
}

// stopMayBeOld reports whether a confirmed stop may be forgotten only if the report that confirms it is the node's
// last one. Nothing starts a pod again whose record asks for this very stop, at the revision asked; zero: it asks for
// none. Another stop is of a newer store than this: by what this one says the node may run the pod by now, and says so
// a moment after this look.
func stopMayBeOld(s *Snapshot, r *pod.Reality, asked int64) bool {
	return r.Revision != asked || s.WentBack
}

// forget carries out what operators declare: a copy on a node that is not alive counts as stopped. A request is answered with
// the change that it asks for, or when there is nothing to change, or when it is void; else it stays for the next look.
func (c departures) forget() {
	for _, r := range c.s.Requests {
		if !r.Forget {
			continue
		}
		p := c.s.find(r.Pod)
		switch {
		case p == nil || !p.has(r.Node):
			c.plan.Answered = append(c.plan.Answered, r.ID)
		case r.void() != "":
			c.plan.Answered = append(c.plan.Answered, r.ID)
			c.plan.Void = append(c.plan.Void, Void{Request: r.ID, Node: r.Node, Reason: fmt.Sprintf(
				"request %s to forget %s.%d on %s is void: %s", r.ID, r.Pod.Role, r.Pod.Index, r.Node, r.void())})
		case !c.changed[p.Identity]:
			c.forgetCopy(p, r)
		}
	}
}

// void returns why a declaration is about nothing any more, "" while it holds. What ran on the machine when the operator looked
// may have died with it; of what runs there since, nobody has said anything.
func (r *Request) void() string {
	switch {
	case r.Alive:
		return "the node's preparer is back"
	case r.NodeIndex != r.Declared:
		return "the node's preparer was back in between, or the node's record was removed; look again, and ask again if the pod is gone"
	}
	return ""
}

// has reports whether a copy of the pod is, or may still be, on a node.
func (p *Pod) has(nodeName string) bool {
	return p.Node == nodeName || slices.ContainsFunc(p.Placement.Ghosts, func(g pod.Ghost) bool { return g.Node == nodeName })
}

func (c departures) forgetCopy(p *Pod, r Request) {
	ch := Change{
		Action: Remove, Identity: p.Identity, Index: p.Index, Reason: "an operator declared it gone", Answers: []string{r.ID},
		NeedsDead: []DeadNode{{Name: r.Node, Index: r.NodeIndex}},
		Intents:   []IntentChange{{Node: r.Node}}, Reserve: []ReserveChange{{Node: r.Node}},
	}
	next := p.Placement
	next.Ghosts = slices.DeleteFunc(slices.Clone(next.Ghosts), func(g pod.Ghost) bool { return g.Node == r.Node })
	switch {
	case p.Node != r.Node:
		ch.Placement = &next
	case len(next.Ghosts) > 0:
		if !c.passOn(&ch, p, next) {
			return
		}
		if ch.Placement.RunState == pod.Running {
			ch.Action, ch.Reason = Return, "an operator declared its copy on "+p.Node+" gone"
		}
	}
	c.add(ch)
}

// passOn completes a change after which a pod is not where it was placed any more, while former copies run, or may: the node of
// one of them becomes the pod's. It reports whether that may be done now.
func (c departures) passOn(ch *Change, p *Pod, next pod.Placement) bool {
	g, left := formerCopy(c.s, p, next.Ghosts)
	switch {
	case claimed(c.s, p):
		return false
	case !left:
		if !c.mayStop() {
			return false
		}
		c.stopAt(ch, p, next, next.Ghosts[0])
	case c.s.Hold != "" && !p.runsOn(g):
		c.waiting = true // it would be started there, while it may run on a node that has not spoken yet (R1)
		return false
	default:
		c.handBack(ch, p, next, g)
	}
	return true
}

// claimed reports whether the pod runs elsewhere at a higher revision than its placement knows: then adopt takes that one (R2).
func claimed(s *Snapshot, p *Pod) bool {
	return slices.ContainsFunc(s.Orphans, func(o Orphan) bool {
		return o.Identity == p.Identity && o.Node != p.Node && s.outranks(&o, p)
	})
}

// formerCopy returns which of some former copies of a pod that is to run takes its place, if one was left running: nobody
// asked that one to stop, and while the pod moved it was the one that counted (P6).
func formerCopy(s *Snapshot, p *Pod, ghosts []pod.Ghost) (best pod.Ghost, left bool) {
	if p.RunState != pod.Running || s.ordered(p.Role) {
		return best, false
	}
	some := slices.DeleteFunc(slices.Clone(ghosts), func(g pod.Ghost) bool {
		r := p.Ghosts[g.Node]
		return g.Revision != 0 || r != nil && r.State == pod.StateStopped
	})
	if len(some) == 0 {
		return best, false
	}
	return slices.MinFunc(some, func(a, b pod.Ghost) int {
		return cmp.Or(
			boolFirst(s.counts(p, a), s.counts(p, b)),
			boolFirst(s.aliveOn(a.Node), s.aliveOn(b.Node)),
			boolFirst(!s.machineLost(a.Node), !s.machineLost(b.Node)),
			b.Since.Compare(a.Since),
		)
	}), true
}

// handBack completes a change after which a former copy that was left running is the pod again. Nothing stops by that. If its
// node is lost too, or must be left, it is replaced or moved like any other.
func (c departures) handBack(ch *Change, p *Pod, next pod.Placement, g pod.Ghost) {
	next = backOn(c.s, p, next, g)
	if next.LostSince != nil {
		ch.needsDead(c.s.death(g.Node)) // the placement says so
	}
	in := next.Intent()
	ch.Placement, ch.NeedsSchema = &next, true
	ch.Intents = append(ch.Intents, IntentChange{Node: g.Node, Intent: &in})
}

// stopAt completes a change after which a pod is where it was asked to stop, or has to with the pod.
func (c departures) stopAt(ch *Change, p *Pod, next pod.Placement, g pod.Ghost) {
	next.Node, next.Ports, next.Ghosts, next.RunState = g.Node, p.PortsOf(g), next.Ghosts[1:], pod.Stopped
	next.Revision, next.ChangedAt = p.nextRevision(c.s.Now), c.s.Now
	next.LostSince, next.UnmanagedSince, next.DeadIndex = nil, nil, 0
	if next.StoppingSince == nil {
		now := c.s.Now
		next.StoppingSince = &now
	}
	in := next.Intent()
	ch.Placement, ch.NeedsBreaker = &next, true
	ch.Intents = append(ch.Intents, IntentChange{Node: g.Node, Intent: &in})
}
