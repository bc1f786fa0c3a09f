package reconcile

import (
	"fmt"
	"slices"

	"github.com/rcfarm/rcfarm/pkg/pod"
)

// budget counts the copies that there are and may be, and the service's available pods.
type budget struct {
	*draft
	companionPods   []Copy         // pods of companions that are available
	companionCopies int            // copies of companions' pods
	surplusByRole   map[string]int // pods beyond the count of a role; nil: not yet computed
	slotsForLost    *int           // how many more lost pods may be replaced; nil: not yet computed
	replaced        int            // pods of lost machines that this plan replaces: each adds a copy
}

func newBudget(d *draft) *budget {
	c := &budget{draft: d}
	for i := range c.f.Companions {
		other := &c.f.Companions[i]
		c.companionCopies += other.Unread
		for j := range other.Pods {
			p := &other.Pods[j]
			c.companionCopies += copies(c.f, p.withoutStopped())
			if name, counts := c.f.availableOn(p, &p.Placement); counts {
				c.companionPods = append(c.companionPods, Copy{Node: name, Identity: p.Identity})
			}
		}
	}
	return c
}

// spare returns how many available pods the plan may still take away (P6).
func (r *budget) spare() int {
	spare := len(r.companionPods) - r.limits.minimum
	for p := range r.open() {
		if r.f.availableForMinimum(p) {
			spare++
		}
	}
	return spare
}

// maxCopies returns how many copies the controller's own pods may have.
func (r *budget) maxCopies() int {
	if r.f.bounded() {
		return r.limits.bound - r.companionCopies
	}
	return r.f.RC.Desired() + r.f.RC.Surge()
}

// mayAdd reports whether the other revisions allow a placement. A companion may have more copies than its placements
// show if its status is missing, unreadable or of another epoch, or if it is Holding or Regressed.
func (r *budget) mayAdd() bool {
	if !r.f.hasCompanions() {
		return true
	}
	for i := range r.f.Companions {
		if why := r.f.Companions[i].whyBlocks(r.f.Epoch); why != "" {
			r.awaitService(fmt.Sprintf("nothing is placed while %s, another revision of %s, %s",
				r.f.Companions[i].RCID, r.f.RC.Service.Name, why))
			return false
		}
	}
	return true
}

// allowed returns how many of the wanted new replicas may be placed.
func (r *budget) allowed(wanted, slots int) int {
	if wanted <= 0 || !r.mayAdd() {
		return 0
	}
	if slots < wanted && r.f.bounded() {
		r.awaitService(fmt.Sprintf("%d replicas wait: the revisions of %s may have %d pods together",
			wanted-max(0, slots), r.f.RC.Service.Name, r.limits.bound))
	}
	return min(wanted, slots)
}

// adoptedCopies returns how many copies the plan adopts, of all roles; the snapshot does not have them.
func (r *budget) adoptedCopies() int {
	n := 0
	for i := range r.plan.Changes {
		ch := &r.plan.Changes[i]
		if ch.Placement == nil {
			continue
		}
		before := 0
		if was := r.f.find(ch.Identity); was != nil {
			before = copies(r.f, was)
		}
		n += max(0, copies(r.f, &Pod{Placement: *ch.Placement})-before)
	}
	return n
}

// copies returns how many copies of a pod are compared with desired + surge: the placed copy unless it is lost, and
// copies on living nodes whose stop is not confirmed. If the service has a bound, copies on nodes without a preparer
// are compared, too, because they may run for long.
func copies(f *Facts, p *Pod) int {
	n, mayRun := 0, f.aliveOn
	if f.bounded() {
		mayRun = func(name string) bool { return !f.machineLost(name) }
	}
	if p.RunState == pod.Running && !f.machineLost(p.Node) ||
		p.RunState == pod.Stopped && mayRun(p.Node) && !f.Vacant(p) {
		n++
	}
	for _, g := range p.Placement.Ghosts {
		if !g.LeftBecauseLost && mayRun(g.Node) {
			n++
		}
	}
	return n
}

// surplus reports whether a role has surplus pods. Lost pods then stop first (see remove), and are not replaced.
func (r *budget) surplus(role string) bool {
	if r.surplusByRole == nil {
		r.surplusByRole = map[string]int{}
		for p := range r.f.running() {
			r.surplusByRole[p.Role]++
		}
		for _, g := range r.f.RC.ReplicaGroups {
			r.surplusByRole[g.Role] -= *g.Count
		}
	}
	return r.surplusByRole[role] > 0
}

// takeSlot reports whether one more lost pod may be replaced now, and takes the slot for it. Lost pods themselves take
// no slot (P6). If the service has a bound, a pod without a preparer has a slot, and its new copy takes no further one.
func (r *budget) takeSlot(p *Pod) bool {
	if !r.mayAdd() {
		return false
	}
	if r.slotsForLost == nil {
		slots := r.maxCopies() - r.adoptedCopies()
		for p := range r.f.all() {
			slots -= copies(r.f, p)
			if r.mayReturn(p) {
				slots--
			}
			if !r.f.bounded() && asGoodAsLost(r.f, p) {
				slots++
			}
		}
		r.slotsForLost = &slots
	}
	takes := 1
	if r.f.bounded() && asGoodAsLost(r.f, p) {
		takes = 0
	}
	if *r.slotsForLost < takes {
		if r.f.bounded() {
			r.awaitService(fmt.Sprintf(
				"%s must be placed elsewhere, and waits: the revisions of %s may have %d pods together",
				name(p.Identity), r.f.RC.Service.Name, r.limits.bound))
		}
		return false
	}
	*r.slotsForLost -= takes
	if r.f.machineLost(p.Node) {
		r.replaced++
	}
	return true
}

// mayReturn reports whether a pod was moved off a lost node and may return to it. A slot is kept for the copy there,
// because other pods could take all slots before. A copy on a lost machine needs none.
func (r *budget) mayReturn(p *Pod) bool {
	return !r.changed[p.Identity] && slices.ContainsFunc(p.Placement.Ghosts, func(g pod.Ghost) bool {
		return g.Revision == 0 && g.LeftBecauseLost && !r.f.machineLost(g.Node)
	})
}

// asGoodAsLost reports whether the node's preparer is dead for so long that the pod may be replaced, although the
// machine is not known to be lost.
func asGoodAsLost(f *Facts, p *Pod) bool {
	v := f.Nodes[p.Node]
	if p.RunState != pod.Running || v == nil || v.Alive || f.machineLost(p.Node) {
		return false
	}
	since := f.Now
	if p.UnmanagedSince != nil && f.sinceDeath(&p.Placement) {
		since = *p.UnmanagedSince
	}
	return f.Now.Sub(since) >= graceOf(f, unmanaged)
}
