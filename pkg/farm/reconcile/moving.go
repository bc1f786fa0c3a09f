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

// moveState is the state of a pod's move, while the former copy runs. docs/design/leaving.md describes each state.
type moveState int

const (
	notMoving moveState = iota // no former copy is meant to run, or the pod was adopted here and did not move
	arrived                    // the new copy is available, or has ended with status 0
	needless                   // the former copy is available, and its node may keep it now
	underWay                   // the new copy is not available yet, and has time left
	stuck                      // the new copy has failed, or was not available in time
)

type moves struct{ *budget }

// moveOf returns the state of a pod's move, the former copy to which the pod would return (nil for none), and why the
// new copy is stuck.
func (m moves) moveOf(p *Pod) (state moveState, back *pod.Ghost, why string) {
	left := slices.ContainsFunc(p.Placement.Ghosts, func(g pod.Ghost) bool { return g.Revision == 0 })
	switch {
	case p.RunState != pod.Running || !left:
		return notMoving, nil, ""
	case m.f.availableHere(p), m.f.endedWell(p):
		return arrived, nil, ""
	}
	// An adopted pod does not return to a former copy (R2), unless it left that copy because the machine was lost.
	found := p.AdoptedAtGeneration != 0
	for _, g := range p.Placement.Ghosts {
		r := p.Ghosts[g.Node]
		runsOn := g.Revision == 0 && r != nil && r.Available
		if runsOn && nodeMayKeep(m.f, g) && (g.LeftBecauseLost || !found) {
			return needless, &g, ""
		}
	}
	if found {
		return notMoving, nil, ""
	}
	g, ok := formerCopy(m.f, p, p.Placement.Ghosts)
	if ok && (m.f.formerAvailable(p, g) || m.f.aliveOn(g.Node) && p.runsOn(g)) {
		back = &g
	}
	if why = m.stalled(p); why != "" {
		return stuck, back, why
	}
	return underWay, back, ""
}

// nodeMayKeep reports whether the reason for the pod's move off this node is gone.
func nodeMayKeep(f *Facts, g pod.Ghost) bool {
	v := f.Nodes[g.Node]
	switch {
	case v == nil || !v.Alive || v.OpsUnread != "":
		return false
	case g.LeftBecauseLost:
		return true // the machine is back; if pods must leave it for another reason, a later move does that
	default:
		return !v.MustLeave() && f.matches(v)
	}
}

// finishMoves takes each move one step further:
//
//   - If the new copy is available, the former copy stops.
//   - If the former node may keep the pod, or the new copy is stuck, the pod returns to the former copy.
//   - If a stuck pod has no former copy to return to, it moves to one more node.
func (m moves) finishMoves() {
	for p := range m.open() {
		switch state, back, why := m.moveOf(p); {
		case state != notMoving && m.f.ordered(p.Role): // the move began before the group was ordered
			m.endMove(p)
		case state == arrived && m.f.endedWell(p):
			m.endWithFormerCopies(p)
		case state == arrived:
			m.stopFormerCopies(p, anyNode, "it is available on "+p.Node, keepingMinimum)
		case state == needless && back.LeftBecauseLost:
			m.returnTo(p, *back, p.Avoid,
				"its lost node came back before the replacement on "+p.Node+" was available", keepingMinimum)
		case state == needless:
			m.returnTo(p, *back, p.Avoid, back.Node+" may keep it again", keepingMinimum)
		case state == stuck && back != nil:
			m.block(why)
			m.returnTo(p, *back, avoidWith(m.f, p), "its move failed: "+why, keepingMinimum)
		case state == stuck && m.mayMoveOn(p):
			m.placeElsewhere(p.Identity)
		}
	}
}

// endWithFormerCopies stops the former copies of a pod that has done its work on its new node, unless the minimum needs
// an available one.
func (m moves) endWithFormerCopies(p *Pod) {
	spare := m.spare()
	if m.f.availableForMinimum(p) && spare <= 0 {
		m.block(fmt.Sprintf("%s has ended on %s, and its former copy stays: "+
			"%d available replicas and a minimum of %d leave no spare pod",
			name(p.Identity), p.Node, spare+m.limits.minimum, m.limits.minimum))
		return
	}
	m.stopFormerCopies(p, anyNode, "it has ended on "+p.Node, keepingMinimum)
}

func anyNode(string) bool { return true }

func (m moves) mayMoveOn(p *Pod) bool {
	if m.f.each != nil || m.f.Hold != "" || m.f.finished(p) || whyNotMoved(m.f, p) != "" || !m.f.aliveOn(p.Node) {
		return false
	}
	if m.surplus(p.Role) || m.triedEnough(p) || !m.takeSlot(p) {
		return false
	}
	m.replaced++ // the copy here runs until the next one is available
	return true
}

// triedEnough reports whether a pod was tried on so many nodes that it is not moved again for a while. It asks for a
// look after that.
func (m moves) triedEnough(p *Pod) bool {
	tried := m.f.RC.Avoided(&p.Placement, m.f.Now)
	if len(tried) < rc.MaxTries {
		return false
	}
	m.requeueAfter(m.f.RC.AvoidedUntil(tried[0]).Sub(m.f.Now))
	return true
}

// maxAvoidedReason limits the part of a node's report in a placement, in bytes of JSON.
const maxAvoidedReason = 200

func avoidWith(f *Facts, p *Pod) []pod.Avoided {
	return append(stillAvoided(f, p), pod.Avoided{
		Node: p.Node, Since: f.Now, Generation: f.RC.Generation,
		Reason: field.Cut(describe(p.Reality), maxAvoidedReason),
	})
}

// stillAvoided returns the last few nodes that a placement continues to avoid, without the pod's present node, which
// the caller adds. The node where the pod never became available is always kept, because a pod gets a second node only
// once.
func stillAvoided(f *Facts, p *Pod) []pod.Avoided {
	first := p.Placement.Tried()
	kept := slices.DeleteFunc(f.RC.Avoided(&p.Placement, f.Now), func(a pod.Avoided) bool {
		return a.Node == p.Node || a.Digest != ""
	})
	kept = kept[max(0, len(kept)-rc.MaxTries+1):]
	if first != nil {
		kept = append([]pod.Avoided{*first}, kept...)
	}
	return kept
}

// AvoidedBy returns the nodes to which a pod must not be moved: its present node, the nodes of former copies, and for a
// while the nodes where it did not become available. A vacant pod may return to its first node, so that node is not
// added as the present one.
func (f *Facts) AvoidedBy(p *Pod) []string {
	var names []string
	if !f.Vacant(p) {
		names = append(names, p.Node)
	}
	for _, g := range p.Placement.Ghosts {
		names = append(names, g.Node)
	}
	for _, a := range f.RC.Avoided(&p.Placement, f.Now) {
		names = append(names, a.Node)
	}
	return names
}

func tried(f *Facts, p *Pod) string {
	avoided := f.RC.Avoided(&p.Placement, f.Now)
	if len(avoided) == 0 {
		return ""
	}
	var nodes []string
	for _, a := range avoided {
		nodes = append(nodes, fmt.Sprintf("%s (%s)", a.Node, a.Reason))
	}
	return "it did not become available on " + strings.Join(nodes, ", ")
}

// blocksMoves reports whether the moves of other pods wait for this pod, because one pod moves at a time. They wait
// while it moves, or until a former copy has confirmed its stop, but not beyond the deadline. by is a copy for which
// they wait.
func (m moves) blocksMoves(p *Pod) (by *pod.Ghost, is bool) {
	for _, g := range p.Placement.Ghosts {
		if !delaysMoves(m.f, g) {
			continue
		}
		since, deadline := p.ChangedAt, deadline(m.f, p)
		if g.Revision != 0 {
			since, deadline = time.UnixMilli(g.Revision), m.f.RC.Deadline() // of the stop
			if field.NotAhead(&since, m.f.Now) {
				since = g.Since // the revision is in the future, because a clock was ahead (R3)
			}
		}
		left := deadline - m.f.Now.Sub(since)
		if left > 0 && (g.Revision != 0 || m.stalled(p) == "") {
			m.requeueAfter(left)
			return &g, true
		}
	}
	return nil, false
}
