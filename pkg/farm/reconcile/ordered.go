package reconcile

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
)

// Replicas of an ordered group start and stop one after the other, and no index ever has two living copies (ADR 23). A copy counts as living
// from the moment that its node was told to run it until the node has confirmed its stop, an operator has declared it gone, or it has surely
// stopped by itself.

// ordered reports whether replicas of a role are ordered.
func (s *Snapshot) ordered(role string) bool { return s.RC.Ordered(role) }

// SurelyStopped returns how long after its node fell silent a pod has stopped by itself where the node's supervisors see to that, and false
// where nothing says that it ever does. manifests are those that the node may run; slack is what has nothing to do with them: for how long the
// node may think that it is in touch, the error of clocks, and the start of a preparer or the next look of a supervisor.
func SurelyStopped(manifests []*manifest.Manifest, slack time.Duration) (after time.Duration, ever bool) {
	for _, m := range manifests {
		if m == nil {
			return 0, false
		}
		told, stops := m.StopsItself()
		if !stops {
			return 0, false
		}
		after = max(after, told+m.Grace(), m.Disconnect.StopAfter.Or(0)+stopTakes(m))
	}
	return after + slack, len(manifests) > 0
}

// stopTakes returns how long the stop of a pod takes at most where its preparer lives, with the pod's own programs around it.
func stopTakes(m *manifest.Manifest) time.Duration {
	takes := m.DrainFor() + m.Grace()
	m.Hooks.Each(func(point string, h *manifest.Hook) {
		if point == "before_stop" || point == "after_stop" {
			takes += h.Timeout.Or(manifest.DefaultHookTimeout)
		}
	})
	for i := range m.Launchables {
		if m.Launchables[i].Artifact.Kind == manifest.ArtifactTar {
			takes += manifest.DefaultHookTimeout // bin/disable
		}
	}
	return takes
}

// mayRun returns the digests of what a pod's node may run, "" for one that nobody knows.
func (s *Snapshot) mayRun(p *Pod) []string {
	all := []string{p.Digest}
	if !p.settled() {
		all = append(all, p.MayRun...)
	}
	switch {
	case p.Reality != nil && p.Reality.Digest != p.Digest:
		all = append(all, p.Reality.Digest)
	case p.Reality == nil && p.Switching:
		all = append(all, "")
	}
	return all
}

// settled reports whether the node runs what it was told last, and has put aside all that it was told before.
func (p *Pod) settled() bool {
	return p.Reality != nil && p.Reality.Digest == p.Digest && p.Reality.Revision >= p.Revision
}

// maxMayRun bounds how many manifests a placement names that the node may run.
const maxMayRun = 8

// mayRunStill returns what a pod's node may run still once it is told to run another version.
func (s *Snapshot) mayRunStill(p *Pod) []string {
	if !s.ordered(p.Role) || p.settled() {
		return nil
	}
	switch {
	case slices.Contains(p.MayRun, p.Digest):
		return p.MayRun
	case len(p.MayRun)+1 >= maxMayRun:
		return []string{""} // nobody knows
	}
	return append(slices.Clone(p.MayRun), p.Digest)
}

// stopsItself returns when copies that may run these digests on a node have surely stopped by themselves, if its machine is lost since some
// moment: this farm has seen that for as long, too, by a clock that nobody sets. Where time alone never says so, untold says why.
func (s *Snapshot) stopsItself(name string, since *time.Time, digests []string) (at time.Time, untold string) {
	v := s.Nodes[name]
	if v == nil {
		return at, "nothing is known of that node"
	}
	if !s.silent(name) {
		return at, "the machine lives, only its preparer is gone: start that"
	}
	if s.WentBack && !v.Spoke(s.Epoch) {
		return at, "nothing but its node can tell: it has not spoken since the store went back in time, and may run a later version than the records know"
	}
	after, untold := s.stopsAfter(v, digests)
	switch {
	case untold != "":
		return at, untold
	case since == nil || v.LostSeen.IsZero() && v.DeadSeen.IsZero():
		return at, "it is not known since when its machine is lost"
	}
	at = since.Add(after)
	if seen := s.Now.Add(after - s.seenLost(v)); seen.After(at) {
		at = seen
	}
	return at, ""
}

// stopsAfter returns how long after the loss of a machine all of some digests have surely stopped there; else untold says why nothing but the node can tell.
func (s *Snapshot) stopsAfter(v *node.View, digests []string) (after time.Duration, untold string) {
	var manifests []*manifest.Manifest
	for _, digest := range digests {
		m := s.ManifestOf(digest)
		switch {
		case digest == "":
			return 0, "nobody knows which versions it may run: it was in the midst of upgrades"
		case m == nil:
			return 0, fmt.Sprintf("manifest %.8s, which it may run, cannot be read, so that it is not known when that stops by itself", digest)
		}
		manifests = append(manifests, m)
	}
	after, ever := SurelyStopped(manifests, v.BelievesFor()+s.Slack)
	switch {
	case !ever:
		return 0, "nothing but its node can tell: a version that it may run has no disconnect.stop_after"
	case !v.EnforcesStopAfter:
		return 0, "nothing but its node can tell: its preparer or a supervisor there is too old to stop the pod by itself (disconnect.stop_after); " +
			"for the next time upgrade the preparer, and restart its pods with stop_after so that a newer supervisor runs them"
	}
	return after, ""
}

// silent reports whether a machine is lost, and Consul does not say that its agent lives again: a preparer there may be in touch without its lock,
// so that its pods run on.
func (s *Snapshot) silent(name string) bool { return s.machineLost(name) && !s.Nodes[name].AgentLives }

// seenLost returns for how long this farm has seen that a machine is lost. Consul forgets failed agents: of one that was lost by then, and whose
// loss placements know, the preparer's death counts.
func (s *Snapshot) seenLost(v *node.View) time.Duration {
	since := v.LostSeen
	if since.IsZero() {
		since = v.DeadSeen
	}
	return s.SteadyNow().Sub(since)
}

// lostSince returns since when the machine of a pod is lost in the node's present death, nil where the placement does not say.
func (s *Snapshot) lostSince(p *Pod) *time.Time {
	if s.Nodes[p.Node] == nil || !s.sinceDeath(&p.Placement) {
		return nil
	}
	return p.LostSince
}

// giveUp forgets copies of ordered pods that have surely stopped by themselves, so that their indices are free.
func (c departures) giveUp() {
	for p := range c.open() {
		if !c.s.ordered(p.Role) {
			continue
		}
		for _, g := range p.Placement.Ghosts {
			c.awaitStop(p, g.Node, "former copies have no time: only their node can tell")
		}
		if p.RunState != pod.Stopped || len(p.Placement.Ghosts) > 0 {
			continue
		}
		at, untold := c.s.stopsItself(p.Node, c.s.lostSince(p), c.s.mayRun(p))
		left := at.Sub(c.s.Now)
		if untold == "" && left <= 0 {
			c.add(Change{
				Action: Remove, Identity: p.Identity, Index: p.Index,
				Reason:  "its machine is lost for so long that the pod has stopped by itself (disconnect.stop_after)",
				Intents: []IntentChange{{Node: p.Node}}, Reserve: []ReserveChange{{Node: p.Node}},
			})
			continue
		}
		if untold == "" {
			c.requeueAfter(left)
		}
		c.awaitStop(p, p.Node, cmp.Or(untold, "it "+countsAsStopped(at)))
	}
}

// awaitStop says what an index waits for whose copy is on a node that cannot say that it has stopped, until when, and what helps.
func (c *draft) awaitStop(p *Pod, where, until string) {
	if c.s.aliveOn(where) {
		return // it will say so
	}
	c.awaitsStop = append(c.awaitsStop, fmt.Sprintf("%s.%d waits until its copy on %s has stopped; %s. Bring the node back or, if the pod is gone for good: rcctl pod forget %s-%s-%d --node %s --i-am-sure",
		p.Role, p.Identity.Index, where, until, p.PodID, p.Role, p.Identity.Index, where))
}

func countsAsStopped(at time.Time) string {
	return "counts as stopped at " + at.UTC().Format(time.RFC3339) + " (disconnect.stop_after)"
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
	switch where, why := c.mayLive(id, ""); {
	case c.s.Hold != "":
		c.waiting = true
	case slices.ContainsFunc(c.s.Orphans, func(o Orphan) bool { return o.Identity == id }):
		return // it is adopted, or stopped, when that may be
	case c.s.Unsure != "":
		c.awaitsStop = append(c.awaitsStop, fmt.Sprintf("%s.%d is not placed: what its nodes were told cannot be read: %s. Remove that intent if it is no copy that lives", id.Role, id.Index, c.s.Unsure))
	case where != "":
		c.awaitsStop = append(c.awaitsStop, fmt.Sprintf("%s.%d is not placed: %s", id.Role, id.Index, c.helped(where, why)))
	case c.allowed(1, *room) > 0:
		c.placeOne(id, room)
	}
}

// helped says why a node keeps an index, and what helps.
func (c *draft) helped(where, why string) string {
	if c.s.aliveOn(where) {
		return where + " " + why
	}
	return fmt.Sprintf("%s %s. Bring the node back. Only if that machine is gone for good, with all that it ran: rcctl node forget %s --i-am-sure, which gives up every pod there", where, why, where)
}

// Unsettled returns the identities of ordered groups that have no placement and get one by a plan. Before that it must be known what nodes were told
// about them: a placement can vanish, and what its intent says runs on (P4).
func (s *Snapshot) Unsettled(plan *Plan) []pod.Identity {
	var ids []pod.Identity
	note := func(id pod.Identity) {
		if s.ordered(id.Role) && s.find(id) == nil && !slices.Contains(ids, id) {
			ids = append(ids, id)
		}
	}
	for _, id := range plan.Adds {
		note(id)
	}
	for i := range plan.Changes {
		note(plan.Changes[i].Identity)
	}
	return ids
}

// Tell adds what a node was told about an identity that has no placement: it is taken over as if the node had said that it runs it.
func (s *Snapshot) Tell(name string, in *pod.Intent) {
	if slices.ContainsFunc(s.Orphans, func(o Orphan) bool { return o.Node == name && o.Identity == in.Identity }) {
		return
	}
	o := Orphan{Node: name, Orphan: pod.Orphan{Identity: in.Identity, PodID: in.PodID, Digest: in.Digest, Revision: in.Revision, Ports: in.Ports, Reason: pod.ReasonOrphaned}}
	if m := s.ManifestOf(in.Digest); m != nil {
		res := m.Resources()
		o.CPU, o.Memory = res.CPU, res.Memory
	}
	o.toldStop = in.State == pod.Stopped
	s.Orphans = append(slices.Clone(s.Orphans), o)
}

// mayLive returns a node that may run an identity which has no placement, and why, "" for none: one that said so last, and one that has not said
// what it runs since the records are what they are, while the controller is older than that. Such a one may have been in touch without a word:
// what counts is when its machine was first seen lost, too. One node is not asked about, "" for none.
func (c *draft) mayLive(id pod.Identity, but string) (where, why string) {
	for _, name := range slices.Sorted(maps.Keys(c.s.Nodes)) {
		if name == but {
			continue
		}
		v := c.s.Nodes[name]
		digests := []string{c.s.RC.ManifestOf(id.Role)}
		listed := field.Find(v.Orphans, func(o *pod.Orphan) bool { return o.Identity == id })
		if listed != nil {
			why, digests = "said last that it runs it", append(digests, listed.Digest)
		} else {
			why = "may run it, and has not said what it runs since the records are what they are"
		}
		switch {
		case listed == nil && (v.Spoke(c.s.Epoch) || c.s.Newer):
			continue
		case v.Alive && listed == nil:
			return name, "is back and has not said yet what it runs; the log of its preparer says why"
		case v.Alive:
			return name, why
		}
		at, untold := c.s.stopsItself(name, c.s.silentSince(v), digests)
		left := at.Sub(c.s.Now)
		switch {
		case untold == "" && left <= 0:
			continue
		case untold == "":
			c.requeueAfter(left)
			untold = "its copy " + countsAsStopped(at)
		}
		return name, why + "; " + untold
	}
	return "", ""
}

// silentSince returns since when a node that has not spoken in this epoch is surely silent, nil where that is not known.
func (s *Snapshot) silentSince(v *node.View) *time.Time {
	since := v.LostSeen
	if since.IsZero() && !v.DeadSeen.IsZero() {
		since = s.lost[s.death(v.Name)] // Consul forgets failed agents, the placements do not
	}
	switch {
	case since.IsZero():
		return nil
	case since.After(s.EpochSince):
		return &since
	}
	return &s.EpochSince
}

// leaveFirst stops an ordered pod that must leave its node: it is placed again when it has stopped. The others are available meanwhile.
func (c *drains) leaveFirst(p *Pod, counting int) {
	switch {
	case c.s.counting(p) && counting-1 < c.limits.least:
		c.block(fmt.Sprintf("%s.%d must leave %s and stops first, because its group is ordered, but %d available replicas and a minimum of %d leave no room",
			p.Role, p.Identity.Index, p.Node, counting, c.limits.least))
	default:
		c.stop(p, "it must leave "+p.Node+", and stops first because its group is ordered", true)
	}
}

// waitsForSiblings reports, and says, whether an available ordered pod stays for now because another of its group is not available.
func (c *drains) waitsForSiblings(p *Pod) bool {
	waits := c.s.ordered(p.Role) && c.s.available(p) && !c.s.whole(p.Role)
	if waits {
		c.block(fmt.Sprintf("%s.%d must leave %s, and waits until all of its ordered group are available", p.Role, p.Identity.Index, p.Node))
	}
	return waits
}

// endMove stops one of the copies of a pod that was moved before its group was ordered: the former one, or the new one where the former counts
// as available alone.
func (c moves) endMove(p *Pod) {
	left := field.Find(p.Placement.Ghosts, func(g *pod.Ghost) bool { return c.s.counts(p, *g) && c.s.aliveOn(g.Node) })
	if left != nil && !c.s.availableHere(p) {
		c.comeBack(p, *left, p.Avoid, "its group is ordered, and its former copy is available", true)
		return
	}
	c.stopFormerCopies(p, func(string) bool { return true }, "its group is ordered", false)
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
	case p == nil && c.s.Unsure != "":
		c.awaitsStop = append(c.awaitsStop, fmt.Sprintf("%s.%d is not adopted: what its nodes were told cannot be read: %s", o.Role, o.Index, c.s.Unsure))
	case p == nil && rival == nil && !o.toldStop:
		c.adoptSole(o, &Pod{Placement: pod.Placement{Identity: o.Identity}}, "runs without a placement")
	case p == nil && rival == nil:
		c.stopWithout(o, "was told to stop and has no placement")
	case p == nil:
		c.stopWithout(rival, "runs besides another copy with a higher revision")
	case p.Node == o.Node && o.Revision <= p.Revision:
		if rival != nil {
			c.stopDuplicate(rival, p)
		}
	case p.Node == o.Node:
		if rival != nil {
			c.stopDuplicate(rival, p)
		} else if len(p.Placement.Ghosts) == 0 {
			c.adoptSole(o, p, "runs at a higher revision than its placement")
		}
	case !c.s.outranks(o, p):
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

// stopWithout stops a copy of a pod that has no placement: it gets one, to be confirmed there.
func (c adoption) stopWithout(o *Orphan, reason string) {
	if !c.mayStop() {
		return
	}
	c.adoptAs(o, &Pod{Placement: pod.Placement{Identity: o.Identity}}, reason)
	ch := &c.plan.Changes[len(c.plan.Changes)-1]
	now := c.s.Now
	ch.Action, ch.NeedsBreaker = StopDuplicate, true
	ch.Placement.RunState, ch.Placement.StoppingSince, ch.Placement.AdoptedAtGeneration = pod.Stopped, &now, 0
	ch.Intents[0].Intent.State = pod.Stopped
}
