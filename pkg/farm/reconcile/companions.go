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
	Unread int   // placements that cannot be read: each takes room, and none counts as available
	Status *rc.Status
	Asks   *int // how many replicas its record asks for; nil: it cannot be read
	// Service is what its record says of minimum and bound; nil: it has no say.
	Service *rc.Service
}

// hasCompanions reports whether minimum and bound are those of the service: other revisions may have pods.
func (s *Snapshot) hasCompanions() bool {
	return s.RC.Service != nil && len(s.Companions) > 0
}

// bounded reports whether the service says how many pods all its revisions may have.
func (s *Snapshot) bounded() bool { return s.hasCompanions() && s.ofService().bound > 0 }

// ofService returns the limits that the records say: of several revisions that have a say the stricter one holds. A
// bound of zero is none.
func (s *Snapshot) ofService() (l limits) {
	say := func(of *rc.Service) {
		l.least = max(l.least, of.Min)
		if l.bound == 0 || of.Max > 0 && of.Max < l.bound {
			l.bound = of.Max
		}
	}
	if s.RC.DeletedAt == nil {
		say(s.RC.Service)
	}
	for i := range s.Companions {
		if of := s.Companions[i].Service; of != nil {
			say(of)
		}
	}
	return l
}

// asked returns how many pods the revisions ask for together, and how many of these that do not stand by, while that
// bounds the service: no rollout is in charge. Then only operators change the counts, and minimum and bound follow
// these counts.
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

// limits are how few pods must stay available (P6), and how many copies there may be.
type limits struct {
	least int // of the service where there are companions, else of the controller
	bound int // of all revisions of a service that has a bound
}

// limitsOf returns the limits, of which the one follows the counts down and the other up.
func limitsOf(s *Snapshot) limits {
	if !s.hasCompanions() {
		return limits{least: s.leastOfItsOwn()}
	}
	l := s.ofService()
	if all, serving, bounds := asked(s); bounds {
		l.least, l.bound = min(l.least, serving), max(l.bound, all+s.RC.Surge())
	}
	return l
}

// Unhampered reports whether nothing keeps the plan from what it should bring about: what is missing then is what its changes ask for, and
// what nodes have still to report.
func (p *Plan) Unhampered() bool {
	return !slices.ContainsFunc(p.Status.Conditions, func(cond rc.Condition) bool {
		return cond.True && cond.Type != rc.Converged && cond.Type != rc.RolloutTrouble && cond.Type != rc.RolloutStuck
	})
}

// holdsUp returns why nothing may be placed beside a companion, "" when it may.
func holdsUp(s *Snapshot, other *Companion) string {
	switch st := other.Status; {
	case st == nil:
		return "has no status that can be read"
	case st.Is(rc.Holding):
		return "waits for its nodes"
	case st.Is(rc.Regressed):
		return "has pods that were found running"
	case st.Epoch != s.Epoch:
		return "has not said what it runs since the records are what they are"
	}
	return ""
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
