package farm

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/reconcile"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// What trips the mass-stop breaker: more than half of the pods that a farm owns, and at least this many, within this time.
const (
	massStopWindow = time.Minute
	massStopLeast  = 10
)

// stopCounter remembers when this farm asked pods to stop. What an earlier owner asked for is learnt from the placements
// when they are first read (R14).
type stopCounter struct {
	mu   sync.Mutex
	last []stop
}

type stop struct {
	at  time.Time
	pod pod.Identity
}

// add notes stops; the same pod counts once in the window.
func (s *stopCounter) add(now time.Time, stops []stop) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last = slices.DeleteFunc(s.last, func(old stop) bool { return now.Sub(old.at) > massStopWindow })
	known := make(map[pod.Identity]bool, len(s.last))
	for _, old := range s.last {
		known[old.pod] = true
	}
	for _, st := range stops {
		if now.Sub(st.at) <= massStopWindow && !known[st.pod] {
			s.last = append(s.last, st)
		}
	}
}

func (s *stopCounter) count(now time.Time) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for _, st := range s.last {
		if now.Sub(st.at) <= massStopWindow {
			n++
		}
	}
	return n
}

// massStop is the breaker's rule.
func massStop(stops, owned int) bool { return stops >= massStopLeast && 2*stops > owned }

// breaker counts the stops that a plan is about to ask for, and trips the mass-stop breaker instead of sending them when
// they are too many. A change that was made with --allow-mass-stop is let pass.
func (c *ReplicationController) breaker(ctx context.Context, v *view, plan *reconcile.Plan) error {
	f, now := c.farm, v.snapshot.Now
	var stopping, planned []stop
	for i := range v.snapshot.Pods {
		p := &v.snapshot.Pods[i]
		if p.StoppingSince != nil {
			stopping = append(stopping, stop{at: *p.StoppingSince, pod: p.Identity})
		}
	}
	for i := range plan.Changes {
		if plan.Changes[i].Action == reconcile.Stop {
			planned = append(planned, stop{at: now, pod: plan.Changes[i].Identity})
		}
	}
	record := v.head.RC.Value
	if allowed := record.AllowMassStop != 0 && record.AllowMassStop == record.Generation; allowed || c.phantom {
		return nil
	}
	f.stops.add(now, stopping)
	if len(planned) == 0 {
		return nil
	}
	recent := f.stops.count(now)
	owned := f.ownedPods(c, len(v.snapshot.Pods)) + recent - len(stopping)
	if !massStop(recent+len(planned), owned) {
		f.stops.add(now, planned)
		return nil
	}
	reason := fmt.Sprintf("farm %s was about to have stopped %d of its %d pods within a minute, the last for controller %s; "+
		"if that is right, change it with --allow-mass-stop and run rcctl farm resume", f.cfg.ID, recent+len(planned), owned, record.Name)
	c.log.WithField("reason", reason).Error("tripping the mass-stop breaker")
	err := f.cfg.Store.TripBreaker(ctx, v.breaker.Index, store.Breaker{Tripped: true, Reason: reason, By: f.cfg.ID, Since: now})
	if err != nil && !errors.Is(err, store.ErrConflict) {
		return err
	}
	return errTripped
}

// errTripped ends a pass whose plan was computed before the breaker tripped; the breaker's watch asks for another.
var errTripped = errors.New("the mass-stop breaker has tripped")

// ownedPods counts the pods of all owned controllers, with the given number for one of them.
func (f *Farm) ownedPods(c *ReplicationController, pods int) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, other := range f.owned {
		if other != c {
			pods += other.podCount()
		}
	}
	return pods
}

func (c *ReplicationController) podCount() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.pods
}
