package reconcile

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
)

// adoption takes over what runs without an intent.
type adoption struct{ *draft }

// adopt takes over what runs without a matching intent. The higher revision wins (R2), unless an owner placed the pod in this epoch.
func (c adoption) adopt() {
	orphans := slices.Clone(c.s.Orphans)
	slices.SortFunc(orphans, func(a, b Orphan) int {
		return cmp.Or(a.Identity.Compare(b.Identity), cmp.Compare(b.Revision, a.Revision), cmp.Compare(a.Node, b.Node))
	})
	for i := range orphans {
		o := &orphans[i]
		if c.changed[o.Identity] {
			continue
		}
		p := c.s.find(o.Identity)
		switch {
		case c.s.ordered(o.Role):
			c.adoptOrdered(o, p)
		case p == nil:
			c.adoptAs(o, &Pod{Placement: pod.Placement{Identity: o.Identity}}, "runs without a placement")
		case p.Node == o.Node:
			if o.Revision > p.Revision {
				c.adoptAs(o, p, "runs at a higher revision than its placement")
			} // else its intent is missing or not seen yet: repair looks at it
		case c.s.outranks(o, p):
			c.adoptAs(o, p, "runs here at a higher revision than on "+p.Node)
		default:
			c.stopDuplicate(o, p)
		}
	}
}

// outranks reports whether a copy elsewhere takes the place of a placed pod: it bears a higher revision, which only a store that lost something explains.
// Where the placement was decided in this epoch nothing was lost since, and whoever names a higher revision was not told it: no node takes
// another's pod by saying so.
func (s *Snapshot) outranks(o *Orphan, p *Pod) bool {
	return o.Revision > p.Revision && !s.decided(p)
}

// decided reports whether the owner decided in this epoch where a pod is, by itself: it did not find it there. An ordered pod's placement names the epoch; of
// others the times tell, which clocks of two farms wrote.
func (s *Snapshot) decided(p *Pod) bool {
	if s.ordered(p.Role) {
		return s.Epoch != "" && p.Placement.Epoch == s.Epoch
	}
	return p.AdoptedAtGeneration == 0 && p.ChangedAt.After(s.EpochSince.Add(s.Slack))
}

func (c adoption) adoptAs(o *Orphan, p *Pod, reason string) {
	next := p.Placement
	moved := p.Index != 0 && p.Node != o.Node
	revision := p.nextRevision(c.s.Now, o.Revision)
	next.Ghosts = slices.DeleteFunc(slices.Clone(next.Ghosts), func(g pod.Ghost) bool { return g.Node == o.Node })
	if moved {
		next.OwnLabels = nil
	}
	next.Node, next.PodID, next.Digest, next.Ports = o.Node, o.PodID, o.Digest, o.Ports
	next.Labels = c.s.RC.PodLabelSet(o.PodID, nil, next.OwnLabels)
	if m := cmp.Or(c.s.ManifestOf(o.Digest), c.s.ManifestOf(c.s.RC.ManifestOf(o.Role))); m != nil {
		next.Labels = c.s.RC.PodLabelSet(o.PodID, m.Labels, next.OwnLabels)
	}
	next.RunState, next.Revision, next.ChangedAt = pod.Running, revision, c.s.Now
	next.StoppingSince, next.LostSince, next.UnmanagedSince, next.DeadIndex = nil, nil, nil, 0
	next.AdoptedAtGeneration, next.Switching = c.s.RC.Generation, false
	if p.Index == 0 {
		next.Standby, next.Replicas = c.s.standsBy(), c.s.RC.CountOf(o.Role)
	}
	in, claim := next.Intent(), node.NewClaim(o.Identity, o.Ports, o.CPU, o.Memory)
	ch := Change{
		Action: Adopt, Identity: o.Identity, Index: p.Index, Placement: &next, Reason: reason,
		Intents: []IntentChange{{Node: o.Node, Intent: &in}},
		Reserve: []ReserveChange{{Node: o.Node, Claim: &claim, Force: true}},
	}
	if moved {
		// The other copy is stopped like that of a moved pod, once this one is known to be available.
		next.Ghosts = append(next.Ghosts, pod.Ghost{Node: p.Node, Since: c.s.Now, Ports: p.Ports})
	}
	c.add(ch)
}

// stopDuplicate stops the losing copy of an identity, once the winning one is available, or at once where the group is ordered.
func (c adoption) stopDuplicate(o *Orphan, p *Pod) {
	isGhost := func(g pod.Ghost) bool { return g.Node == o.Node && g.Revision > o.Revision }
	if !c.s.ordered(p.Role) && !c.s.availableHere(p) || slices.ContainsFunc(p.Placement.Ghosts, isGhost) {
		return
	}
	if !c.mayStop() {
		return
	}
	rank := "a lower revision"
	if o.Revision > p.Revision {
		rank = "a revision that nobody told its node"
	}
	next := p.Placement
	ghost := pod.Ghost{Node: o.Node, Revision: p.nextRevision(c.s.Now, o.Revision), Since: c.s.Now, Ports: o.Ports}
	next.Ghosts = append(slices.DeleteFunc(slices.Clone(next.Ghosts), func(g pod.Ghost) bool { return g.Node == o.Node }), ghost)
	stop, claim := next.GhostIntent(ghost), node.NewClaim(o.Identity, o.Ports, o.CPU, o.Memory)
	c.add(Change{
		Action: StopDuplicate, Identity: o.Identity, Index: p.Index, Placement: &next, NeedsBreaker: true, NeedsMinimum: true,
		Reason:  fmt.Sprintf("a second copy runs on %s at %s", o.Node, rank),
		Intents: []IntentChange{{Node: o.Node, Intent: &stop}},
		Reserve: []ReserveChange{{Node: o.Node, Claim: &claim, Force: true}},
	})
}

// repairs brings back together what must agree.
type repairs struct{ *draft }

// repair brings placement, intent and reality back together where somebody else changed one of them, or where the store
// is an older one.
func (c repairs) repair() {
	for p := range c.open() {
		if c.repairGhosts(p) || c.repairClaims(p) {
			continue
		}
		next, reason := p.Placement, ""
		var reserve []ReserveChange
		switch {
		case p.Switching && (c.s.available(p) || c.s.endedWell(p)) && c.s.ManifestOf(p.Digest) != nil:
			c.finishUpgrade(p)
			continue
		case p.Reality != nil && p.Reality.Revision > p.Revision:
			if p.Reality.State == pod.StateStopped {
				continue // see confirmStops
			}
			// It runs: what was asked for since the store's time is what stays (R2).
			reason = "the node has applied a higher revision"
			next.RunState, next.StoppingSince = pod.Running, nil
			next.AdoptedAtGeneration = c.s.RC.Generation
			if p.Reality.Digest != p.Digest {
				// Its ports are those of its intent, or else of the node's list of orphans: adopt takes it from there.
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
		if next.RunState == pod.Stopped && !c.mayStop() {
			continue
		}
		if next.RunState == pod.Running && !p.runs() && c.s.Hold != "" {
			c.waiting = true
			continue // it would be started here, while it may run on a node that has not spoken yet (R1)
		}
		if next.RunState == pod.Running && c.startsBeside(p) {
			continue
		}
		if next.RunState == pod.Running && c.s.ordered(p.Role) && !c.s.runsThere(p) {
			next.Epoch = c.s.Epoch
		}
		next.Revision, next.ChangedAt = p.nextRevision(c.s.Now), c.s.Now
		in := next.Intent()
		c.add(Change{
			Action: Repair, Identity: p.Identity, Index: p.Index, Placement: &next, Reason: reason,
			NeedsBreaker: next.RunState == pod.Stopped, NeedsSchema: next.RunState == pod.Running,
			Intents: []IntentChange{{Node: p.Node, Intent: &in}}, Reserve: reserve,
		})
	}
}

// finishUpgrade gives back what the former version of an upgraded pod held, now that the node runs the new one.
func (c repairs) finishUpgrade(p *Pod) {
	next := p.Placement
	next.Switching = false
	if p.settled() {
		next.MayRun = nil
	}
	res := c.s.ManifestOf(p.Digest).Resources()
	claim := node.NewClaim(p.Identity, p.Ports, res.CPU, res.Memory)
	c.add(Change{
		Action: FinishUpgrade, Identity: p.Identity, Index: p.Index, Placement: &next, Reason: "the node has switched to the new manifest",
		Reserve: []ReserveChange{{Node: p.Node, Claim: &claim, Force: true}},
	})
}

// repairGhosts writes the stop of a former node again where it vanished.
func (c repairs) repairGhosts(p *Pod) bool {
	if p.Intents == nil {
		return false
	}
	same := p.Placement
	ch := Change{
		Action: Repair, Identity: p.Identity, Index: p.Index, Placement: &same, NeedsBreaker: true,
		Reason: "the stop of a former copy was missing",
	}
	for _, g := range p.Placement.Ghosts {
		if g.Revision == 0 {
			continue // it runs on
		}
		if stop := same.GhostIntent(g); !sameIntent(p.Intents[g.Node], stop) {
			ch.Intents = append(ch.Intents, IntentChange{Node: g.Node, Intent: &stop})
		}
	}
	if len(ch.Intents) == 0 || !c.mayStop() {
		return false
	}
	c.add(ch)
	return true
}

// repairClaims reserves again what the pod and its former copies take of nodes whose reservations do not say so, because the
// record was lost or is an older one. Until then others could be placed on top of them (P3).
func (c repairs) repairClaims(p *Pod) bool {
	same := p.Placement
	ch := Change{
		Action: Repair, Identity: p.Identity, Index: p.Index, Placement: &same, Reason: "its share was not reserved",
	}
	reserve := func(nodeName string, ports map[string]int) {
		has, read := p.Claims[nodeName]
		if !read {
			return
		}
		need := claimOfCopy(c.s, p, ports)
		if has == nil || !covers(*has, need) {
			// What is held besides may be that of a version that still runs; finishUpgrade gives it back.
			ch.Reserve = append(ch.Reserve, ReserveChange{Node: nodeName, Claim: &need, Force: true, Keep: p.Switching || !c.s.current(p) && c.s.ManifestOf(p.Digest) == nil})
		}
	}
	reserve(p.Node, p.Ports)
	for _, g := range p.Placement.Ghosts {
		if g.Node != p.Node {
			reserve(g.Node, g.Ports)
		}
	}
	if len(ch.Reserve) > 0 {
		c.add(ch)
	}
	return len(ch.Reserve) > 0
}

// claimOfCopy returns what a copy of the pod with these ports takes of its node, as far as it is known: the resources of a manifest
// that was not read are not.
func claimOfCopy(s *Snapshot, p *Pod, ports map[string]int) node.Claim {
	m := s.ManifestOf(p.Digest)
	if m == nil {
		return node.NewClaim(p.Identity, ports, 0, 0)
	}
	res := m.Resources()
	return node.NewClaim(p.Identity, ports, res.CPU, res.Memory)
}

// covers reports whether a claim is enough for what is needed.
func covers(has, need node.Claim) bool {
	return !slices.ContainsFunc(need.Ports, func(port int) bool { return !slices.Contains(has.Ports, port) }) &&
		has.CPU >= need.CPU && has.Memory >= need.Memory
}

func sameIntent(got *pod.Intent, want pod.Intent) bool {
	return got != nil && got.Digest == want.Digest && got.State == want.State && got.Revision == want.Revision && got.Standby == want.Standby
}
