package reconcile

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
)

// moveState is how far a pod has got that was given another node while its former copy was left running. ADR 8 has the table
// of what happens in each state.
type moveState int

const (
	notMoving moveState = iota // no copy was left running, or none by a move
	arrived                    // the new copy is available, or has ended with status 0
	needless                   // the former copy is, and its node may keep it by now
	underWay                   // the new copy has time left
	stuck                      // it has failed, or not become available in time
)

// moves brings pods that were given another node to the end of that.
type moves struct{ *room }

// moveOf returns how far the move of a pod has got, and the copy that takes its place if it goes back, if there is one. Why says what
// is wrong with a new copy that is stuck.
func (c moves) moveOf(p *Pod) (state moveState, back *pod.Ghost, why string) {
	left := slices.ContainsFunc(p.Placement.Ghosts, func(g pod.Ghost) bool { return g.Revision == 0 })
	switch {
	case p.RunState != pod.Running || !left:
		return notMoving, nil, ""
	case c.s.availableHere(p), c.s.endedWell(p):
		return arrived, nil, ""
	}
	found := p.AdoptedAtGeneration != 0 // then this copy is the one that counts, unless the former one was left as lost (R2)
	for _, g := range p.Placement.Ghosts {
		if r := p.Ghosts[g.Node]; g.Revision == 0 && r != nil && r.Available && mayKeep(c.s, g) && (g.LeftBecauseLost || !found) {
			return needless, &g, ""
		}
	}
	if found {
		return notMoving, nil, ""
	}
	if g, ok := formerCopy(c.s, p, p.Placement.Ghosts); ok && (c.s.counts(p, g) || c.s.aliveOn(g.Node) && p.runsOn(g)) {
		back = &g
	}
	if why = c.stalled(p); why != "" {
		return stuck, back, why
	}
	return underWay, back, ""
}

// mayKeep reports whether nothing is left of what a pod was moved off the node of a former copy for.
func mayKeep(s *Snapshot, g pod.Ghost) bool {
	v := s.Nodes[g.Node]
	switch {
	case v == nil || !v.Alive || v.OpsUnread != "":
		return false
	case g.LeftBecauseLost:
		return true // it came back; if it must be left for another reason that comes next
	default:
		return !v.MustLeave() && s.matches(v)
	}
}

// finishMoves takes each move one step further: the former copy goes when the new one is available; it is the pod again when
// its node may keep it by now, or when the new one does not become available. A pod without such a copy is moved on.
func (c moves) finishMoves() {
	for p := range c.open() {
		switch state, back, why := c.moveOf(p); {
		case state != notMoving && c.s.ordered(p.Role): // it was moved before its group was ordered
			c.endMove(p)
		case state == arrived && c.s.endedWell(p):
			c.endWithFormerCopies(p)
		case state == arrived:
			c.stopFormerCopies(p, func(string) bool { return true }, "it is available on "+p.Node, false)
		case state == needless && back.LeftBecauseLost:
			c.comeBack(p, *back, p.Avoid, "its lost node came back before the replacement on "+p.Node+" was available", true)
		case state == needless:
			c.comeBack(p, *back, p.Avoid, back.Node+" may keep it again", true)
		case state == stuck && back != nil:
			c.block(why)
			c.comeBack(p, *back, avoiding(c.s, p), "it was moved in vain: "+why, true)
		case state == stuck && c.mayMoveOn(p):
			c.placeElsewhere(p.Identity)
		}
	}
}

// endWithFormerCopies stops the former copies of a pod that has done its work where it was moved to. One of them may be
// what counts as available of the pod: then it runs on while the minimum needs it.
func (c moves) endWithFormerCopies(p *Pod) {
	spare := len(c.companionPods) - c.limits.least
	for other := range c.open() {
		if c.s.counting(other) {
			spare++
		}
	}
	if c.s.counting(p) && spare <= 0 {
		c.block(fmt.Sprintf("%s.%d has ended on %s, and its former copy stays: %d available replicas and a minimum of %d leave no room",
			p.Role, p.Identity.Index, p.Node, spare+c.limits.least, c.limits.least))
		return
	}
	c.stopFormerCopies(p, func(string) bool { return true }, "it has ended on "+p.Node, false)
}

// mayMoveOn reports whether a pod that is stuck on its new node, and has nowhere to go back to, is tried on another one.
func (c moves) mayMoveOn(p *Pod) bool {
	if c.s.each != nil || c.s.Hold != "" || c.s.rests(p) || kept(c.s, p) != "" || !c.s.aliveOn(p.Node) || c.surplus(p.Role) || c.triedEnough(p) || !c.takeRoom(p) {
		return false
	}
	c.replaced++ // the copy here stands until the next one is available
	return true
}

// triedEnough reports whether a pod was tried on so many nodes that it stays where it is for a while. It asks for another look when
// that is over.
func (c moves) triedEnough(p *Pod) bool {
	tried := c.s.RC.Avoided(&p.Placement, c.s.Now)
	if len(tried) < rc.MaxTries {
		return false
	}
	c.requeueAfter(c.s.RC.AvoidedUntil(tried[0]).Sub(c.s.Now))
	return true
}

// maxAvoidedReason bounds what a placement remembers of what a node said, in bytes of JSON.
const maxAvoidedReason = 200

// avoiding returns what a placement remembers of nodes that the pod was moved to in vain, with that where it is now.
func avoiding(s *Snapshot, p *Pod) []pod.Avoided {
	return append(avoidedStill(s, p), pod.Avoided{
		Node: p.Node, Since: s.Now, Generation: s.RC.Generation, Reason: field.Cut(describe(p.Reality), maxAvoidedReason),
	})
}

// avoidedStill returns what a placement goes on remembering when it gets one more node to avoid, that where it is now:
// the last few of those that count, and always where it never became available, since it gets its second node once.
func avoidedStill(s *Snapshot, p *Pod) []pod.Avoided {
	first := p.Placement.Tried()
	kept := slices.DeleteFunc(s.RC.Avoided(&p.Placement, s.Now), func(a pod.Avoided) bool { return a.Node == p.Node || a.Digest != "" })
	kept = kept[max(0, len(kept)-rc.MaxTries+1):]
	if first != nil {
		kept = append([]pod.Avoided{*first}, kept...)
	}
	return kept
}

// AvoidedBy returns the nodes that a pod must not be moved to: those where it is, or was and may still run, and those where it did not
// become available.
//
// One that is placed again may come back to where it was, if nothing else is left; an outside scheduler is told of it
// for a while.
func (s *Snapshot) AvoidedBy(p *Pod) []string {
	var names []string
	if !s.Vacant(p) {
		names = append(names, p.Node)
	}
	for _, g := range p.Placement.Ghosts {
		names = append(names, g.Node)
	}
	for _, a := range s.RC.Avoided(&p.Placement, s.Now) {
		names = append(names, a.Node)
	}
	return names
}

// tried says where a pod was moved to in vain, "" where it was not.
func tried(s *Snapshot, p *Pod) string {
	avoided := s.RC.Avoided(&p.Placement, s.Now)
	if len(avoided) == 0 {
		return ""
	}
	var nodes []string
	for _, a := range avoided {
		nodes = append(nodes, fmt.Sprintf("%s (%s)", a.Node, a.Reason))
	}
	return "it did not become available on " + strings.Join(nodes, ", ")
}

// occupied reports whether others wait for a pod, since one moves at a time: it is on its way, or a former copy of it has not
// confirmed its stop. Nobody waits for longer than the deadline. It returns a copy that is waited for.
func (c moves) occupied(p *Pod) (by *pod.Ghost, is bool) {
	for _, g := range p.Placement.Ghosts {
		if !lingers(c.s, g) {
			continue
		}
		since, deadline := p.ChangedAt, deadline(c.s, p)
		if g.Revision != 0 {
			since, deadline = time.UnixMilli(g.Revision), c.s.RC.Deadline() // of the stop
			if field.NotAhead(&since, c.s.Now) {
				since = g.Since // revisions are ahead, because a clock was (R3)
			}
		}
		left := deadline - c.s.Now.Sub(since)
		if left > 0 && (g.Revision != 0 || c.stalled(p) == "") {
			c.requeueAfter(left)
			return &g, true
		}
	}
	return nil, false
}
