package reconcile

import (
	"slices"

	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
)

// Companion is the controller of another revision of the service, as far as decisions depend on it (ADR 16).
type Companion struct {
	RCID   string
	Pods   []Pod // with what their nodes report
	Unread int   // placements that cannot be read: each is a copy against the bound, and none is available
	Status *rc.Status
	Asks   *int // how many replicas its record asks for; nil: it cannot be read
	// Service has the minimum and the bound of its record; nil: they do not apply.
	Service *rc.Service
}

// hasCompanions reports whether the limits of the service apply, because other revisions have records.
func (s *Snapshot) hasCompanions() bool {
	return s.RC.Service != nil && len(s.Companions) > 0
}

func (s *Snapshot) bounded() bool { return s.hasCompanions() && s.serviceLimits().bound > 0 }

// serviceLimits returns the strictest limits of all revisions' records. A bound of zero means none.
func (s *Snapshot) serviceLimits() (l limits) {
	include := func(of *rc.Service) {
		l.minimum = max(l.minimum, of.Min)
		if l.bound == 0 || of.Max > 0 && of.Max < l.bound {
			l.bound = of.Max
		}
	}
	if s.RC.DeletedAt == nil {
		include(s.RC.Service)
	}
	for i := range s.Companions {
		if of := s.Companions[i].Service; of != nil {
			include(of)
		}
	}
	return l
}

// asked returns how many pods all revisions ask for, and how many of these are not standby. bounds is false if there is
// a rollout, or if the number of a revision is not known.
func asked(s *Snapshot) (all, serving int, bounds bool) {
	if s.Rollout != "" {
		return 0, 0, false
	}
	add := func(n int, of *rc.Service) {
		if all += n; of == nil || !of.Standby {
			serving += n
		}
	}
	add(s.RC.Asks(), s.RC.Service)
	for i := range s.Companions {
		c := &s.Companions[i]
		if c.Asks == nil {
			return 0, 0, false
		}
		add(*c.Asks, c.Service)
	}
	return all, serving, true
}

// limits are the fewest pods that must stay available (P6), and the most copies.
type limits struct {
	minimum int // of the service if there are companions, else of the controller
	bound   int // of all revisions of a service that has a bound
}

// limitsOf returns the limits. Without a rollout only operators change the number of pods that revisions ask for, so a
// higher minimum is lowered to that number, and a lower bound is raised to it.
func limitsOf(f *Facts) limits {
	if !f.hasCompanions() {
		return limits{minimum: ownMinimum(f)}
	}
	l := f.serviceLimits()
	if all, serving, bounds := asked(&f.Snapshot); bounds {
		l.minimum, l.bound = min(l.minimum, serving), max(l.bound, all+f.RC.Surge())
	}
	return l
}

// whyBlocks returns why a companion keeps other revisions from placing pods, "" if it does not.
func (c *Companion) whyBlocks(epoch string) string {
	switch st := c.Status; {
	case st == nil:
		return "has no status that can be read"
	case st.Is(rc.Holding):
		return "waits for its nodes"
	case st.Is(rc.Regressed):
		return "has pods that were found running"
	case st.Epoch != epoch:
		return "has not reported in this epoch what it runs"
	}
	return ""
}

// withoutStopped returns the pod without copies whose stop is confirmed. The next pass over that controller forgets
// them. This rings no bell, so other passes must not wait for it.
func (p *Pod) withoutStopped() *Pod {
	next := *p
	next.Placement.Ghosts = slices.DeleteFunc(slices.Clone(p.Placement.Ghosts), p.hasStopped)
	if p.RunState == pod.Stopped && confirmed(p.Reality, p.Revision) {
		next.RunState = "" // neither runs nor stops
	}
	return &next
}
