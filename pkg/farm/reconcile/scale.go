package reconcile

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/pod"
)

// scaling adds and removes replicas.
type scaling struct {
	*room
	newest int // new replicas of this plan that a limit counts, and that get the manifest that their role has now
	mayGo  int // pods beyond those asked for that the stage lets go; see stage
}

// scale brings the number of replicas of each role to what is desired: it asks for removals, and for identities to be
// placed.
func (c *scaling) scale() {
	available, inUse := 0, 0
	for p := range c.s.all() {
		if c.s.counting(p) && !c.changed[p.Identity] {
			available++
		}
		// A stop that hangs on a node without a preparer must not keep others from being placed.
		inUse += copies(c.s, p)
	}
	adopted := map[string]int{} // in this very plan, by role
	for i := range c.plan.Changes {
		ch := &c.plan.Changes[i]
		if ch.Placement == nil || ch.Placement.RunState != pod.Running {
			continue
		}
		if was := c.s.find(ch.Identity); was == nil || was.RunState != pod.Running {
			adopted[ch.Identity.Role]++
		}
	}
	inUse += c.found()
	spare := available + len(c.companionPods) - c.limits.least // how many available pods may be removed now (P6)
	c.mayGo = c.s.mayGo()
	if c.s.each != nil {
		c.follow(&spare)
		return
	}
	room := c.most() - inUse - c.replaced
	known := map[string]bool{}
	for _, g := range c.s.RC.ReplicaGroups {
		known[g.Role] = true
		if g.Ordered {
			c.scaleOrdered(g.Role, *g.Count, &spare, &room)
			continue
		}
		var running []*Pod
		for p := range c.s.running() {
			if p.Role == g.Role {
				running = append(running, p)
			}
		}
		// What stays as it was found is not counted against those that may go: the others would pay for it.
		removable := slices.DeleteFunc(slices.Clone(running), c.s.stays)
		c.removeInStage(removable, len(removable)-*g.Count, &spare, fmt.Sprintf("%d replicas of role %s desired", *g.Count, g.Role))
		again, leaving := c.secondNodesOf(g.Role)
		lacking := max(0, *g.Count-len(running)-adopted[g.Role]-leaving)
		wanted := min(lacking, c.mayCome())
		c.later += lacking - wanted
		c.forgetVacant(again[min(wanted, len(again)):])
		c.place(g.Role, again[:min(wanted, len(again))], c.allowed(wanted, room), &room)
	}
	for p := range c.open() {
		if !known[p.Role] && c.s.Vacant(p) {
			c.forgetVacant([]*Pod{p})
		}
	}
	for p := range c.s.running() {
		if !known[p.Role] && !c.s.stays(p) {
			c.removeInStage([]*Pod{p}, 1, &spare, "no role "+p.Role+" desired")
		}
	}
}

// remove stops n of the pods, fewer by those that this plan stops for another reason: those on ineligible nodes first,
// then those that are not available, the newest, the highest index. Pods that are available go only as far as the
// minimum allows.
func (c *scaling) remove(pods []*Pod, n int, spare *int, reason string) {
	for _, p := range pods {
		if c.stopped[p.Identity] {
			n--
		}
	}
	if n <= 0 {
		return
	}
	for _, r := range removalOrder(c.s, pods) {
		if n == 0 {
			return
		}
		p := r.Pod
		if c.stopped[p.Identity] {
			continue
		}
		if c.changed[p.Identity] || r.counts && *spare <= 0 {
			if r.counts && c.s.hasCompanions() {
				c.awaits(fmt.Sprintf("%s.%d is not stopped: of all revisions of %s %d pods must stay available", p.Role, p.Identity.Index, c.s.RC.Service.Name, c.limits.least))
			}
			continue
		}
		if r.counts {
			*spare--
		}
		c.stop(p, reason, true)
		n--
	}
}

// removable is a pod with what its place in the order of removal depends on.
type removable struct {
	*Pod
	eligible, available, counts bool
	outdated                    bool // while a change of mode goes in stages: it has not got the new manifest
}

// removalOrder returns pods in the order in which they are stopped.
func removalOrder(s *Snapshot, pods []*Pod) []removable {
	order := make([]removable, len(pods))
	for i, p := range pods {
		order[i] = removable{Pod: p, eligible: s.eligible(p.Node), available: s.available(p), counts: s.counting(p), outdated: s.RC.InStages() && !s.current(p)}
	}
	slices.SortFunc(order, func(a, b removable) int {
		return cmp.Or(
			boolFirst(!a.eligible, !b.eligible),
			boolFirst(a.outdated, b.outdated),
			boolFirst(!a.available, !b.available),
			b.ChangedAt.Compare(a.ChangedAt),
			cmp.Compare(b.Identity.Index, a.Identity.Index),
		)
	})
	return order
}

func boolFirst(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	default:
		return 1
	}
}

// place asks for n new identities of a role, those first that are placed again, then the lowest free indices. An index
// is free once its stop is confirmed.
func (c *scaling) place(role string, again []*Pod, n int, room *int) {
	if n <= 0 || c.s.ManifestOf(c.newDigest(role)) == nil {
		return
	}
	if c.s.Hold != "" {
		c.waiting = true
		return
	}
	for _, p := range again[:min(n, len(again))] {
		n--
		if c.s.ManifestOf(p.Digest) == nil {
			continue // it waits for that
		}
		c.placeElsewhere(p.Identity)
		*room--
	}
	used := map[int]bool{}
	for p := range c.s.all() {
		if p.Role == role {
			used[p.Identity.Index] = true
		}
	}
	// What was adopted in this very plan takes its index too.
	for id := range c.changed {
		if id.Role == role {
			used[id.Index] = true
		}
	}
	for index := 0; n > 0; index++ {
		if used[index] {
			continue
		}
		if !c.placeOne(pod.Identity{RCID: c.s.RC.ID, Role: role, Index: index}, room) {
			return
		}
		n--
	}
}

// placeOne asks for a new identity, unless the manifest that it gets cannot be read.
func (c *scaling) placeOne(id pod.Identity, room *int) bool {
	digest := c.newDigest(id.Role)
	if c.s.ManifestOf(digest) == nil {
		return false
	}
	if digest == c.s.RC.ManifestOf(id.Role) && c.s.RC.InPlace != nil && c.s.RC.InPlace.Counts(id.Role) {
		c.newest++
	}
	c.s.chosen[id] = digest
	c.plan.Adds = append(c.plan.Adds, id)
	*room--
	return true
}

// upgrades gives pods other manifests where they are.
type upgrades struct{ *room }

// upgrade gives pods a new manifest in place, one at a time: next only when the last is available; the first failure halts
// the rest (R6). A pod that is not available anyway goes first. One of a role that does not change holds up its like alone, unless it is on its way.
// One that asks for another node holds up nobody for that: there may be none for ever.
func (c upgrades) upgrade() {
	to := roll(c.s)
	to.most -= c.comingInStage()
	if c.s.Rollout != "" && c.s.RC.InPlace == nil || c.s.Hold != "" {
		return
	}
	for p := range c.s.all() {
		if c.s.onItsWay(p) {
			return // whether its manifest works is seen on its second node
		}
	}
	var outdated []*Pod
	available, waiting, failed, last := len(c.companionPods), false, "", ""
	beside, besides := false, "" // a pod of a role that does not change is not available, and why
	for p := range c.s.running() {
		if c.s.counting(p) {
			available++
		}
		switch {
		case c.changed[p.Identity] && !slices.Contains(c.plan.Adds, p.Identity):
			waiting = true
		case c.s.unasked(p):
			continue // it leaves as it is
		case to.back && c.s.limited(p) && !c.s.current(p) && !(p.Digest == to.digest(c.s, p.Role) && p.Switching):
			continue // it has what it should
		case p.Digest != to.digest(c.s, p.Role):
			if !c.changed[p.Identity] && (to.most > 0 || !c.s.limited(p)) && !c.s.stays(p) && !c.awaitsEpoch(p) && c.s.aliveOn(p.Node) && c.s.ManifestOf(to.digest(c.s, p.Role)) != nil {
				outdated = append(outdated, p)
			}
		case !c.s.available(p) && !c.s.endedWell(p) && c.s.aliveOn(p.Node):
			why := c.stalled(p)
			if p.Switching {
				last = cmp.Or(why, last)
			}
			if c.s.RC.InPlace != nil && !c.s.limited(p) && (!p.Switching || why != "") {
				beside, besides = true, cmp.Or(why, besides)
				continue
			}
			waiting, failed = true, cmp.Or(why, failed)
		}
	}
	if changing := slices.DeleteFunc(slices.Clone(outdated), func(p *Pod) bool { return !c.s.limited(p) }); beside && len(changing) > 0 {
		outdated = changing
	} else if beside {
		waiting, failed = true, cmp.Or(failed, besides)
	}
	if len(outdated) == 0 {
		c.block(last) // a pod that fails is no failed upgrade, unless it is one that was upgraded and never became available
		return
	}
	c.block(failed)
	if waiting {
		return
	}
	p := c.next(outdated, to.back)
	if c.s.counting(p) && available-1 < c.limits.least {
		if len(c.plan.Adds) > 0 {
			return // which may make the room
		}
		c.block(fmt.Sprintf("%d available replicas and a minimum of %d leave no room to upgrade in place; lower min_available or add replicas",
			available, c.limits.least))
		return
	}
	c.upgradeOne(p, to.digest(c.s, p.Role))
}

// next returns the pod whose turn it is.
func (c upgrades) next(outdated []*Pod, back bool) *Pod {
	return slices.MinFunc(outdated, func(a, b *Pod) int {
		order := a.Identity.Compare(b.Identity)
		if back {
			order = -order // the last to get it is the first to give it up
		}
		return cmp.Or(boolFirst(!c.s.available(a), !c.s.available(b)), order)
	})
}

// stalled tells a pod that is on its way from one that failed: it returns why the latter holds the rest up, "" for the former.
func (c *draft) stalled(p *Pod) string {
	waited, deadline := c.s.Now.Sub(p.ChangedAt), deadline(c.s, p)
	if hasFailed(p) || waited >= deadline {
		return fmt.Sprintf("%s.%d on %s did not become available at manifest %.8s: %s",
			p.Role, p.Identity.Index, p.Node, p.Digest, describe(p.Reality))
	}
	c.requeueAfter(deadline - waited)
	return ""
}

// hasFailed reports whether the node says that the pod, which is not available, does not work as placed. A process that has ended since is
// enough: that it was started again does not take that back, being available does.
func hasFailed(p *Pod) bool {
	r := p.Reality
	if r == nil || r.Revision < p.Revision {
		return false
	}
	return r.State == pod.StateFailed || r.State == pod.StateCrashLooping || r.Digest == p.Digest && r.Restarts > 0
}

// deadline is how long the pod may take to become available, min_ready included.
func deadline(s *Snapshot, p *Pod) time.Duration {
	m := cmp.Or(s.ManifestOf(p.Digest), s.ManifestOf(s.RC.ManifestOf(p.Role)), &manifest.Manifest{}) // the last has the default
	return s.RC.Deadline() + m.ReadyAfter()
}

func (c upgrades) upgradeOne(p *Pod, digest string) {
	m := c.s.ManifestOf(digest)
	next := p.Placement
	next.Digest, next.PodID, next.Ports = digest, m.ID, m.PortMap()
	next.Labels, next.Replicas = c.s.RC.PodLabelSet(m.ID, m.Labels, next.OwnLabels), c.s.RC.CountOf(p.Role)
	next.Revision, next.ChangedAt, next.AdoptedAtGeneration = p.nextRevision(c.s.Now), c.s.Now, 0
	next.Switching, next.MayRun = true, c.s.mayRunStill(p)
	in, claim := next.Intent(), claimOf(m, p.Identity)
	c.add(Change{
		Action: Upgrade, Identity: p.Identity, Index: p.Index, Placement: &next,
		NeedsMinimum: true, NeedsSchema: true,
		Reason:  fmt.Sprintf("manifest %.8s -> %.8s", p.Digest, next.Digest),
		Intents: []IntentChange{{Node: p.Node, Intent: &in}},
		Reserve: []ReserveChange{{Node: p.Node, Claim: &claim, Dynamic: m.DynamicPorts(), KeepPorts: p.Ports, Keep: true}},
	})
}

// standsBy reports whether the controller's pods stay out of their service's name.
func (s *Snapshot) standsBy() bool { return s.RC.Service != nil && s.RC.Service.Standby }

// naming takes pods into the name of their service, or out of it.
type naming struct{ *room }

// switchNames takes pods into their service's name or out of it, as the record says. Their nodes restart nothing for that. Who leaves
// the name is taken from the minimum as by a stop (P6); what was found running stays as it is.
func (c naming) switchNames() {
	if c.s.Hold != "" {
		return
	}
	leaves := c.s.standsBy()
	spare := len(c.companionPods) - c.limits.least
	for p := range c.open() {
		if c.s.counting(p) {
			spare++
		}
	}
	for p := range c.openRunning() {
		if p.Placement.Standby == leaves || c.s.stays(p) || c.startsBeside(p) {
			continue
		}
		if c.s.counting(p) {
			if spare <= 0 {
				c.awaits(fmt.Sprintf("%s.%d stays in the service's name: %d pods in it must stay available", p.Role, p.Identity.Index, c.limits.least))
				continue
			}
			spare--
		}
		next := p.Placement
		next.Standby, next.Revision, next.ChangedAt = leaves, p.nextRevision(c.s.Now), c.s.Now
		in := next.Intent()
		reason := "it takes its service's name"
		if leaves {
			reason = "it leaves its service's name"
		}
		c.add(Change{
			Action: Switch, Identity: p.Identity, Index: p.Index, Placement: &next, Reason: reason, NeedsSchema: true, NeedsMinimum: leaves,
			Intents: []IntentChange{{Node: p.Node, Intent: &in}},
		})
	}
}
