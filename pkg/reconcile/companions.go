package reconcile

import (
	"fmt"
	"slices"
	"time"

	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
)

// Companion is the controller of another revision of the service, as far as decisions depend on it (ADR 16).
type Companion struct {
	RCID   string
	Pods   []Pod // with what their nodes report
	Unread int   // placements that cannot be read: each takes room, and none counts as available
	Status *rc.Status
	Asks   *int // how many replicas its record asks for; nil: it cannot be read
}

// companionRequeue is how long after a companion kept something from being placed another look is due: nothing rings when its status
// changes.
const companionRequeue = 2 * time.Second

// shared reports whether minimum and bound are those of the service: other revisions may have pods.
func (s *Snapshot) shared() bool {
	return s.RC.Service != nil && (len(s.Companions) > 0 || s.CompanionsUnread)
}

// bounded reports whether the service says how many pods all its revisions may have.
func (s *Snapshot) bounded() bool { return s.shared() && s.RC.Service.Max > 0 }

// asked returns how many pods the revisions ask for together, while that bounds the service: no rollout is in charge, so that nobody but
// operators changes the counts, and nobody brings minimum and bound to them.
func (s *Snapshot) asked() (n int, bounds bool) {
	if s.RC.Mutator != "" || s.CompanionsUnread {
		return 0, false
	}
	n = s.RC.Asks()
	for i := range s.Companions {
		if s.Companions[i].Asks == nil {
			return 0, false
		}
		n += *s.Companions[i].Asks
	}
	return n, true
}

// least returns how many pods must stay available: the service's where there are companions, else the controller's (P6). The one like the
// other follows the counts down.
func (s *Snapshot) least() int {
	if !s.shared() {
		return s.RC.MinimumAvailable()
	}
	if n, bounds := s.asked(); bounds {
		return min(s.RC.Service.Min, n)
	}
	return s.RC.Service.Min
}

// bound returns how many copies all revisions of a service that has a bound may have. It follows the counts up.
func (s *Snapshot) bound() int {
	if n, bounds := s.asked(); bounds {
		return max(s.RC.Service.Max, n+s.RC.Surge())
	}
	return s.RC.Service.Max
}

// counting reports whether a pod counts as available for the minimum: one that stands by does not.
func (s *Snapshot) counting(p *Pod) bool {
	_, counts := s.countsOn(p, &p.Placement)
	return counts
}

// lookBeside takes in what companions have: which of their pods count, and how many copies stand.
func (c *computation) lookBeside() {
	for i := range c.s.Companions {
		other := &c.s.Companions[i]
		c.standingBeside += other.Unread
		for j := range other.Pods {
			p := &other.Pods[j]
			c.standingBeside += c.standing(p.withoutStopped())
			if name, counts := c.s.countsOn(p, &p.Placement); counts {
				c.beside = append(c.beside, Copy{Node: name, Identity: p.Identity})
			}
		}
	}
}

// most returns how many copies of the controller's own pods may stand.
func (c *computation) most() int {
	switch {
	case c.s.CompanionsUnread:
		return 0
	case c.s.bounded():
		return c.s.bound() - c.standingBeside
	}
	return c.s.RC.Desired() + c.s.RC.Surge()
}

// mayAdd reports whether companions let anything be added. One whose nodes have not said what they run in the present world, or that
// has more than it should, may have pods that nobody counts yet.
func (c *computation) mayAdd() bool {
	if !c.s.shared() {
		return true
	}
	if c.s.CompanionsUnread {
		c.awaits("nothing is placed before the other revisions of " + c.s.RC.Service.Name + " are read")
		return false
	}
	for i := range c.s.Companions {
		if why := c.s.holds(&c.s.Companions[i]); why != "" {
			c.awaits(fmt.Sprintf("nothing is placed while %s, another revision of %s, %s", c.s.Companions[i].RCID, c.s.RC.Service.Name, why))
			c.requeueAfter(companionRequeue)
			return false
		}
	}
	return true
}

// holds returns why nothing may be placed beside a companion, "" when it may.
func (s *Snapshot) holds(other *Companion) string {
	switch st := other.Status; {
	case st == nil:
		return "has no status that can be read"
	case st.Is(rc.Holding):
		return "waits for its nodes"
	case st.Is(rc.Regressed):
		return "has pods that were found running"
	case st.Nonce != s.Nonce:
		return "has not said what it runs since the records are what they are"
	}
	return ""
}

// allowed returns how many of so many new replicas may be placed, and says what the others wait for.
func (c *computation) allowed(wanted, room int) int {
	if wanted <= 0 {
		return 0
	}
	if !c.mayAdd() {
		return 0
	}
	if room < wanted && c.s.bounded() {
		c.awaits(fmt.Sprintf("%d replicas wait: the revisions of %s may have %d pods together", wanted-max(0, room), c.s.RC.Service.Name, c.s.bound()))
	}
	return min(wanted, room)
}

// awaits says what pods wait for because of the service; what was said first stays.
func (c *computation) awaits(why string) {
	if c.awaitsService == "" {
		c.awaitsService = why
	}
}

// stamps reports whether a change takes a pod that counts, or adds a copy, as owners of other revisions count: they must notice.
func (c *computation) stamps(p *Pod, ch *Change) bool {
	if !c.s.shared() {
		return false
	}
	before, standing, counted := "", 0, false
	if p != nil {
		standing = c.standing(p.withoutStopped())
		before, counted = c.s.countsOn(p, &p.Placement)
	}
	if ch.Placement == nil {
		return counted
	}
	next := Pod{Placement: *ch.Placement}
	if p != nil {
		next.Reality, next.Ghosts = p.Reality, p.Ghosts
	}
	after, counts := "", false
	if p != nil {
		after, counts = c.s.countsOn(p, ch.Placement)
	}
	return counted && !(counts && after == before) || c.standing(next.withoutStopped()) > standing
}

// withoutStopped returns the pod without the copies whose stop their nodes have confirmed: its owner forgets them next, and rings no
// bell then.
func (p *Pod) withoutStopped() *Pod {
	next := *p
	next.Placement.Ghosts = slices.DeleteFunc(slices.Clone(p.Placement.Ghosts), p.hasStopped)
	if p.RunState == pod.Stopped && confirmed(p.Reality, p.Revision) {
		next.RunState = "" // neither runs nor stops
	}
	return &next
}

// unaided reports whether the plan is what it would be whatever companions that were not read have. As long as nothing of theirs counts, and they
// leave no room, all that depends on them is held up, and says so, or is one of the changes that others are not.
func (c *computation) unaided() bool {
	s, st := c.s, &c.plan.Status
	if !s.CompanionsUnread || s.Hold != "" || s.Breaker != "" || s.RC.Disabled || s.RC.DeletedAt != nil || s.RC.InPlace != nil || st.Lost > 0 || st.Unmanaged > 0 ||
		len(s.Requests) > 0 || len(s.Orphans) > 0 || len(c.plan.Adds) > 0 || len(c.plan.Counting) > 0 {
		return false
	}
	return c.plan.Unhampered() && !slices.ContainsFunc(c.plan.Changes, func(ch Change) bool {
		return ch.Action != Remove || ch.Placement != nil || ch.NeedsMinimum || ch.NeedsCompanions || ch.Stamps
	})
}

// alone reports whether whatever companions do makes no difference: the controller has what it should, and nothing waits.
func (c *computation) alone() bool {
	return c.s.RC.InPlace == nil && len(c.s.Requests) == 0 && c.plan.Status.Is(rc.Converged) && c.plan.Unhampered()
}

// Unhampered reports whether nothing keeps the plan from what it should bring about: what is missing then is what its changes ask for, and
// what nodes have still to report.
func (p *Plan) Unhampered() bool {
	return !slices.ContainsFunc(p.Status.Conditions, func(cond rc.Condition) bool { return cond.True && cond.Type != rc.Converged })
}
