package farm

import (
	"sync"
	"time"

	"github.com/rcfarm/rcfarm/pkg/farm/looks"
)

// standing is what a farm knows of a controller that it owns, and asks of it, while a pass over it may be under way.
type standing struct {
	looks looks.Looks

	mu sync.Mutex
	is known
}

// known is what standing knows at one moment.
type known struct {
	deep       bool            // the next pass compares intents too
	lastDeep   time.Time       // when that was done last; zero: not by this farm
	nodes      map[string]bool // where it has pods; nil while it is looked at
	wantsNodes bool            // more nodes would help it
	leaving    bool            // give it to the farm that prefers it
}

// concernedBy reports whether nodes that have changed may matter to the controller.
func (k known) concernedBy(changed map[string]bool) bool {
	if k.wantsNodes || k.nodes == nil {
		return true
	}
	for name := range k.nodes {
		if changed[name] {
			return true
		}
	}
	return false
}

func (s *standing) now() known {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.is
}

// begin is for the beginning of a pass: until that has ended every changed node concerns the controller.
func (s *standing) begin() {
	s.mu.Lock()
	s.is.nodes = nil
	s.mu.Unlock()
	s.looks.Begin()
}

// ended takes in what a pass has found. A deep check is done when it found nothing to do, and nothing kept it from doing it.
func (s *standing) ended(nodes map[string]bool, wantsNodes, checked bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.is.nodes, s.is.wantsNodes = nodes, wantsNodes
	if checked {
		s.is.lastDeep, s.is.deep = time.Now(), false
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

// rebalance asks for the controller to be given to the farm that prefers it, if that is not this one.
func (s *standing) rebalance() {
	s.mu.Lock()
	s.is.leaving = true
	s.mu.Unlock()
	s.looks.Ask()
}

// takeLeaving reports, once, whether the controller is to be given away.
func (s *standing) takeLeaving() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	leaving := s.is.leaving
	s.is.leaving = false
	return leaving
}

// checkDeeply asks for a deep check in the next pass.
func (s *standing) checkDeeply() {
	s.mu.Lock()
	s.is.deep = true
	s.mu.Unlock()
	s.looks.Ask()
}
