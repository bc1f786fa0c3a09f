package farm

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
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
	if len(stops) == 0 {
		return // most passes
	}
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

// admit decides about stops that a controller plans, at one moment for all workers: it counts them with those of the window,
// each pod once, and with running, what the farm's controllers mean to run besides. Where that is no mass stop the stops are
// noted, and admitted is called before anybody else counts.
func (s *stopCounter) admit(now time.Time, planned []stop, running func() int, admitted func()) (stops, owned int, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last = slices.DeleteFunc(s.last, func(old stop) bool { return now.Sub(old.at) > massStopWindow })
	known := make(map[pod.Identity]bool, len(s.last))
	for _, old := range s.last {
		known[old.pod] = true
	}
	var fresh []stop
	for _, st := range planned {
		if !known[st.pod] {
			fresh = append(fresh, st)
		}
	}
	stops = len(known) + len(fresh)
	owned = running() + stops
	if massStop(stops, owned) {
		return stops, owned, false
	}
	s.last = append(s.last, fresh...)
	admitted()
	return stops, owned, true
}

// massStop is the breaker's rule.
func massStop(stops, owned int) bool { return stops >= massStopLeast && 2*stops > owned }

// claimsLook is when a plan is looked at again that cannot be judged while there is something left to claim, and
// claimsWait how long after the last change of the members nothing is waited for any more.
const (
	claimsLook = 100 * time.Millisecond
	claimsWait = 30 * time.Second
)

// breaker counts the stops that a plan is about to ask for, and trips the mass-stop breaker instead of sending them when
// they are too many. A change that was made with --allow-mass-stop is let pass. A farm that is still taking over does not know
// yet what it owns: then the plan is not judged, and must not be carried out.
func (c *ReplicationController) breaker(ctx context.Context, v *view, plan *reconcile.Plan) (judged bool, err error) {
	f, now, record := c.farm, v.snapshot.Now, &v.head.RC.Value
	planned := stopsOf(plan, now)
	left := c.staying(&v.head, planned)
	if c.mayStopMany(record) {
		c.meansToRun(left) // before any of its stops is on its way
		return true, nil
	}
	f.stops.add(now, stopping(v.head.Placements))
	if len(planned) == 0 {
		return true, nil
	}
	takingOver := time.Since(f.world.membersSince()) < claimsWait
	if takingOver && f.hasUnread() {
		return false, nil // pods of theirs may be stopping
	}
	stops, owned, ok := f.stops.admit(now, planned, func() int { return f.ownedPods(c, left) }, func() { c.meansToRun(left) })
	if ok {
		return true, nil
	}
	if takingOver {
		if more, err := f.claimsMore(ctx); more || err != nil {
			return false, err
		}
	}
	reason := fmt.Sprintf("farm %s was about to have stopped %d of its %d pods within a minute, the last for controller %s; "+
		"if that is right, change it with --allow-mass-stop and run rcctl farm resume", f.cfg.ID, stops, owned, record.Name)
	c.log.WithField("reason", reason).Error("tripping the mass-stop breaker")
	audit := store.NewAudit(f.cfg.ID, "trip", c.ID, []string{"breaker: not tripped -> tripped (" + reason + ")"})
	err = f.cfg.Store.TripBreaker(ctx, v.breaker.Index, store.Breaker{Tripped: true, Reason: reason, By: f.cfg.ID, Since: now}, audit)
	if err != nil && !errors.Is(err, store.ErrConflict) {
		return false, err
	}
	return false, errTripped
}

// stopsOf returns the stops that a plan asks for.
func stopsOf(plan *reconcile.Plan, now time.Time) []stop {
	var stops []stop
	for i := range plan.Changes {
		if plan.Changes[i].Action == reconcile.Stop {
			stops = append(stops, stop{at: now, pod: plan.Changes[i].Identity})
		}
	}
	return stops
}

// errTripped ends a pass whose plan was computed before the breaker tripped; the breaker's watch asks for another.
var errTripped = errors.New("the mass-stop breaker has tripped")

// mayStopMany reports whether the breaker lets all stops of a controller pass: somebody asked for them with --allow-mass-stop, or by
// sweeping what has no record.
func (c *ReplicationController) mayStopMany(record *rc.RC) bool {
	return reconcile.AllowsMassStop(record) || c.phantom
}

// staying returns how many of the controller's pods stops are measured against; see reconcile.Staying.
func (c *ReplicationController) staying(head *store.Head, planned []stop) int {
	going := make(map[pod.Identity]bool, len(planned))
	for _, st := range planned {
		going[st.pod] = true
	}
	placements := func(yield func(*pod.Placement) bool) {
		for i := range head.Placements {
			if !yield(&head.Placements[i].Value) {
				return
			}
		}
	}
	return reconcile.Staying(&head.RC.Value, c.mayStopMany(&head.RC.Value), placements, going)
}

// stopping returns the stops that some placements remember.
func stopping(placements []store.Rec[pod.Placement]) []stop {
	var stops []stop
	for i := range placements {
		if p := &placements[i].Value; p.StoppingSince != nil {
			stops = append(stops, stop{at: *p.StoppingSince, pod: p.Identity})
		}
	}
	return stops
}

// learn takes from what came with the lock what the breaker must know of a controller before the first pass over it.
func (c *ReplicationController) learn(head *store.Head) {
	if !c.mayStopMany(&head.RC.Value) {
		c.farm.stops.add(time.Now(), stopping(head.Placements))
	}
	c.meansToRun(c.staying(head, nil))
	c.mu.Lock()
	c.unread = false
	c.mu.Unlock()
}

// learnOnce is learn for the first pass over a controller whose lock was taken without reading it.
func (c *ReplicationController) learnOnce(head *store.Head) {
	if c.isUnread() {
		c.learn(head)
	}
}

func (c *ReplicationController) isUnread() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.unread
}

// hasUnread reports whether this farm has a controller that it has not read since it took the lock.
func (f *Farm) hasUnread() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, c := range f.owned {
		if c.isUnread() {
			return true
		}
	}
	return false
}

// claimsMore reports whether this farm is still to claim a controller that it should own.
func (f *Farm) claimsMore(ctx context.Context) (bool, error) {
	for _, id := range f.world.bellIDs() {
		f.mu.Lock()
		known := f.owned[id] != nil || f.foreign[id]
		f.mu.Unlock()
		if known {
			continue
		}
		if owner, _, err := f.preferred(ctx, id); err != nil || owner == f.cfg.ID {
			return true, err
		}
	}
	return false, nil
}

// ownedPods counts the pods of all owned controllers that are meant to run, with the given number for one of them.
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

func (c *ReplicationController) meansToRun(pods int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pods = pods
}

func (c *ReplicationController) podCount() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.pods
}
