package reconcile

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/pod"
)

// Replicas of an ordered group start and stop one after the other, and no index ever has two living copies (ADR 23). A copy counts as living
// from the moment that its node was told to run it until the node has confirmed its stop, an operator has declared it gone, or it has surely
// stopped by itself.

// ordered reports whether replicas of a role are ordered.
func (s *Snapshot) ordered(role string) bool { return s.RC.Ordered(role) }

// SurelyStopped returns how long after its node fell silent a pod has stopped by itself, whatever its node does, and false where nothing says
// that it ever does. manifests are those that the node may run; slack is what has nothing to do with them: for how long the node may think
// that it is in touch, the error of clocks, and the start of a preparer or supervisor.
func SurelyStopped(manifests []*manifest.Manifest, slack time.Duration) (after time.Duration, ever bool) {
	for _, m := range manifests {
		if m == nil || m.Disconnect == nil || m.Disconnect.StopAfter == nil {
			return 0, false
		}
		takes := time.Duration(*m.Disconnect.StopAfter) + m.DrainFor() + 2*manifest.DefaultHookTimeout // bin/disable has that, and before_stop by default
		if m.Hooks != nil && m.Hooks.BeforeStop != nil {
			takes += m.Hooks.BeforeStop.Timeout.Or(0)
		}
		for i := range m.Launchables {
			takes += m.Launchables[i].StopGrace.Or(manifest.DefaultStopGrace)
		}
		after = max(after, takes)
	}
	return after + slack, len(manifests) > 0
}

// mayRun returns the manifests that a pod's node may run, with nil for one that is not known.
func (s *Snapshot) mayRun(p *Pod) []*manifest.Manifest {
	all := []*manifest.Manifest{s.ManifestOf(p.Digest)}
	switch {
	case p.Reality != nil && p.Reality.Digest != p.Digest:
		all = append(all, s.ManifestOf(p.Reality.Digest))
	case p.Reality == nil && p.Switching:
		all = append(all, nil)
	}
	return all
}

// stopsItself returns when a copy on a lost machine has surely stopped by itself, and false where time alone never says so.
func (s *Snapshot) stopsItself(p *Pod) (at time.Time, ever bool) {
	if !s.machineLost(p.Node) || p.LostSince == nil || !s.sinceDeath(&p.Placement) {
		return at, false
	}
	after, ever := SurelyStopped(s.mayRun(p), s.Slack)
	return p.LostSince.Add(after), ever
}

// giveUp forgets copies of ordered pods that have surely stopped by themselves, so that their indices are free.
func (c departures) giveUp() {
	for p := range c.open() {
		if p.RunState != pod.Stopped || !c.s.ordered(p.Role) || len(p.Placement.Ghosts) > 0 {
			continue
		}
		at, ever := c.s.stopsItself(p)
		if left := at.Sub(c.s.Now); !ever || left > 0 {
			if ever {
				c.requeueAfter(left)
			}
			c.awaitStop(p, at, ever)
			continue
		}
		c.add(Change{
			Action: Remove, Identity: p.Identity, Index: p.Index,
			Reason:  "its machine is lost for so long that the pod has stopped by itself (disconnect.stop_after)",
			Intents: []IntentChange{{Node: p.Node}}, Reserve: []ReserveChange{{Node: p.Node}},
		})
	}
}

// awaitStop says what an index waits for whose copy is on a node that cannot say that it has stopped, and what helps.
func (c *draft) awaitStop(p *Pod, at time.Time, ever bool) {
	if c.s.aliveOn(p.Node) {
		return // it will say so
	}
	until := "nothing but its node can tell: its manifest has no disconnect.stop_after for every version that may run there"
	switch {
	case !c.s.machineLost(p.Node):
		until = "the machine lives, only its preparer is gone"
	case ever:
		until = "it counts as stopped at " + at.UTC().Format(time.RFC3339) + " (disconnect.stop_after)"
	}
	c.awaitsStop = append(c.awaitsStop, fmt.Sprintf("%s.%d waits until its copy on %s has stopped; %s. Bring the node back or, if the pod is gone for good: rcctl pod forget %s-%s-%d --node %s --i-am-sure",
		p.Role, p.Identity.Index, p.Node, until, p.PodID, p.Role, p.Identity.Index, p.Node))
}

// stopLost asks for the stop of an ordered pod whose machine has been lost for long enough. Its index is placed again when it has stopped.
func (c losses) stopLost(p *Pod) {
	if p.LostSince != nil && c.s.machineLost(p.Node) && c.dueForReplacement(&p.Placement) {
		c.stop(p, "its machine is lost, and it is placed again when it has surely stopped", true)
	}
}

// scaleOrdered brings an ordered group to its count: an index is placed when all below it are available, and the highest goes first, the next
// when its stop is confirmed.
func (c *scaling) scaleOrdered(role string, count int, spare, room *int) {
	var highest *Pod
	for p := range c.s.all() {
		if p.Role == role && (highest == nil || p.Identity.Index > highest.Identity.Index) {
			highest = p
		}
	}
	if highest != nil && highest.Identity.Index >= count && highest.RunState == pod.Running && !c.s.stays(highest) {
		c.remove([]*Pod{highest}, 1, spare, fmt.Sprintf("%d replicas of role %s desired", count, role))
	}
	for index := range count {
		id := pod.Identity{RCID: c.s.RC.ID, Role: role, Index: index}
		p := c.s.find(id)
		switch {
		case c.changed[id]:
			return
		case p == nil:
			c.placeNext(id, room)
			return
		case p.RunState != pod.Running || !c.s.available(p):
			return // those above it wait
		}
	}
}

// placeNext asks for an identity that has no placement, unless a copy of it may live all the same.
func (c *scaling) placeNext(id pod.Identity, room *int) {
	switch where, why := c.mayLive(id); {
	case c.s.Hold != "":
		c.waiting = true
	case slices.ContainsFunc(c.s.Orphans, func(o Orphan) bool { return o.Identity == id }):
		return // it is adopted, or stopped, when that may be
	case where != "":
		c.awaitsStop = append(c.awaitsStop, fmt.Sprintf("%s.%d is not placed: %s %s. Bring the node back or, if it is gone for good: rcctl node forget %s", id.Role, id.Index, where, why, where))
	case c.allowed(1, *room) > 0:
		c.placeOne(id, room)
	}
}

// mayLive returns a node that may run an identity which has no placement, and why, "" for none: one that said so last, and one that has been
// silent since the records are what they are, while the controller is older than that.
func (c *scaling) mayLive(id pod.Identity) (where, why string) {
	for _, name := range slices.Sorted(maps.Keys(c.s.Nodes)) {
		v := c.s.Nodes[name]
		if slices.ContainsFunc(v.Orphans, func(o pod.Orphan) bool { return o.Identity == id }) {
			return name, "said last that it runs it"
		}
		if v.Alive || v.Epoch == c.s.Epoch || c.s.Newer {
			continue
		}
		after, ever := SurelyStopped([]*manifest.Manifest{c.s.ManifestOf(c.s.RC.ManifestOf(id.Role))}, c.s.Slack)
		left := c.s.EpochSince.Add(after).Sub(c.s.Now)
		if ever && c.s.machineLost(name) && left <= 0 {
			continue
		}
		if why = "may run it, and has not been heard of since the records are what they are"; ever && c.s.machineLost(name) {
			why += "; it counts as stopped at " + c.s.EpochSince.Add(after).UTC().Format(time.RFC3339) + " (disconnect.stop_after)"
			c.requeueAfter(left)
		}
		return name, why
	}
	return "", ""
}

// leaveFirst stops an ordered pod that must leave its node: it is placed again when it has stopped. The others are available meanwhile.
func (c *drains) leaveFirst(p *Pod, counting int) {
	switch {
	case c.s.counting(p) && counting-1 < c.limits.least:
		c.block(fmt.Sprintf("%s.%d must leave %s and stops first, because its group is ordered, but %d available replicas and a minimum of %d leave no room",
			p.Role, p.Identity.Index, p.Node, counting, c.limits.least))
	case !c.s.available(p) || c.s.whole(p.Role):
		c.stop(p, "it must leave "+p.Node+", and stops first because its group is ordered", true)
	}
}

// elsewhere reports whether a node says that it runs a copy of a pod that is placed on another.
func (c repairs) elsewhere(p *Pod) bool {
	return slices.ContainsFunc(c.s.Orphans, func(o Orphan) bool { return o.Identity == p.Identity && o.Node != p.Node })
}

// whole reports whether every index of an ordered group is available.
func (s *Snapshot) whole(role string) bool {
	for index := range s.RC.CountOf(role) {
		p := s.find(pod.Identity{RCID: s.RC.ID, Role: role, Index: index})
		if p == nil || !s.available(p) {
			return false
		}
	}
	return true
}

// adoptOrdered takes over a copy of an ordered pod that runs without an intent: when no other copy lives. Of two the one with the lower
// revision stops first (R2).
func (c adoption) adoptOrdered(o *Orphan, p *Pod) {
	rival := c.rival(o)
	switch {
	case c.s.Hold != "":
		c.waiting = true // another copy may be on a node that has not spoken yet (R1)
	case p == nil && rival == nil:
		c.adoptAs(o, &Pod{Placement: pod.Placement{Identity: o.Identity}}, "runs without a placement")
	case p == nil:
		c.stopRival(rival)
	case p.Node == o.Node && o.Revision <= p.Revision:
		if rival != nil {
			c.stopDuplicate(rival, p)
		}
	case p.Node == o.Node:
		if rival != nil {
			c.stopDuplicate(rival, p)
		} else if len(p.Placement.Ghosts) == 0 {
			c.adoptAs(o, p, "runs at a higher revision than its placement")
		}
	case o.Revision <= p.Revision:
		c.stopDuplicate(o, p)
	case p.RunState == pod.Running:
		c.stop(p, "a copy with a higher revision runs on "+o.Node, true)
	}
}

// rival returns the orphan with the lowest revision of those that are the same pod on another node, nil where there is none.
func (c adoption) rival(o *Orphan) *Orphan {
	var lowest *Orphan
	for i := range c.s.Orphans {
		other := &c.s.Orphans[i]
		if other.Identity == o.Identity && other.Node != o.Node && (lowest == nil || other.Revision < lowest.Revision) {
			lowest = other
		}
	}
	return lowest
}

// stopRival stops a copy of a pod that has no placement: it gets one, to be confirmed there.
func (c adoption) stopRival(o *Orphan) {
	if !c.mayStop() {
		return
	}
	c.adoptAs(o, &Pod{Placement: pod.Placement{Identity: o.Identity}}, "runs besides another copy with a higher revision")
	ch := &c.plan.Changes[len(c.plan.Changes)-1]
	now := c.s.Now
	ch.Action, ch.NeedsBreaker = StopDuplicate, true
	ch.Placement.RunState, ch.Placement.StoppingSince, ch.Placement.AdoptedAtGeneration = pod.Stopped, &now, 0
	ch.Intents[0].Intent.State = pod.Stopped
}
