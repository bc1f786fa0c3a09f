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

// Replicas of an ordered group start and stop one after the other, and no index ever has two living copies (ADR 23). A
// copy may live from the first intent to run it until its node confirms the stop, an operator declares it gone, or it
// has surely stopped by itself.

func (s *Snapshot) ordered(role string) bool { return s.RC.Ordered(role) }

// SurelyStopped returns the time from the last contact with a node until a pod on it has surely stopped by itself, if
// the node's supervisors enforce that. ever is false if it may never stop by itself. manifests are those that the node
// may run. slack is the part of the time that does not depend on them: how long the node may believe that it is in
// touch, the error of clocks, and the time until a preparer has started or a supervisor looks next.
func SurelyStopped(manifests []*manifest.Manifest, slack time.Duration) (after time.Duration, ever bool) {
	for _, m := range manifests {
		if m == nil {
			return 0, false
		}
		stopAfter, stops := m.StopsItself()
		if !stops {
			return 0, false
		}
		after = max(after, stopAfter+m.Grace(), m.Disconnect.StopAfter.Or(0)+stopTakes(m))
	}
	return after + slack, len(manifests) > 0
}

// stopTakes returns how long a preparer's stop of a pod takes at most, with its hooks and programs.
func stopTakes(m *manifest.Manifest) time.Duration {
	takes := m.DrainFor() + m.Grace()
	m.Hooks.Each(func(point string, h *manifest.Hook) {
		if point == "before_stop" || point == "after_stop" {
			takes += h.Timeout.Or(manifest.DefaultHookTimeout)
		}
	})
	for i := range m.Launchables {
		if m.Launchables[i].Artifact.HasSwitches() {
			takes += manifest.DefaultHookTimeout // bin/disable
		}
	}
	return takes
}

// mayRun returns the digests that the pod's node may run for it. "" is an unknown digest.
func (s *Snapshot) mayRun(p *Pod) []string {
	all := []string{p.Digest}
	if !p.caughtUp() {
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

// caughtUp reports whether the node runs the version of the last intent, and so no former version.
func (p *Pod) caughtUp() bool {
	return p.Reality != nil && p.Reality.Digest == p.Digest && p.Reality.Revision >= p.Revision
}

const maxMayRun = 8

// mayRunStill returns the digests that the node may still run after it gets an intent with another version.
func (s *Snapshot) mayRunStill(p *Pod) []string {
	if !s.ordered(p.Role) || p.caughtUp() {
		return nil
	}
	switch {
	case slices.Contains(p.MayRun, p.Digest):
		return p.MayRun
	case len(p.MayRun)+1 >= maxMayRun:
		return []string{""} // unknown
	}
	return append(slices.Clone(p.MayRun), p.Digest)
}

// stopsItself returns when copies with these digests have surely stopped by themselves. since is when their node's
// machine was lost. This farm must have seen the loss for as long, by its monotonic clock. If time alone proves
// nothing, whyUnknown is the reason.
func (f *Facts) stopsItself(name string, since *time.Time, digests []string) (at time.Time, whyUnknown string) {
	v := f.Nodes[name]
	if v == nil {
		return at, "that node has no record"
	}
	if !f.silent(name) {
		return at, "the machine lives, only its preparer is gone: start the preparer"
	}
	if f.WentBack && !v.Spoke(f.Epoch) {
		return at, "only its node can confirm the stop: it has not spoken since the store went back in time, " +
			"and may run a later version than the records know"
	}
	after, whyUnknown := f.stopsAfter(v, digests)
	switch {
	case whyUnknown != "":
		return at, whyUnknown
	case since == nil || v.LostSeen.IsZero() && v.DeadSeen.IsZero():
		return at, "it is not known since when its machine is lost"
	}
	at = since.Add(after)
	if seen := f.Now.Add(after - f.seenLost(v)); seen.After(at) {
		at = seen
	}
	return at, ""
}

// stopsAfter returns the time from the loss of a machine until copies with these digests have surely stopped there. If
// only the node can confirm the stop, whyUnknown is the reason.
func (f *Facts) stopsAfter(v *node.View, digests []string) (after time.Duration, whyUnknown string) {
	var manifests []*manifest.Manifest
	for _, digest := range digests {
		m := f.ManifestOf(digest)
		switch {
		case digest == "":
			return 0, "it is not known which versions it may run, because it was being upgraded"
		case m == nil:
			return 0, fmt.Sprintf("manifest %.8s, which it may run, cannot be read, "+
				"so it is not known when the pod stops by itself", digest)
		}
		manifests = append(manifests, m)
	}
	after, ever := SurelyStopped(manifests, v.BelievesFor()+f.Slack)
	switch {
	case !ever:
		return 0, "only its node can confirm the stop: a version that it may run has no disconnect.stop_after"
	case !v.EnforcesStopAfter:
		return 0, "only its node can confirm the stop: its preparer or a supervisor there is too old to stop the pod " +
			"by itself (disconnect.stop_after); for the next time upgrade the preparer, and restart its pods with " +
			"stop_after so that a newer supervisor runs them"
	}
	return after, ""
}

// seenLost returns how long this farm has seen that a machine is lost. When Consul has forgotten the failed agent, it
// uses the time of the preparer's death.
func (s *Snapshot) seenLost(v *node.View) time.Duration {
	since := v.LostSeen
	if since.IsZero() {
		since = v.DeadSeen
	}
	return s.SteadyNow().Sub(since)
}

// lostSince returns when the pod's machine was lost in the node's present death, nil if the placement does not have it.
func (f *Facts) lostSince(p *Pod) *time.Time {
	if f.Nodes[p.Node] == nil || !f.sinceDeath(&p.Placement) {
		return nil
	}
	return p.LostSince
}

// forgetSelfStopped frees the indices of ordered pods that have surely stopped by themselves.
func (d departures) forgetSelfStopped() {
	for p := range d.open() {
		if !d.f.ordered(p.Role) {
			continue
		}
		for _, g := range p.Placement.Ghosts {
			d.awaitStop(p, g.Node, "for a former copy only its node can confirm that")
		}
		if p.RunState != pod.Stopped || len(p.Placement.Ghosts) > 0 {
			continue
		}
		at, whyUnknown := d.f.stopsItself(p.Node, d.f.lostSince(p), d.f.mayRun(p))
		left := at.Sub(d.f.Now)
		if whyUnknown == "" && left <= 0 {
			ch := p.change(Remove, nil,
				"its machine is lost for so long that the pod has stopped by itself (disconnect.stop_after)")
			ch.release(p.Node)
			d.add(ch)
			continue
		}
		if whyUnknown == "" {
			d.requeueAfter(left)
		}
		d.awaitStop(p, p.Node, cmp.Or(whyUnknown, "it "+countsAsStopped(at)))
	}
}

// awaitStop adds to the status how long an index waits for a node that cannot confirm a stop, and what an operator can
// do.
func (d *draft) awaitStop(p *Pod, where, until string) {
	if d.f.aliveOn(where) {
		return // the node will confirm the stop
	}
	d.awaitsStop = append(d.awaitsStop, fmt.Sprintf("%s waits until its copy on %s has stopped; %s. "+
		"Bring the node back or, if the pod is gone for good: rcctl pod forget %s-%s-%d --node %s --i-am-sure",
		name(p.Identity), where, until, p.PodID, p.Role, p.Identity.Index, where))
}

func countsAsStopped(at time.Time) string {
	return "counts as stopped at " + at.UTC().Format(time.RFC3339) + " (disconnect.stop_after)"
}

// stopLost asks for the stop of an ordered pod whose machine is lost for long enough. It is placed again when it has
// stopped.
func (l losses) stopLost(p *Pod) {
	if p.LostSince != nil && l.f.machineLost(p.Node) && l.dueForReplacement(&p.Placement) {
		l.stop(p, "its machine is lost, and it is placed again when it has surely stopped", keepingMinimum)
	}
}

// scaleOrdered brings an ordered group to its count. An index is placed when all lower indices are available. The
// highest index stops first, the next lower one when that stop is confirmed.
func (s *scaling) scaleOrdered(role string, count int, spare, slots *int) {
	var highest *Pod // the pods are sorted
	for p := range s.f.all() {
		if p.Role == role {
			highest = p
		}
	}
	surplus := highest != nil && highest.Identity.Index >= count && highest.RunState == pod.Running
	if surplus && !s.f.keptAsAdopted(highest) {
		s.remove([]*Pod{highest}, 1, spare, fmt.Sprintf("%d replicas of role %s desired", count, role))
	}
	for index := range count {
		id := pod.Identity{RCID: s.f.RC.ID, Role: role, Index: index}
		p := s.f.find(id)
		switch {
		case s.changed[id]:
			return
		case p == nil:
			s.placeNext(id, slots)
			return
		case p.RunState != pod.Running || !s.f.available(p):
			return // higher indices wait
		}
	}
}

// placeNext asks for an identity without a placement, unless a copy of it may live.
func (s *scaling) placeNext(id pod.Identity, slots *int) {
	switch where, why := s.mayLive(id, ""); {
	case s.f.Hold != "":
		s.waiting = true
	case slices.ContainsFunc(s.f.Orphans, func(o Orphan) bool { return o.Identity == id }):
		return // adoption adopts or stops it
	case s.f.UnreadIntent != "":
		s.awaitsStop = append(s.awaitsStop, fmt.Sprintf("%s is not placed: an intent for it may exist that cannot be "+
			"read: %s. Remove that intent if no such copy lives", name(id), s.f.UnreadIntent))
	case where != "":
		s.awaitsStop = append(s.awaitsStop, fmt.Sprintf("%s is not placed: %s", name(id), s.withAdvice(where, why)))
	case s.allowed(1, *slots) > 0:
		s.placeOne(id, slots)
	}
}

// withAdvice returns why a node keeps an index, and what an operator can do.
func (d *draft) withAdvice(where, why string) string {
	if d.f.aliveOn(where) {
		return where + " " + why
	}
	return fmt.Sprintf("%s %s. Bring the node back. Only if that machine is gone for good, with all that it ran: "+
		"rcctl node forget %s --i-am-sure, which gives up every pod there", where, why, where)
}

// NeedIntents returns the identities of ordered groups that get their first placement in this plan. Their intents must
// be read first, because a placement may have vanished while the pod runs (P4).
func (p *Plan) NeedIntents() []pod.Identity {
	var ids []pod.Identity
	note := func(id pod.Identity) {
		if p.facts.ordered(id.Role) && p.facts.find(id) == nil && !slices.Contains(ids, id) {
			ids = append(ids, id)
		}
	}
	for _, id := range p.Adds {
		note(id)
	}
	for i := range p.Changes {
		note(p.Changes[i].Identity)
	}
	return ids
}

// AddIntent adds an intent without a placement as if the node had listed the pod as an orphan.
func (s *Snapshot) AddIntent(name string, in *pod.Intent) {
	if slices.ContainsFunc(s.Orphans, func(o Orphan) bool { return o.Node == name && o.Identity == in.Identity }) {
		return
	}
	o := Orphan{Node: name, Orphan: pod.Orphan{
		Identity: in.Identity, PodID: in.PodID, Digest: in.Digest, Revision: in.Revision, Ports: in.Ports,
		Reason: pod.ReasonOrphaned,
	}}
	if m := s.ManifestOf(in.Digest); m != nil {
		res := m.Resources()
		o.CPU, o.Memory = res.CPU, res.Memory
	}
	o.intentStops = in.State == pod.Stopped
	s.Orphans = append(slices.Clone(s.Orphans), o)
}

// mayLive returns a node that may run an identity without a placement, and why; "" for none. Either the node last
// reported that it runs the identity, or it has not reported in this epoch and the controller is older. Such a node may
// be in touch with Consul, so the time when its machine was first seen lost is used, too. but is a node to leave out,
// "" for none.
func (d *draft) mayLive(id pod.Identity, but string) (where, why string) {
	for _, name := range slices.Sorted(maps.Keys(d.f.Nodes)) {
		if name == but {
			continue
		}
		v := d.f.Nodes[name]
		digests := []string{d.f.RC.ManifestOf(id.Role)}
		listed := field.Find(v.Orphans, func(o *pod.Orphan) bool { return o.Identity == id })
		if listed != nil {
			why, digests = "last reported that it runs it", append(digests, listed.Digest)
		} else {
			why = "may run it, and has not said what it runs in this epoch"
		}
		switch {
		case listed == nil && (v.Spoke(d.f.Epoch) || d.f.Newer):
			continue
		case v.Alive && listed == nil:
			return name, "is back and has not said yet what it runs; the log of its preparer says why"
		case v.Alive:
			return name, why
		}
		at, whyUnknown := d.f.stopsItself(name, d.f.silentSince(v), digests)
		left := at.Sub(d.f.Now)
		switch {
		case whyUnknown == "" && left <= 0:
			continue
		case whyUnknown == "":
			d.requeueAfter(left)
			whyUnknown = "its copy " + countsAsStopped(at)
		}
		return name, why + "; " + whyUnknown
	}
	return "", ""
}

// silentSince returns from when on a node that has not spoken in this epoch is surely silent, nil if that is not known.
func (f *Facts) silentSince(v *node.View) *time.Time {
	since := v.LostSeen
	if since.IsZero() && !v.DeadSeen.IsZero() {
		since = f.lost[f.death(v.Name)] // Consul forgets failed agents, the placements do not
	}
	switch {
	case since.IsZero():
		return nil
	case since.After(f.EpochSince):
		return &since
	}
	return &f.EpochSince
}

// leaveFirst stops an ordered pod that must leave its node. It is placed again when it has stopped.
func (d *drains) leaveFirst(p *Pod, availableNow int) {
	switch {
	case d.f.availableForMinimum(p) && availableNow-1 < d.limits.minimum:
		d.block(fmt.Sprintf("%s must leave %s and stops first, because its group is ordered, "+
			"but %d available replicas and a minimum of %d leave no spare pod",
			name(p.Identity), p.Node, availableNow, d.limits.minimum))
	default:
		d.stop(p, "it must leave "+p.Node+", and stops first because its group is ordered", keepingMinimum)
	}
}

// waitsForGroup reports whether an available ordered pod is not moved because another pod of its group is not
// available. If so, the status shows it.
func (d *drains) waitsForGroup(p *Pod) bool {
	waits := d.f.ordered(p.Role) && d.f.available(p) && !d.f.groupAvailable(p.Role)
	if waits {
		d.block(fmt.Sprintf("%s must leave %s, and waits until all pods of its ordered group are available",
			name(p.Identity), p.Node))
	}
	return waits
}

// endMove ends a move that began before the group was ordered: it stops the former copy, or the new one if only the
// former is available.
func (m moves) endMove(p *Pod) {
	left := field.Find(p.Placement.Ghosts, func(g *pod.Ghost) bool {
		return m.f.formerAvailable(p, *g) && m.f.aliveOn(g.Node)
	})
	if left != nil && !m.f.availableHere(p) {
		m.returnTo(p, *left, p.Avoid, "its group is ordered, and its former copy is available", keepingMinimum)
		return
	}
	m.stopFormerCopies(p, anyNode, "its group is ordered", keepingMinimum)
}

func (f *Facts) groupAvailable(role string) bool {
	for index := range f.RC.CountOf(role) {
		p := f.find(pod.Identity{RCID: f.RC.ID, Role: role, Index: index})
		if p == nil || !f.available(p) {
			return false
		}
	}
	return true
}

// adoptOrdered adopts a copy of an ordered pod that runs without an intent, if no other copy lives. Of two copies, the
// one with the lower revision stops first (R2).
func (a adoption) adoptOrdered(o *Orphan, p *Pod) {
	rival := a.rival(o)
	switch {
	case a.f.Hold != "":
		a.waiting = true // another copy may be on a node that has not reported yet (R1)
	case p == nil && a.f.UnreadIntent != "":
		a.awaitsStop = append(a.awaitsStop, fmt.Sprintf(
			"%s is not adopted: an intent for it may exist that cannot be read: %s",
			name(o.Identity), a.f.UnreadIntent))
	case p == nil && rival == nil && !o.intentStops:
		a.adoptSole(o, &Pod{Placement: pod.Placement{Identity: o.Identity}}, "runs without a placement")
	case p == nil && rival == nil:
		a.stopWithout(o, "has an intent to stop and no placement")
	case p == nil:
		a.stopWithout(rival, "runs besides another copy with a higher revision")
	case placedToStop(p) && a.f.RC.DeletedAt == nil && (p.Node != o.Node || o.Revision <= p.Revision):
		// The stop of p has a new revision, which cannot be compared with other copies' revisions. The copies are
		// compared when p has stopped. All copies of a deleted controller stop at once.
	case p.Node == o.Node && o.Revision <= p.Revision:
		if rival != nil {
			a.stopDuplicate(rival, p)
		}
	case p.Node == o.Node:
		if rival != nil {
			a.stopDuplicate(rival, p)
		} else if len(p.Placement.Ghosts) == 0 {
			a.adoptSole(o, p, "runs at a higher revision than its placement")
		}
	case !a.f.outranks(o, p):
		a.stopDuplicate(o, p)
	case p.RunState == pod.Running:
		a.stop(p, "a copy with a higher revision runs on "+o.Node, keepingMinimum)
	}
}

// rival returns the copy with the lowest revision among the same pod's orphans on other nodes, nil for none.
func (a adoption) rival(o *Orphan) *Orphan {
	var lowest *Orphan
	for i := range a.f.Orphans {
		other := &a.f.Orphans[i]
		if other.Identity == o.Identity && other.Node != o.Node && (lowest == nil || other.Revision < lowest.Revision) {
			lowest = other
		}
	}
	return lowest
}

// placedToStop reports whether a placement looks as if stopWithout made it, so no owner decided that the pod should be
// there.
func placedToStop(p *Pod) bool {
	return p.RunState == pod.Stopped && p.Placement.Epoch == "" && p.AdoptedAtGeneration == 0
}

// stopWithout stops a copy that has no placement. It gives the copy one, because only then can its node confirm the
// stop.
func (a adoption) stopWithout(o *Orphan, reason string) {
	if !a.mayStop() {
		return
	}
	a.adoptAs(o, &Pod{Placement: pod.Placement{Identity: o.Identity}}, reason)
	ch := &a.plan.Changes[len(a.plan.Changes)-1]
	now := a.f.Now
	ch.Action, ch.NeedsBreaker = StopDuplicate, true
	ch.Placement.RunState, ch.Placement.StoppingSince, ch.Placement.AdoptedAtGeneration = pod.Stopped, &now, 0
	ch.Intents[0].Intent.State = pod.Stopped
}
