package reconcile

import (
	"cmp"
	"slices"

	"github.com/rcfarm/rcfarm/pkg/pod"
)

// departures forgets pods and copies that have stopped, and decides where a pod is afterwards if another copy runs.
type departures struct{ *draft }

// confirmStops forgets pods and former copies whose stop the node has confirmed, also if the store has lost the stop.
// Other pods may have taken the freed capacity, so the pod must not start there again. If a former copy still runs, the
// pod continues as that copy. Otherwise it is placed anew (R1, R8).
func (d departures) confirmStops() {
	for p := range d.open() {
		if d.f.Vacant(p) {
			continue // its placement keeps the identity, see scaling
		}
		ch := p.change(Remove, nil, "the node confirmed the stop")
		next := p.Placement
		next.Ghosts = nil
		for _, g := range p.Placement.Ghosts {
			if !p.hasStopped(g) || !d.f.reportIsCurrent(g.Node) {
				next.Ghosts = append(next.Ghosts, g)
				continue
			}
			ch.release(g.Node)
			if d.f.stopMayBeStale(p.Ghosts[g.Node], g.Revision) {
				ch.NeedsReports = append(ch.NeedsReports, g.Node)
			}
		}
		var asked int64
		if p.RunState == pod.Stopped {
			asked = p.Revision
		}
		stopped := d.f.reportIsCurrent(p.Node) &&
			(asked != 0 && confirmed(p.Reality, asked) || confirmed(p.Reality, p.Revision+1))
		// A former copy on a lost machine may stay for long, so the pod does not wait until it has gone.
		passedOn := stopped && len(next.Ghosts) > 0 && d.continueAsFormerCopy(&ch, p, next)
		if gone := stopped && len(next.Ghosts) == 0; gone || passedOn {
			ch.Intents = slices.Insert(ch.Intents, 0, IntentChange{Node: p.Node})
			ch.Reserve = append(ch.Reserve, ReserveChange{Node: p.Node})
			if d.f.stopMayBeStale(p.Reality, asked) {
				ch.NeedsReports = append(ch.NeedsReports, p.Node)
			}
		} else {
			ch.Placement = &next
		}
		if len(ch.Intents) > 0 {
			d.add(ch)
		}
	}
}

// stopMayBeStale reports whether the pod may run again although its stop is confirmed. Then the farm may forget the pod
// only if that report is still the node's last. asked is the revision of the stop in the records, zero for none. If the
// node confirmed another stop, which the store has lost, the node may run the pod by now.
func (s *Snapshot) stopMayBeStale(r *pod.Reality, asked int64) bool {
	return r.Revision != asked || s.WentBack
}

// forget carries out operators' declarations that a copy is gone: it forgets the copy as if it had stopped. A request
// about a pod with another change waits for the next look.
func (d departures) forget() {
	for _, r := range d.f.Requests {
		if !r.Forget {
			continue
		}
		p := d.f.find(r.Pod)
		switch {
		case p == nil || !p.has(r.Node):
			d.plan.Answered = append(d.plan.Answered, r.ID)
		case r.void() != "":
			d.void(&r, "forget", r.void())
		case !d.changed[p.Identity]:
			d.forgetCopy(p, r)
		}
	}
}

// void returns why an operator's declaration is void, "" if it is valid. If a preparer has held the node since, a pod
// that runs there now is not the one that the operator meant.
func (r *Request) void() string {
	switch {
	case r.Alive:
		return "the node's preparer is back"
	case r.NodeIndex != r.Declared:
		return "the node's preparer was back in between, or the node's record was removed; " +
			"look again, and ask again if the pod is gone"
	}
	return ""
}

func (p *Pod) has(nodeName string) bool {
	return p.Node == nodeName ||
		slices.ContainsFunc(p.Placement.Ghosts, func(g pod.Ghost) bool { return g.Node == nodeName })
}

func (d departures) forgetCopy(p *Pod, r Request) {
	ch := p.change(Remove, nil, "an operator declared it gone")
	ch.Answers = []string{r.ID}
	ch.needsDead(DeadNode{Name: r.Node, Index: r.NodeIndex})
	ch.release(r.Node)
	next := p.Placement
	next.Ghosts = without(next.Ghosts, r.Node)
	switch {
	case p.Node != r.Node:
		ch.Placement = &next
	case len(next.Ghosts) > 0:
		if !d.continueAsFormerCopy(&ch, p, next) {
			return
		}
		if ch.Placement.RunState == pod.Running {
			ch.Action, ch.Reason = Return, "an operator declared its copy on "+p.Node+" gone"
		}
	}
	d.add(ch)
}

// continueAsFormerCopy completes a change after which the pod leaves its node, and is on the node of a former copy. It
// reports whether this may be done now.
func (d departures) continueAsFormerCopy(ch *Change, p *Pod, next pod.Placement) bool {
	g, left := formerCopy(d.f, p, next.Ghosts)
	switch {
	case runsNewerElsewhere(d.f, p):
		return false
	case !left:
		if !d.mayStop() {
			return false
		}
		d.stopAt(ch, p, next, next.Ghosts[0])
	case d.f.Hold != "" && !p.runsOn(g):
		d.waiting = true // the pod would start there, and may run on a node that has not reported yet (R1)
		return false
	default:
		d.resumeFormerCopy(ch, p, next, g)
	}
	return true
}

// runsNewerElsewhere reports whether a copy elsewhere has a higher revision than the placement. adopt takes that copy
// (R2).
func runsNewerElsewhere(f *Facts, p *Pod) bool {
	return slices.ContainsFunc(f.Orphans, func(o Orphan) bool {
		return o.Identity == p.Identity && o.Node != p.Node && f.outranks(&o, p)
	})
}

// formerCopy returns the former copy that becomes the pod again; left is false if there is none. It chooses among
// copies that were not asked to stop and are not known to have stopped, the available ones first (P6).
func formerCopy(f *Facts, p *Pod, ghosts []pod.Ghost) (best pod.Ghost, left bool) {
	if p.RunState != pod.Running || f.ordered(p.Role) {
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
			boolFirst(f.formerAvailable(p, a), f.formerAvailable(p, b)),
			boolFirst(f.aliveOn(a.Node), f.aliveOn(b.Node)),
			boolFirst(!f.machineLost(a.Node), !f.machineLost(b.Node)),
			b.Since.Compare(a.Since),
		)
	}), true
}

// resumeFormerCopy completes a change after which a former copy is the pod again. If that node is lost too, or must be
// left, a later look replaces or moves the pod.
func (d departures) resumeFormerCopy(ch *Change, p *Pod, next pod.Placement, g pod.Ghost) {
	next = placementBackOn(d.f, p, next, g)
	if next.LostSince != nil {
		ch.needsDead(d.f.death(g.Node)) // the placement has the node as lost
	}
	ch.Placement, ch.NeedsSchema = &next, true
	ch.setIntent(g.Node, next.Intent())
}

// stopAt completes a change after which the pod is on the node of a former copy, and stops there.
func (d departures) stopAt(ch *Change, p *Pod, next pod.Placement, g pod.Ghost) {
	next.Node, next.Ports, next.Ghosts, next.RunState = g.Node, p.PortsOf(g), next.Ghosts[1:], pod.Stopped
	next.Revision, next.ChangedAt = p.nextRevision(d.f.Now), d.f.Now
	next.LostSince, next.UnmanagedSince, next.DeadIndex = nil, nil, 0
	if next.StoppingSince == nil {
		now := d.f.Now
		next.StoppingSince = &now
	}
	ch.Placement, ch.NeedsBreaker = &next, true
	ch.setIntent(g.Node, next.Intent())
}
