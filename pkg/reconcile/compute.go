package reconcile

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
)

// Compute decides everything about one controller. Each identity changes at most once per plan; what one change makes
// possible comes with the next look.
func Compute(s *Snapshot) Plan {
	c := &computation{s: s, touched: map[pod.Identity]bool{}, stopped: map[pod.Identity]bool{}}
	slices.SortFunc(s.Pods, func(a, b Pod) int { return a.Identity.Compare(b.Identity) })
	s.rememberLost()
	c.lookBeside()
	c.forget()
	c.confirmStops()
	c.adopt()
	c.repair()
	c.markLost()
	waits := c.answer(c.release())
	switch {
	case s.RC.DeletedAt != nil:
		c.stopAll()
		// While holding, pods may run on nodes that have not spoken yet (R1).
		c.plan.Finish = len(s.Pods) == 0 && len(c.plan.Changes) == 0 && s.Hold == "" && !waits
	case s.RC.Disabled:
		c.drainsWait()
	default:
		c.force()
		c.finishMoves()
		c.replaceLost()
		c.scale()
		c.transfer()
		c.upgrade()
		c.switchNames()
		c.drainsWait()
	}
	c.markGhosts()
	c.guardMinimum()
	c.report()
	c.plan.Alone, c.plan.Unaided = c.alone(), c.unaided()
	return c.plan
}

type computation struct {
	s       *Snapshot
	plan    Plan
	touched map[pod.Identity]bool
	stopped map[pod.Identity]bool // by this very plan
	blocked string                // why a drain or an upgrade does not go on
	held    int                   // pods that are not stopped because of the breaker
	waiting bool                  // something is not done because of the hold
	forLost *int                  // how many lost pods may be replaced besides; nil: not yet reckoned
	over    map[string]bool       // roles with more pods than they should have; nil: not yet reckoned
	awaited *string               // see unconfirmed; nil: not yet looked for
	// replaced counts the pods of lost machines that are: their new copies stand besides all that stands now.
	replaced int

	beside         []Copy // pods of companions that count as available
	standingBeside int    // copies of companions' pods that take room
	newest         int    // new replicas of this plan that get the controller's manifest
	awaitsService  string // what pods wait for because of the service's other revisions
}

// mayStop reports whether anything may be asked to stop now. While the nodes have not said what they run, a pod that looks
// superfluous may be one of those that must stay (R1, R2); once the breaker has tripped nothing may.
func (c *computation) mayStop() bool {
	switch {
	case c.s.Hold != "":
		c.waiting = true
	case c.s.Breaker != "":
		c.held++
	default:
		return true
	}
	return false
}

// add plans a change. What is decided about a pod whose machine is taken for lost lands only while it is: back, it may be
// available as it last said, which moves nothing else that the change depends on.
func (c *computation) add(ch Change) {
	if p := c.find(ch.Identity); p != nil && c.s.gone(p.Node) {
		ch.needsDead(c.s.death(p.Node))
	}
	c.touched[ch.Identity] = true
	c.plan.Changes = append(c.plan.Changes, ch)
}

// confirmStops forgets pods and ghosts whose stop the node has confirmed. A stop that the
// node remembers and an older store does not is confirmed too: what it freed may be taken, so the pod is not started again
// where it was; if it is desired it is given back to a former copy that was left running, or placed like any other (R1, R8).
func (c *computation) confirmStops() {
	for i := range c.s.Pods {
		p := &c.s.Pods[i]
		if c.touched[p.Identity] {
			continue
		}
		ch := Change{Action: Remove, Identity: p.Identity, Index: p.Index, Reason: "the node confirmed the stop"}
		next := p.Placement
		next.Ghosts = nil
		for _, g := range p.Placement.Ghosts {
			if !p.hasStopped(g) {
				next.Ghosts = append(next.Ghosts, g)
				continue
			}
			ch.Intents = append(ch.Intents, IntentChange{Node: g.Node})
			ch.Reserve = append(ch.Reserve, ReserveChange{Node: g.Node})
		}
		stopped := p.RunState == pod.Stopped && confirmed(p.Reality, p.Revision) || confirmed(p.Reality, p.Revision+1)
		// Its node is done with it, also where a former copy may stay for long because its machine is lost.
		passedOn := stopped && len(next.Ghosts) > 0 && c.passOn(&ch, p, next)
		if gone := stopped && len(next.Ghosts) == 0; gone || passedOn {
			ch.Intents = slices.Insert(ch.Intents, 0, IntentChange{Node: p.Node})
			ch.Reserve = append(ch.Reserve, ReserveChange{Node: p.Node})
		} else {
			ch.Placement = &next
		}
		if len(ch.Intents) > 0 {
			c.add(ch)
		}
	}
}

// adopt takes over what runs without a matching intent. The higher revision wins (R2).
func (c *computation) adopt() {
	orphans := slices.Clone(c.s.Orphans)
	slices.SortFunc(orphans, func(a, b Orphan) int {
		return cmp.Or(a.Identity.Compare(b.Identity), cmp.Compare(b.Revision, a.Revision), cmp.Compare(a.Node, b.Node))
	})
	for i := range orphans {
		o := &orphans[i]
		if c.touched[o.Identity] {
			continue
		}
		p := c.find(o.Identity)
		switch {
		case p == nil:
			c.adoptAs(o, &Pod{Placement: pod.Placement{Identity: o.Identity}}, "runs without a placement")
		case p.Node == o.Node:
			if o.Revision > p.Revision {
				c.adoptAs(o, p, "runs at a higher revision than its placement")
			} // else its intent is missing or not seen yet: repair looks at it
		case o.Revision > p.Revision:
			c.adoptAs(o, p, "runs here at a higher revision than on "+p.Node)
		default:
			c.expel(o, p)
		}
	}
}

func (c *computation) find(id pod.Identity) *Pod { return c.s.find(id) }

func (c *computation) adoptAs(o *Orphan, p *Pod, reason string) {
	next := p.Placement
	moved := p.Index != 0 && p.Node != o.Node
	revision := p.nextRevision(c.s.Now, o.Revision)
	next.Ghosts = slices.DeleteFunc(slices.Clone(next.Ghosts), func(g pod.Ghost) bool { return g.Node == o.Node })
	next.Node, next.PodID, next.Digest, next.Ports = o.Node, o.PodID, o.Digest, o.Ports
	next.Labels = c.s.RC.PodLabelSet(o.PodID, nil)
	if m := cmp.Or(c.s.ManifestOf(o.Digest), c.s.Manifest); m != nil {
		next.Labels = c.s.RC.PodLabelSet(o.PodID, m.Labels)
	}
	next.RunState, next.Revision, next.ChangedAt = pod.Running, revision, c.s.Now
	next.StoppingSince, next.LostSince, next.UnmanagedSince, next.DeadIndex = nil, nil, nil, 0
	next.AdoptedAtGeneration, next.Switching = c.s.RC.Generation, false
	if p.Index == 0 {
		next.Standby = c.s.standsBy()
	}
	in, holder := next.Intent(), node.NewHolder(o.Identity, o.Ports, o.CPU, o.Memory)
	ch := Change{
		Action: Adopt, Identity: o.Identity, Index: p.Index, Placement: &next, Reason: reason,
		Intents: []IntentChange{{Node: o.Node, Intent: &in}},
		Reserve: []ReserveChange{{Node: o.Node, Holder: &holder, Force: true}},
	}
	if moved {
		// The other copy is dismissed like that of a moved pod, once this one is known to be available.
		next.Ghosts = append(next.Ghosts, pod.Ghost{Node: p.Node, Since: c.s.Now, Ports: p.Ports})
	}
	c.add(ch)
}

// expel stops the losing copy of an identity, once the winning one is available.
func (c *computation) expel(o *Orphan, p *Pod) {
	isGhost := func(g pod.Ghost) bool { return g.Node == o.Node && g.Revision > o.Revision }
	if !c.s.availableHere(p) || slices.ContainsFunc(p.Placement.Ghosts, isGhost) {
		return
	}
	if !c.mayStop() {
		return
	}
	next := p.Placement
	ghost := pod.Ghost{Node: o.Node, Revision: p.nextRevision(c.s.Now, o.Revision), Since: c.s.Now, Ports: o.Ports}
	next.Ghosts = append(slices.DeleteFunc(slices.Clone(next.Ghosts), func(g pod.Ghost) bool { return g.Node == o.Node }), ghost)
	stop, holder := next.GhostIntent(ghost), node.NewHolder(o.Identity, o.Ports, o.CPU, o.Memory)
	c.add(Change{
		Action: Expel, Identity: o.Identity, Index: p.Index, Placement: &next, NeedsBreaker: true, NeedsMinimum: true,
		Reason:  fmt.Sprintf("a second copy runs on %s at a lower revision", o.Node),
		Intents: []IntentChange{{Node: o.Node, Intent: &stop}},
		Reserve: []ReserveChange{{Node: o.Node, Holder: &holder, Force: true}},
	})
}

// repair brings placement, intent and reality back together where somebody else changed one of them, or where the store
// is an older one.
func (c *computation) repair() {
	for i := range c.s.Pods {
		p := &c.s.Pods[i]
		if c.touched[p.Identity] {
			continue
		}
		if c.repairGhosts(p) || c.repairShares(p) {
			continue
		}
		next, reason := p.Placement, ""
		var reserve []ReserveChange
		switch {
		case p.Switching && c.s.available(p) && c.s.ManifestOf(p.Digest) != nil:
			c.shrink(p)
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
				holder := node.NewHolder(p.Identity, in.Ports, 0, 0)
				reserve = []ReserveChange{{Node: p.Node, Holder: &holder, Keep: true, Force: true}}
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
		next.Revision, next.ChangedAt = p.nextRevision(c.s.Now), c.s.Now
		in := next.Intent()
		c.add(Change{
			Action: Repair, Identity: p.Identity, Index: p.Index, Placement: &next, Reason: reason,
			NeedsBreaker: next.RunState == pod.Stopped, NeedsSchema: next.RunState == pod.Running,
			Intents: []IntentChange{{Node: p.Node, Intent: &in}}, Reserve: reserve,
		})
	}
}

// shrink gives back what the former version of an upgraded pod held, now that the node runs the new one.
func (c *computation) shrink(p *Pod) {
	next := p.Placement
	next.Switching = false
	res := c.s.ManifestOf(p.Digest).Resources()
	holder := node.NewHolder(p.Identity, p.Ports, res.CPU, res.Memory)
	c.add(Change{
		Action: Shrink, Identity: p.Identity, Index: p.Index, Placement: &next, Reason: "the node has switched to the new manifest",
		Reserve: []ReserveChange{{Node: p.Node, Holder: &holder, Force: true}},
	})
}

// repairGhosts writes the stop of a former node again where it vanished.
func (c *computation) repairGhosts(p *Pod) bool {
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

// repairShares reserves again what the pod and its former copies take of nodes whose reservations do not say so, because the
// record was lost or is an older one. Until then others could be placed on top of them (P3).
func (c *computation) repairShares(p *Pod) bool {
	same := p.Placement
	ch := Change{
		Action: Repair, Identity: p.Identity, Index: p.Index, Placement: &same, Reason: "its share was not reserved",
	}
	reserve := func(nodeName string, ports map[string]int) {
		held, read := p.Held[nodeName]
		if !read {
			return
		}
		need := c.shareOf(p, ports)
		if held == nil || !holds(*held, need) {
			// What is held besides may be that of a version that still runs; shrink gives it back.
			ch.Reserve = append(ch.Reserve, ReserveChange{Node: nodeName, Holder: &need, Force: true, Keep: p.Switching || p.Digest != c.s.RC.ManifestDigest && c.s.ManifestOf(p.Digest) == nil})
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

// shareOf returns what a copy of the pod with these ports takes of its node, as far as it is known: the resources of a manifest
// that was not read are not.
func (c *computation) shareOf(p *Pod, ports map[string]int) node.Holder {
	m := c.s.ManifestOf(p.Digest)
	if m == nil {
		return node.NewHolder(p.Identity, ports, 0, 0)
	}
	res := m.Resources()
	return node.NewHolder(p.Identity, ports, res.CPU, res.Memory)
}

// holds reports whether a share is enough for what is needed.
func holds(held, need node.Holder) bool {
	return !slices.ContainsFunc(need.Ports, func(port int) bool { return !slices.Contains(held.Ports, port) }) &&
		held.CPU >= need.CPU && held.Memory >= need.Memory
}

func sameIntent(got *pod.Intent, want pod.Intent) bool {
	return got != nil && got.Digest == want.Digest && got.State == want.State && got.Revision == want.Revision && got.Standby == want.Standby
}

// stop asks for a stop, or counts the pod as held back by the breaker.
func (c *computation) stop(p *Pod, reason string, dependsOnOthers bool) {
	if !c.mayStop() {
		return
	}
	now := c.s.Now
	next := p.Placement
	next.RunState, next.StoppingSince, next.ChangedAt = pod.Stopped, &now, now
	next.Revision = p.nextRevision(now)
	in := next.Intent()
	ch := Change{
		Action: Stop, Identity: p.Identity, Index: p.Index, Placement: &next, Reason: reason,
		NeedsBreaker: true, NeedsMinimum: dependsOnOthers,
		Intents: []IntentChange{{Node: p.Node, Intent: &in}},
	}
	next.Ghosts = slices.Clone(next.Ghosts)
	for i := range next.Ghosts {
		// A copy that was left running until the pod had moved stops too.
		if g := &next.Ghosts[i]; g.Revision == 0 {
			g.Revision = next.Revision
			also := next.GhostIntent(*g)
			ch.Intents = append(ch.Intents, IntentChange{Node: g.Node, Intent: &also})
		}
	}
	c.stopped[p.Identity] = true
	c.add(ch)
}

// stays reports whether the pod runs as it was found until somebody changes the controller (R2). Nobody can change one that
// is deleted: its mark is the last word.
func (c *computation) stays(p *Pod) bool { return stays(&c.s.RC, &p.Placement) }

func stays(r *rc.RC, p *pod.Placement) bool {
	return r.DeletedAt == nil && p.AdoptedAtGeneration != 0 && p.AdoptedAtGeneration == r.Generation
}

func (c *computation) stopAll() {
	for i := range c.s.Pods {
		p := &c.s.Pods[i]
		if p.RunState == pod.Running && !c.touched[p.Identity] && !c.stays(p) {
			c.stop(p, "the controller is deleted", false)
		}
	}
}
