package reconcile

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/pod"
)

// scale brings the number of replicas of each role to what is desired: it asks for removals, and for identities to be
// placed.
func (c *computation) scale() {
	available, standing := 0, 0
	for i := range c.s.Pods {
		p := &c.s.Pods[i]
		if c.s.counting(p) && !c.touched[p.Identity] {
			available++
		}
		// A stop that hangs on a node without a preparer must not keep others from being placed.
		standing += c.standing(p)
	}
	adopted := map[string]int{} // in this very plan, by role
	for i := range c.plan.Changes {
		ch := &c.plan.Changes[i]
		if ch.Placement == nil || ch.Placement.RunState != pod.Running {
			continue
		}
		if was := c.find(ch.Identity); was == nil || was.RunState != pod.Running {
			adopted[ch.Identity.Role]++
		}
	}
	standing += c.found()
	spare := available + len(c.beside) - c.s.least() // how many available pods may be removed now (P6)
	room := c.most() - standing - c.replaced
	known := map[string]bool{}
	for _, g := range c.s.RC.ReplicaGroups {
		known[g.Role] = true
		running := c.running(g.Role)
		// What stays as it was found is not counted against those that may go: the others would pay for it.
		removable := slices.DeleteFunc(slices.Clone(running), c.stays)
		c.remove(removable, len(removable)-*g.Count, &spare, fmt.Sprintf("%d replicas of role %s desired", *g.Count, g.Role))
		c.place(g.Role, c.allowed(*g.Count-len(running)-adopted[g.Role], room), &room)
	}
	for i := range c.s.Pods {
		if p := &c.s.Pods[i]; !known[p.Role] && p.RunState == pod.Running && !c.stays(p) {
			c.remove([]*Pod{p}, 1, &spare, "no role "+p.Role+" desired")
		}
	}
}

// found returns how many copies stand besides those of the snapshot once the plan has landed, whatever their role: those that it adopts.
func (c *computation) found() int {
	n := 0
	for i := range c.plan.Changes {
		ch := &c.plan.Changes[i]
		if ch.Placement == nil {
			continue
		}
		before := 0
		if was := c.find(ch.Identity); was != nil {
			before = c.standing(was)
		}
		n += max(0, c.standing(&Pod{Placement: *ch.Placement})-before)
	}
	return n
}

// running returns the pods of a role that are meant to run.
func (c *computation) running(role string) []*Pod {
	var pods []*Pod
	for i := range c.s.Pods {
		if p := &c.s.Pods[i]; p.Role == role && p.RunState == pod.Running {
			pods = append(pods, p)
		}
	}
	return pods
}

// remove stops n of the pods: those on ineligible nodes first, then those that are not available, the newest, the highest
// index. Pods that are available go only as far as the minimum allows.
func (c *computation) remove(pods []*Pod, n int, spare *int, reason string) {
	if n <= 0 {
		return
	}
	for _, r := range c.removalOrder(pods) {
		if n == 0 {
			return
		}
		p := r.Pod
		if c.stopped[p.Identity] {
			n-- // for another reason, but it goes
			continue
		}
		if c.touched[p.Identity] || r.counts && *spare <= 0 {
			if r.counts && c.s.shared() {
				c.awaits(fmt.Sprintf("%s.%d is not stopped: of all revisions of %s %d pods must stay available", p.Role, p.Identity.Index, c.s.RC.Service.Name, c.s.least()))
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
}

// removalOrder returns pods in the order in which they are stopped.
func (c *computation) removalOrder(pods []*Pod) []removable {
	order := make([]removable, len(pods))
	for i, p := range pods {
		order[i] = removable{Pod: p, eligible: c.s.eligible(p.Node), available: c.s.available(p), counts: c.s.counting(p)}
	}
	slices.SortFunc(order, func(a, b removable) int {
		return cmp.Or(
			boolFirst(!a.eligible, !b.eligible),
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

// place asks for n new identities of a role, the lowest free indices first. An index is free once its stop is confirmed.
func (c *computation) place(role string, n int, room *int) {
	if n <= 0 || c.s.ManifestOf(c.newDigest()) == nil {
		return
	}
	if c.s.Hold != "" {
		c.waiting = true
		return
	}
	used := map[int]bool{}
	for i := range c.s.Pods {
		if c.s.Pods[i].Role == role {
			used[c.s.Pods[i].Identity.Index] = true
		}
	}
	// What was adopted in this very plan takes its index too.
	for id := range c.touched {
		if id.Role == role {
			used[id.Index] = true
		}
	}
	for index := 0; n > 0; index++ {
		if used[index] {
			continue
		}
		digest := c.newDigest()
		if c.s.ManifestOf(digest) == nil {
			return
		}
		if digest == c.s.RC.ManifestDigest {
			c.newest++
		}
		id := pod.Identity{RCID: c.s.RC.ID, Role: role, Index: index}
		c.s.choose(id, digest)
		c.plan.Adds = append(c.plan.Adds, id)
		n--
		*room--
	}
}

// upgrade gives pods a new manifest in place, one at a time: next only when the last is available; the first failure halts
// the rest (R6). A pod that is not available anyway goes first.
func (c *computation) upgrade() {
	to := c.roll()
	if c.s.ManifestOf(to.digest) == nil || c.s.RC.Mutator != "" && c.s.RC.InPlace == nil || c.s.Hold != "" {
		return
	}
	var outdated []*Pod
	available, waiting, failed, last := len(c.beside), false, "", ""
	for i := range c.s.Pods {
		p := &c.s.Pods[i]
		if p.RunState != pod.Running {
			continue
		}
		if c.s.counting(p) {
			available++
		}
		switch {
		case c.touched[p.Identity]:
			waiting = true
		case to.back && p.Digest != c.s.RC.ManifestDigest && !(p.Digest == to.digest && p.Switching):
			continue // it has what it should
		case p.Digest != to.digest:
			if !c.stays(p) && c.s.aliveOn(p.Node) {
				outdated = append(outdated, p)
			}
		case !c.s.available(p) && c.s.aliveOn(p.Node):
			waiting = true
			why := c.stalled(p)
			failed = cmp.Or(why, failed)
			if p.Switching {
				last = cmp.Or(why, last)
			}
		}
	}
	if len(outdated) == 0 || to.most == 0 {
		c.block(last) // a pod that fails is no failed upgrade, unless it is one that was upgraded and never became available
		return
	}
	c.block(failed)
	if waiting {
		return
	}
	p := slices.MinFunc(outdated, func(a, b *Pod) int {
		order := a.Identity.Compare(b.Identity)
		if to.back {
			order = -order // the last to get it is the first to give it up
		}
		return cmp.Or(boolFirst(!c.s.available(a), !c.s.available(b)), order)
	})
	if least := c.s.least(); c.s.counting(p) && available-1 < least {
		if len(c.plan.Adds) > 0 {
			return // which may make the room
		}
		c.block(fmt.Sprintf("%d available replicas and a minimum of %d leave no room to upgrade in place; lower min_available or add replicas",
			available, least))
		return
	}
	c.upgradeOne(p, to.digest)
}

// stalled tells a pod that is on its way from one that failed: it returns why the latter holds the rest up, "" for the former.
func (c *computation) stalled(p *Pod) string {
	waited, deadline := c.s.Now.Sub(p.ChangedAt), c.deadline(p)
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
func (c *computation) deadline(p *Pod) time.Duration {
	m := cmp.Or(c.s.ManifestOf(p.Digest), c.s.Manifest, &manifest.Manifest{}) // the last has the default
	return c.s.RC.Deadline() + m.ReadyAfter()
}

func (c *computation) requeueAfter(after time.Duration) { c.plan.requeueAfter(after) }

func (c *computation) upgradeOne(p *Pod, digest string) {
	m := c.s.ManifestOf(digest)
	next := p.Placement
	next.Digest, next.PodID, next.Ports = digest, m.ID, m.PortMap()
	next.Labels = c.s.RC.PodLabelSet(m.ID, m.Labels)
	next.Revision, next.ChangedAt, next.AdoptedAtGeneration = p.nextRevision(c.s.Now), c.s.Now, 0
	next.Switching = true
	in, holder := next.Intent(), holderOf(m, p.Identity)
	c.add(Change{
		Action: Upgrade, Identity: p.Identity, Index: p.Index, Placement: &next,
		NeedsMinimum: true, NeedsSchema: true,
		Reason:  fmt.Sprintf("manifest %.8s -> %.8s", p.Digest, next.Digest),
		Intents: []IntentChange{{Node: p.Node, Intent: &in}},
		Reserve: []ReserveChange{{Node: p.Node, Holder: &holder, Dynamic: m.DynamicPorts(), Held: p.Ports, Keep: true}},
	})
}
