package farm

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/rcfarm/rcfarm/pkg/farm/reconcile"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// What trips the mass-stop breaker: more than half of the pods that a farm owns, and at least this many, within this time.
const (
	massStopWindow = time.Minute
	massStopLeast  = 10
)

// stopCounter counts for the breaker what the controllers of this farm mean to run, and when this farm first saw that
// pods were asked to stop. What an earlier owner asked for is learnt from the placements when they are first read
// (R14). Time is counted by the clock that is never set, because a clock that was wrong once must not let stops count
// for hours.
type stopCounter struct {
	mu     sync.Mutex
	last   map[pod.Identity]counted // the last stop of each pod
	pods   map[string]int           // that are meant to run, by controller
	unread map[string]bool          // units whose locks were taken together with others, and that were not read since: nothing is known of their pods
}

func newStopCounter() *stopCounter {
	return &stopCounter{last: map[pod.Identity]counted{}, pods: map[string]int{}, unread: map[string]bool{}}
}

type stop struct {
	at  time.Time // when it was asked for, as the placement says
	pod pod.Identity
}

// counted is one stop that the farm has seen.
type counted struct {
	asked time.Time // as the placement says
	seen  time.Time // first by this farm, on the steady clock; zero: an operator has reset the breaker since
}

// moment is the present by two clocks.
type moment struct {
	wall   time.Time // to compare with records
	steady time.Time // never set, to count by
}

func momentNow() moment {
	now := time.Now()
	return moment{wall: now.Round(0), steady: now}
}

// counts reports whether the stop counts at a moment.
func (c counted) counts(now moment) bool {
	return !c.seen.IsZero() && now.steady.Sub(c.seen) <= massStopWindow
}

// add notes stops. The same pod counts once, from when this farm saw its last stop first.
func (s *stopCounter) add(now moment, stops []stop) {
	if len(stops) == 0 {
		return // most passes
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forgetOld(now)
	s.note(now, stops)
}

// note notes stops that are new and were asked for within the window, or, by a clock that was wrong, in the future. The
// caller holds the mutex.
func (s *stopCounter) note(now moment, stops []stop) {
	for _, st := range stops {
		known, is := s.last[st.pod]
		switch {
		case is && known.asked.After(now.wall): // the record gets a time that can be
			s.last[st.pod] = counted{asked: st.at, seen: known.seen}
		case is && !st.at.After(known.asked):
		case now.wall.Sub(st.at) <= massStopWindow:
			s.last[st.pod] = counted{asked: st.at, seen: now.steady}
		}
	}
}

// forgetOld forgets the stops that do not count any more, unless their placements would have them counted again. The
// caller holds the mutex.
func (s *stopCounter) forgetOld(now moment) {
	maps.DeleteFunc(s.last, func(_ pod.Identity, c counted) bool { return !c.counts(now) && now.wall.Sub(c.asked) > massStopWindow })
}

// reset has the stops of before count no more, because an operator has looked at them and has reset the breaker.
func (s *stopCounter) reset() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, c := range s.last {
		s.last[id] = counted{asked: c.asked}
	}
}

// admit decides about stops that a controller plans, at one moment for all workers: it counts them with those of the window,
// each pod once, and with what the farm's controllers mean to run besides, of which left are this one's. Where that is no mass stop all
// of that is noted before anybody else counts.
func (s *stopCounter) admit(now moment, rcID string, left int, planned []stop) (stops, owned int, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forgetOld(now)
	for _, c := range s.last {
		if c.counts(now) {
			stops++
		}
	}
	for _, st := range planned {
		if !s.last[st.pod].counts(now) {
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

// means notes how many pods of a controller are meant to run, where it was read.
func (s *stopCounter) means(rcID string, pods int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pods[rcID] = pods
}

// claimed notes a unit that was not read yet, and read that it was, or is not this farm's any more.
func (s *stopCounter) claimed(unit string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unread[unit] = true
}

func (s *stopCounter) read(unit string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.unread, unit)
}

// forget is for a controller that is not this farm's any more.
func (s *stopCounter) forget(rcID string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.pods, rcID)
}

// hasUnread reports whether this farm has a unit that it has not read since it took the lock.
func (s *stopCounter) hasUnread() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.unread) > 0
}

// massStop is the breaker's rule.
func massStop(stops, owned int) bool { return stops >= massStopLeast && 2*stops > owned }

// claimsLook is when a plan is looked at again that cannot be admitted while there is something left to claim, and
// claimsWait how long after the last change of the members nothing is waited for any more.
const (
	claimsLook = 100 * time.Millisecond
	claimsWait = 30 * time.Second
)

// admitStops counts the stops that a plan is about to ask for, and trips the mass-stop breaker instead of sending them when
// they are too many. A change that was made with --allow-mass-stop is let pass. A farm that is still taking over does not know
// yet what it owns: then the plan is not admitted, and must not be carried out.
func (ps *pass) admitStops(ctx context.Context, plan *reconcile.Plan) (admitted bool, err error) {
	kit, record := ps.kit, &ps.head.RC.Value
	now := moment{wall: ps.snapshot.Now, steady: ps.snapshot.SteadyNow()}
	planned := stopsOf(plan, now.wall)
	left := ps.staying(plan)
	if ps.mayStopMany() {
		kit.stops.means(ps.id, left) // before any of its stops is on its way
		return true, nil
	}
	kit.stops.add(now, stopping(ps.head.Placements))
	if len(planned) == 0 {
		return true, nil
	}
	takingOver := time.Since(kit.cache.now().stable) < claimsWait
	if takingOver && kit.stops.hasUnread() {
		return false, nil // pods of theirs may be stopping
	}
	stops, owned, ok := kit.stops.admit(now, ps.id, left, planned)
	if ok {
		return true, nil
	}
	if takingOver {
		if more, err := kit.fleet.claimsMore(ctx); more || err != nil {
			return false, err
		}
	}
	ask := "change it with --allow-mass-stop"
	if ps.mem.recordless {
		ask = "ask for it with rcctl node sweep, as it has no record,"
	}
	reason := fmt.Sprintf("farm %s was about to have stopped %d of its %d pods within a minute, the last for controller %s; "+
		"if that is right, %s and run rcctl farm resume", kit.farm, stops, owned, record.Name, ask)
	ps.log.WithField("reason", reason).Error("tripping the mass-stop breaker")
	audit := store.NewAudit(kit.farm, "trip", ps.id, []string{"breaker: not tripped -> tripped (" + reason + ")"})
	err = kit.trip.TripBreaker(ctx, ps.breaker.Index, store.Breaker{Tripped: true, Reason: reason, By: kit.farm, Since: now.wall}, audit)
	if err != nil && !errors.Is(err, store.ErrConflict) {
		return false, err
	}
	return false, errTripped
}

// stopsOf returns the stops that a plan asks for and that count: not those of pods that were never available and get a
// second node. They serve nobody, and each does that once.
func stopsOf(plan *reconcile.Plan, now time.Time) []stop {
	var stops []stop
	for i := range plan.Changes {
		if ch := &plan.Changes[i]; ch.Action == reconcile.Stop && (ch.Placement == nil || ch.Placement.Leaves() == nil) {
			stops = append(stops, stop{at: now, pod: ch.Identity})
		}
	}
	return stops
}

// errTripped ends a pass whose plan was computed before the breaker tripped; the breaker's watch asks for another.
var errTripped = errors.New("the mass-stop breaker has tripped")

// mayStopMany reports whether the breaker lets all stops of the controller pass: an operator asked for them with --allow-mass-stop, or by
// sweeping what has no record. What the leader sweeps by itself nobody asked for.
func (ps *reading) mayStopMany() bool {
	return reconcile.AllowsMassStop(&ps.head.RC.Value) || ps.mem.recordless && slices.ContainsFunc(ps.head.Requests, func(r store.Rec[store.Request]) bool {
		return r.Value.Kind == store.SweepOrphan && !r.Value.ByLeader()
	})
}

// staying returns how many of the controller's pods stops are measured against, once a plan is carried out; see
// reconcile.Staying.
func (ps *reading) staying(plan *reconcile.Plan) int {
	going := map[pod.Identity]bool{}
	for i := range plan.Changes {
		if plan.Changes[i].Action == reconcile.Stop {
			going[plan.Changes[i].Identity] = true
		}
	}
	placements := func(yield func(*pod.Placement) bool) {
		for i := range ps.head.Placements {
			if !yield(&ps.head.Placements[i].Value) {
				return
			}
		}
	}
	return reconcile.Staying(&ps.head.RC.Value, ps.mayStopMany(), placements, going)
}

// stopping returns the stops that some placements remember and that count; see stopsOf.
func stopping(placements []store.Rec[pod.Placement]) []stop {
	var stops []stop
	for i := range placements {
		if p := &placements[i].Value; p.StoppingSince != nil && p.Leaves() == nil {
			stops = append(stops, stop{at: *p.StoppingSince, pod: p.Identity})
		}
	}
	return stops
}

// learn takes from the head what the breaker must know of a controller before the first plan for it.
func (ps *reading) learn() {
	if !ps.mayStopMany() {
		ps.kit.stops.add(momentNow(), stopping(ps.head.Placements))
	}
	ps.kit.stops.means(ps.id, ps.staying(&reconcile.Plan{}))
}

// claimsMore reports whether this farm is still to claim a unit that it should own.
func (f *Farm) claimsMore(ctx context.Context) (bool, error) {
	for _, id := range f.cache.lastRung() {
		if u, ownedElsewhere := f.roster.get(id); u != nil || ownedElsewhere {
			continue
		}
		if owner, _, err := f.preferred(ctx, id); err != nil || owner == f.cfg.ID {
			return true, err
		}
	}
	return false, nil
}
