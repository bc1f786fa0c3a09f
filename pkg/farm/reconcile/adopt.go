package reconcile

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
)

type adoption struct{ *draft }

// adopt gives a placement and an intent to each pod that runs without a matching intent, as it runs. Of two copies it
// keeps the one with the higher revision (R2), unless an owner placed the pod in this epoch.
func (a adoption) adopt() {
	orphans := slices.Clone(a.f.Orphans)
	slices.SortFunc(orphans, func(x, y Orphan) int {
		return cmp.Or(x.Identity.Compare(y.Identity), cmp.Compare(y.Revision, x.Revision), cmp.Compare(x.Node, y.Node))
	})
	for i := range orphans {
		o := &orphans[i]
		if a.changed[o.Identity] {
			continue
		}
		p := a.f.find(o.Identity)
		switch {
		case a.f.ordered(o.Role):
			a.adoptOrdered(o, p)
		case p == nil:
			a.adoptAs(o, &Pod{Placement: pod.Placement{Identity: o.Identity}}, "runs without a placement")
		case p.Node == o.Node:
			if o.Revision > p.Revision {
				a.adoptAs(o, p, "runs at a higher revision than its placement")
			} // else the intent is missing or was not read yet, and repair writes it again
		case a.f.outranks(o, p):
			a.adoptAs(o, p, "runs here at a higher revision than on "+p.Node)
		default:
			a.stopDuplicate(o, p)
		}
	}
}

// outranks reports whether a copy elsewhere replaces a placed pod. A copy with a higher revision exists only if the
// store has lost records. If the owner placed the pod in this epoch, nothing was lost since then. So a node cannot take
// another node's pod with a false report.
func (s *Snapshot) outranks(o *Orphan, p *Pod) bool {
	return o.Revision > p.Revision && !s.placedInEpoch(p)
}

// placedInEpoch reports whether the owner chose the pod's node in this epoch, and did not adopt the pod. For pods that
// are not ordered, it compares times that the clocks of two farms wrote.
func (s *Snapshot) placedInEpoch(p *Pod) bool {
	if s.ordered(p.Role) {
		return s.Epoch != "" && p.Placement.Epoch == s.Epoch
	}
	return p.AdoptedAtGeneration == 0 && p.ChangedAt.After(s.EpochSince.Add(s.Slack))
}

func (a adoption) adoptAs(o *Orphan, p *Pod, reason string) {
	next := p.Placement
	moved := p.Index != 0 && p.Node != o.Node
	revision := p.nextRevision(a.f.Now, o.Revision)
	next.Ghosts = without(next.Ghosts, o.Node)
	if moved {
		next.OwnLabels = nil
	}
	next.Node, next.PodID, next.Digest, next.Ports = o.Node, o.PodID, o.Digest, o.Ports
	next.Labels = a.f.RC.PodLabelSet(o.PodID, nil, next.OwnLabels)
	if m := cmp.Or(a.f.ManifestOf(o.Digest), a.f.ManifestOf(a.f.RC.ManifestOf(o.Role))); m != nil {
		next.Labels = a.f.RC.PodLabelSet(o.PodID, m.Labels, next.OwnLabels)
	}
	next.RunState, next.Revision, next.ChangedAt = pod.Running, revision, a.f.Now
	next.StoppingSince, next.LostSince, next.UnmanagedSince, next.DeadIndex = nil, nil, nil, 0
	next.AdoptedAtGeneration, next.Switching = a.f.RC.Generation, false
	if p.Index == 0 {
		next.Standby, next.Replicas = a.f.standsBy(), a.f.RC.CountOf(o.Role)
	}
	ch := p.change(Adopt, &next, reason)
	ch.setIntent(o.Node, next.Intent())
	ch.reserveRunning(o.Node, o.claim())
	if moved {
		// As in a move, the other copy stops when the adopted copy is available.
		next.Ghosts = append(next.Ghosts, pod.Ghost{Node: p.Node, Since: a.f.Now, Ports: p.Ports})
	}
	a.add(ch)
}

// stopDuplicate stops a second copy of a placed pod as soon as the placed pod is available; in an ordered group at
// once.
func (a adoption) stopDuplicate(o *Orphan, p *Pod) {
	isGhost := func(g pod.Ghost) bool { return g.Node == o.Node && g.Revision > o.Revision }
	if !a.f.ordered(p.Role) && !a.f.availableHere(p) || slices.ContainsFunc(p.Placement.Ghosts, isGhost) {
		return
	}
	if !a.mayStop() {
		return
	}
	next := p.Placement
	ghost := pod.Ghost{Node: o.Node, Revision: p.nextRevision(a.f.Now, o.Revision), Since: a.f.Now, Ports: o.Ports}
	next.Ghosts = append(without(next.Ghosts, o.Node), ghost)
	reason := fmt.Sprintf("a second copy runs on %s at revision %d; the pod has revision %d",
		o.Node, o.Revision, p.Revision)
	ch := p.change(StopDuplicate, &next, reason)
	ch.NeedsBreaker, ch.NeedsMinimum = true, true
	ch.setIntent(o.Node, next.GhostIntent(ghost))
	ch.reserveRunning(o.Node, o.claim())
	a.add(ch)
}

type repairs struct{ *draft }

// repair makes placement, intent and report agree again if one was changed from outside, or if the store went back in
// time.
func (r repairs) repair() {
	for p := range r.open() {
		if r.repairGhosts(p) || r.repairClaims(p) {
			continue
		}
		next, reason := p.Placement, ""
		var reserve []ReserveChange
		switch {
		case p.Switching && (r.f.available(p) || r.f.endedWell(p)) && r.f.ManifestOf(p.Digest) != nil:
			r.finishUpgrade(p)
			continue
		case p.Reality != nil && p.Reality.Revision > p.Revision:
			if p.Reality.State == pod.StateStopped {
				continue // see confirmStops
			}
			// The pod runs because of an intent that the store has lost (R2).
			reason = "the node has applied a higher revision"
			next.RunState, next.StoppingSince = pod.Running, nil
			next.AdoptedAtGeneration = r.f.RC.Generation
			if p.Reality.Digest != p.Digest {
				// The ports come from an intent with the digest that runs. Otherwise adopt takes the pod and its ports
				// from the node's list of orphans.
				in := p.Intents[p.Node]
				if in == nil || in.Digest != p.Reality.Digest {
					continue
				}
				next.Digest, next.PodID, next.Ports, next.Labels = in.Digest, in.PodID, in.Ports, in.Labels
				claim := node.NewClaim(p.Identity, in.Ports, 0, 0)
				reserve = []ReserveChange{{Node: p.Node, Claim: &claim, Keep: true, Force: true}}
			}
		case p.Intents != nil && !sameIntent(p.Intents[p.Node], p.Intent()):
			reason = "the intent was missing or different"
		default:
			continue
		}
		if next.RunState == pod.Stopped && !r.mayStop() {
			continue
		}
		if next.RunState == pod.Running && !p.runs() && r.f.Hold != "" {
			r.waiting = true
			continue // the pod would start here, and may run on a node that has not reported yet (R1)
		}
		if next.RunState == pod.Running && r.startsBeside(p) {
			continue
		}
		if next.RunState == pod.Running && r.f.ordered(p.Role) && !r.f.runsThere(p) {
			next.Epoch = r.f.Epoch
		}
		next.Revision, next.ChangedAt = p.nextRevision(r.f.Now), r.f.Now
		ch := p.change(Repair, &next, reason)
		ch.NeedsBreaker, ch.NeedsSchema = next.RunState == pod.Stopped, next.RunState == pod.Running
		ch.setIntent(p.Node, next.Intent())
		ch.Reserve = reserve
		r.add(ch)
	}
}

// finishUpgrade gives back the part of the share that only the former version needed.
func (r repairs) finishUpgrade(p *Pod) {
	next := p.Placement
	next.Switching = false
	if p.caughtUp() {
		next.MayRun = nil
	}
	ch := p.change(FinishUpgrade, &next, "the node has switched to the new manifest")
	ch.reserveRunning(p.Node, claimOf(r.f.ManifestOf(p.Digest), p.Identity, p.Ports))
	r.add(ch)
}

// repairGhosts writes missing or different intents that stop former copies again. It reports whether it did.
func (r repairs) repairGhosts(p *Pod) bool {
	if p.Intents == nil {
		return false
	}
	same := p.Placement
	ch := p.change(Repair, &same, "the stop of a former copy was missing")
	ch.NeedsBreaker = true
	for _, g := range p.Placement.Ghosts {
		if g.Revision == 0 {
			continue // this copy is meant to run
		}
		if stop := same.GhostIntent(g); !sameIntent(p.Intents[g.Node], stop) {
			ch.setIntent(g.Node, stop)
		}
	}
	if len(ch.Intents) == 0 || !r.mayStop() {
		return false
	}
	r.add(ch)
	return true
}

// repairClaims reserves missing shares of a pod and its former copies again. Until then, other pods can be placed on
// the same capacity (P3).
func (r repairs) repairClaims(p *Pod) bool {
	same := p.Placement
	ch := p.change(Repair, &same, "its share was not reserved")
	reserve := func(nodeName string, ports map[string]int) {
		has, read := p.Claims[nodeName]
		if !read {
			return
		}
		need := claimOf(r.f.ManifestOf(p.Digest), p.Identity, ports)
		if has == nil || !covers(*has, need) {
			// The version that still runs may need the rest of the present share.
			keep := p.Switching || !r.f.current(p) && r.f.ManifestOf(p.Digest) == nil
			ch.Reserve = append(ch.Reserve, ReserveChange{Node: nodeName, Claim: &need, Force: true, Keep: keep})
		}
	}
	reserve(p.Node, p.Ports)
	for _, g := range p.Placement.Ghosts {
		if g.Node != p.Node {
			reserve(g.Node, g.Ports)
		}
	}
	if len(ch.Reserve) > 0 {
		r.add(ch)
	}
	return len(ch.Reserve) > 0
}

func covers(has, need node.Claim) bool {
	return has.CPU >= need.CPU && has.Memory >= need.Memory &&
		!slices.ContainsFunc(need.Ports, func(port int) bool { return !slices.Contains(has.Ports, port) })
}

func sameIntent(got *pod.Intent, want pod.Intent) bool {
	return got != nil && got.Digest == want.Digest && got.State == want.State && got.Revision == want.Revision &&
		got.Standby == want.Standby
}
