// Package breaker counts stops for the mass-stop breaker (P4, R14).
package breaker

import (
	"maps"
	"sync"
	"time"

	"github.com/rcfarm/rcfarm/pkg/farm/reconcile"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// The breaker trips if the stops of a farm within Window, with the planned ones, are at least Least, and more than half
// of its pods.
const (
	Window = time.Minute
	Least  = 10
)

// Stops has how many pods the farm's controllers are meant to run, and when this farm first saw each stop, also of
// previous owners (R14). It uses the monotonic clock: otherwise a correction of the wall clock could keep old stops in
// the window for hours. It is safe for concurrent use.
type Stops struct {
	mu     sync.Mutex
	last   map[pod.Identity]counted // the last stop of each pod
	pods   map[string]int           // by controller: how many pods must run
	unread map[string]bool          // units that were claimed together and not read since: their pods are not known
}

// NewStops returns a counter without stops and pods.
func NewStops() *Stops {
	return &Stops{last: map[pod.Identity]counted{}, pods: map[string]int{}, unread: map[string]bool{}}
}

// Stop is the stop of one pod.
type Stop struct {
	At  time.Time // when it was asked for, as in the placement
	Pod pod.Identity
}

type counted struct {
	asked time.Time // as in the placement
	// when this farm saw it first, by the monotonic clock; zero: an operator has reset the breaker since
	seen time.Time
}

// Moment is the present by two clocks.
type Moment struct {
	Wall   time.Time // to compare with records
	Steady time.Time // monotonic, to measure durations
}

// Now is the present.
func Now() Moment {
	now := time.Now()
	return Moment{Wall: now.Round(0), Steady: now}
}

func (c counted) counts(now Moment) bool {
	return !c.seen.IsZero() && now.Steady.Sub(c.seen) <= Window
}

// Add notes stops. Each pod counts once, from when this farm first saw its last stop.
func (s *Stops) Add(now Moment, stops []Stop) {
	if len(stops) == 0 {
		return // most passes
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forgetOld(now)
	s.note(now, stops)
}

// note also notes stops in the future, which a wrong clock has written. It needs the mutex.
func (s *Stops) note(now Moment, stops []Stop) {
	for _, st := range stops {
		known, is := s.last[st.Pod]
		switch {
		case is && known.asked.After(now.Wall): // the noted time is in the future: correct it
			s.last[st.Pod] = counted{asked: st.At, seen: known.seen}
		case is && !st.At.After(known.asked):
		case now.Wall.Sub(st.At) <= Window:
			s.last[st.Pod] = counted{asked: st.At, seen: now.Steady}
		}
	}
}

// forgetOld keeps stops whose placements would otherwise add them again. It needs the mutex.
func (s *Stops) forgetOld(now Moment) {
	maps.DeleteFunc(s.last, func(_ pod.Identity, c counted) bool {
		return !c.counts(now) && now.Wall.Sub(c.asked) > Window
	})
}

// Reset takes all earlier stops out of the count.
func (s *Stops) Reset() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, c := range s.last {
		s.last[id] = counted{asked: c.asked}
	}
}

// Admit decides whether a controller may stop the planned pods. It compares all stops of the window with the farm's
// pods: the pods that stop, the pods that this controller keeps (left), and the pods of other controllers. If this is
// no mass stop, it records the stops before another worker can count.
func (s *Stops) Admit(now Moment, rcID string, left int, planned []Stop) (stops, owned int, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forgetOld(now)
	for _, c := range s.last {
		if c.counts(now) {
			stops++
		}
	}
	for _, st := range planned {
		if !s.last[st.Pod].counts(now) {
			stops++
		}
	}
	owned = stops + left
	for id, pods := range s.pods {
		if id != rcID {
			owned += pods
		}
	}
	if massStop(stops, owned) {
		return stops, owned, false
	}
	s.note(now, planned)
	s.pods[rcID] = left
	return stops, owned, true
}

// SetPods notes how many pods of a controller must run.
func (s *Stops) SetPods(rcID string, pods int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pods[rcID] = pods
}

// Claimed notes a unit whose lock was taken and that was not read yet.
func (s *Stops) Claimed(unit string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unread[unit] = true
}

// Read notes that a unit was read, or is not this farm's any more.
func (s *Stops) Read(unit string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.unread, unit)
}

// Forget forgets the pods of a controller that is not this farm's any more.
func (s *Stops) Forget(rcID string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.pods, rcID)
}

// HasUnread reports whether a claimed unit was not read yet.
func (s *Stops) HasUnread() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.unread) > 0
}

func massStop(stops, owned int) bool { return stops >= Least && 2*stops > owned }

// Planned returns the stops of a plan that the breaker counts. A pod that was never available serves no requests, and
// gets a second node only once, so its stop is left out.
func Planned(plan *reconcile.Plan, now time.Time) []Stop {
	var stops []Stop
	for i := range plan.Changes {
		ch := &plan.Changes[i]
		if ch.Action == reconcile.Stop && (ch.Placement == nil || ch.Placement.Leaves() == nil) {
			stops = append(stops, Stop{At: now, Pod: ch.Identity})
		}
	}
	return stops
}

// Remembered returns the stops in placements that count; see Planned.
func Remembered(placements []store.Rec[pod.Placement]) []Stop {
	var stops []Stop
	for i := range placements {
		if p := &placements[i].Value; p.StoppingSince != nil && p.Leaves() == nil {
			stops = append(stops, Stop{At: *p.StoppingSince, Pod: p.Identity})
		}
	}
	return stops
}
