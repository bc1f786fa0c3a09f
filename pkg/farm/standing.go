package farm

import (
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/rcfarm/rcfarm/pkg/farm/looks"
)

// standing is what a farm knows of a controller that it owns, and asks of it, while a pass over it may be under way.
type standing struct {
	looks looks.Looks

	mu       sync.Mutex
	deep     bool // the next pass compares intents too
	lastDeep time.Time
	nodes    map[string]bool // where it has pods; nil while it is looked at
	hungry   bool            // more nodes would help it
	leaving  bool            // give it to the farm that prefers it
}

// begin is for the beginning of a pass: until that has ended every changed node concerns the controller.
func (s *standing) begin() {
	s.mu.Lock()
	s.nodes = nil
	s.mu.Unlock()
	s.looks.Begin()
}

// ended takes in what a pass has found. A deep check is done when it found nothing to do, and nothing kept it from doing it.
func (s *standing) ended(nodes map[string]bool, hungry, checked bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.nodes, s.hungry = nodes, hungry
	if checked {
		s.lastDeep, s.deep = time.Now(), false
	}
}

// idle reports whether a look now would find nothing, and then when one is due, zero for never: rung are the bells of the controller and of
// its companions, as heard last. A bell that is gone must be made, or the record went with it.
func (s *standing) idle(own string, rung map[string]uint64) (idle bool, left time.Duration) {
	if rung[own] == 0 {
		return false, 0
	}
	return s.looks.Idle(rung)
}

func (s *standing) isHungry() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.hungry
}

// concernedBy reports whether nodes that have changed may matter to the controller.
func (s *standing) concernedBy(changed map[string]bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.hungry || s.nodes == nil {
		return true
	}
	for name := range s.nodes {
		if changed[name] {
			return true
		}
	}
	return false
}

// placedOn returns the nodes where the controller had pods at the last look; none while it is looked at.
func (s *standing) placedOn() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Keys(s.nodes))
}

// rebalance asks for the controller to be given to the farm that prefers it, if that is not this one.
func (s *standing) rebalance() {
	s.mu.Lock()
	s.leaving = true
	s.mu.Unlock()
	s.looks.Ask()
}

// takeLeaving reports, once, whether the controller is to be given away.
func (s *standing) takeLeaving() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	leaving := s.leaving
	s.leaving = false
	return leaving
}

// checkDeeply asks for a deep check in the next pass.
func (s *standing) checkDeeply() {
	s.mu.Lock()
	s.deep = true
	s.mu.Unlock()
	s.looks.Ask()
}

func (s *standing) isDeep() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.deep
}

// checkedAt returns when the last deep check was done; zero: not by this farm.
func (s *standing) checkedAt() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lastDeep
}
