package farm

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/farm/reconcile"
	"github.com/rcfarm/rcfarm/pkg/obs"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// tripping is a store in which a breaker may be tripped, once.
type tripping struct {
	Session
	trips atomic.Int32
}

func (s *tripping) TripBreaker(context.Context, uint64, store.Breaker, store.Audit) error {
	if s.trips.Add(1) > 1 {
		return store.ErrConflict
	}
	return nil
}

// stopsAll returns controllers of so many pods each, with what a pass over each has read and would do: stop all of them.
func stopsAll(t *testing.T, st Session, controllers, pods int) (passes []*pass, plans []*reconcile.Plan) {
	t.Helper()
	log, err := obs.NewLogger(discard{}, "error", "text")
	if err != nil {
		t.Fatal(err)
	}
	f := NewFarm(Config{ID: "f", Store: st, Log: log})
	t.Cleanup(f.queue.ShutDown)
	for i := range controllers {
		id := fmt.Sprintf("rc%d", i)
		u := unitOver(f.kit, id, store.Fence{})
		f.roster.add(u, false)
		f.kit.stops.means(id, pods)
		ps, plan := passOver(u), &reconcile.Plan{}
		ps.snapshot = &reconcile.Snapshot{Now: time.Now()}
		ps.head.RC.Value = rc.RC{ID: id, Name: id, Generation: 1}
		for n := range pods {
			add(ps, plan, n)
		}
		passes, plans = append(passes, ps), append(plans, plan)
	}
	return passes, plans
}

// add adds a pod that runs, and its stop.
func add(ps *pass, plan *reconcile.Plan, index int) {
	p := pod.Placement{Identity: pod.Identity{RCID: ps.head.RC.Value.ID, Role: "main", Index: index}, RunState: pod.Running}
	ps.head.Placements = append(ps.head.Placements, store.Rec[pod.Placement]{Value: p})
	ps.snapshot.Pods = append(ps.snapshot.Pods, reconcile.Pod{Placement: p})
	plan.Changes = append(plan.Changes, reconcile.Change{Action: reconcile.Stop, Identity: p.Identity})
}

// However many workers plan stops at the same time, no more than half of the farm's pods are asked to stop before the breaker
// trips.
func TestTheBreakerCountsAtOneMoment(t *testing.T) {
	t.Parallel()
	const controllers, pods = 40, 5
	for range 20 {
		st := &tripping{}
		passes, plans := stopsAll(t, st, controllers, pods)
		var stopped atomic.Int32
		var all sync.WaitGroup
		start := make(chan struct{})
		for i, ps := range passes {
			all.Go(func() {
				<-start
				switch admitted, err := ps.admitStops(t.Context(), plans[i]); {
				case admitted && err == nil:
					stopped.Add(pods)
				case !errors.Is(err, errTripped):
					t.Errorf("admitted %v, %v", admitted, err)
				}
			})
		}
		close(start)
		all.Wait()
		if n := stopped.Load(); n != controllers*pods/2 {
			t.Fatalf("%d of %d pods may stop before the breaker trips, want half", n, controllers*pods)
		}
		if st.trips.Load() == 0 {
			t.Error("the breaker has not tripped")
		}
	}
}

// What was planned and refused is planned again: it counts once.
func TestARefusedStopCountsOnce(t *testing.T) {
	t.Parallel()
	st := &tripping{}
	passes, plans := stopsAll(t, st, 4, 8)
	for try := range 3 {
		for i := range 2 { // 16 of 32
			if admitted, err := passes[i].admitStops(t.Context(), plans[i]); !admitted || err != nil {
				t.Fatalf("try %d: admitted %v, %v", try, admitted, err)
			}
		}
	}
	if _, err := passes[2].admitStops(t.Context(), plans[2]); !errors.Is(err, errTripped) {
		t.Errorf("24 of 32: %v", err)
	}
}

// What the leader sweeps by itself obeys the breaker; what an operator sweeps does not.
func TestOnlyAnOperatorsSweepMayStopMany(t *testing.T) {
	t.Parallel()
	passes, plans := stopsAll(t, &tripping{}, 1, 20)
	ps := passes[0]
	ps.mem.recordless = true
	request := func(id string) store.Rec[store.Request] {
		return store.Rec[store.Request]{Value: store.Request{ID: id, RCID: ps.id, Kind: store.SweepOrphan}}
	}
	ps.head.Requests = []store.Rec[store.Request]{request("leader-n1-main.0"), request("leader-n2-main.1")}
	if admitted, err := ps.admitStops(t.Context(), plans[0]); admitted || !errors.Is(err, errTripped) {
		t.Errorf("20 of 20 for the leader: %t, %v", admitted, err)
	}
	ps.head.Requests = append(ps.head.Requests, request(store.NewID()))
	if admitted, err := ps.admitStops(t.Context(), plans[0]); !admitted || err != nil {
		t.Errorf("20 of 20 for an operator: %t, %v", admitted, err)
	}
}

// What a change with --allow-mass-stop may stop is neither counted as a stop nor as owned from the moment that its first plan is
// admitted, or that its lock came: all of 12 other pods are a mass stop, however many of the former still run.
func TestPodsThatMayBeStoppedAreNotOwned(t *testing.T) {
	t.Parallel()
	for name, tell := range map[string]func(t *testing.T, ps *pass, plan *reconcile.Plan){
		"a plan stops them all": func(t *testing.T, ps *pass, plan *reconcile.Plan) {
			t.Helper()
			if admitted, err := ps.admitStops(t.Context(), plan); !admitted || err != nil {
				t.Fatalf("the allowed change: admitted %v, %v", admitted, err)
			}
		},
		"a plan stops the first of them": func(t *testing.T, ps *pass, plan *reconcile.Plan) {
			t.Helper()
			plan.Changes = plan.Changes[:1]
			if admitted, err := ps.admitStops(t.Context(), plan); !admitted || err != nil {
				t.Fatalf("the allowed change: admitted %v, %v", admitted, err)
			}
		},
		"a plan cannot stop any yet": func(t *testing.T, ps *pass, _ *reconcile.Plan) {
			t.Helper()
			if admitted, err := ps.admitStops(t.Context(), &reconcile.Plan{}); !admitted || err != nil {
				t.Fatalf("the allowed change: admitted %v, %v", admitted, err)
			}
		},
		"a pass was over": func(_ *testing.T, ps *pass, _ *reconcile.Plan) {
			ps.remember(&reconcile.Plan{}, 0, nil)
		},
		"they came with the lock": func(_ *testing.T, ps *pass, _ *reconcile.Plan) { ps.learn() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			passes, plans := stopsAll(t, &tripping{}, 2, 12)
			for i := range 40 {
				add(passes[0], plans[0], i+12)
			}
			passes[0].head.RC.Value.AllowMassStop = 1
			passes[0].kit.stops.means(passes[0].id, len(passes[0].head.Placements))
			tell(t, passes[0], plans[0])
			if _, err := passes[1].admitStops(t.Context(), plans[1]); !errors.Is(err, errTripped) {
				t.Errorf("12 of 12 that stay: %v", err)
			}
		})
	}
}

// The pods of a change that is not allowed are owned until they are asked to stop, and so are those of an allowed one that stay.
func TestPodsThatStayAreOwned(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(r *rc.RC){
		"not allowed":    func(*rc.RC) {},
		"allowed before": func(r *rc.RC) { r.AllowMassStop, r.Generation = 1, 2 },
		"they stay": func(r *rc.RC) {
			r.AllowMassStop, r.ReplicaGroups = 1, []rc.ReplicaGroup{{Role: "main", Count: new(12)}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			passes, plans := stopsAll(t, &tripping{}, 2, 12)
			change(&passes[0].head.RC.Value)
			if admitted, err := passes[0].admitStops(t.Context(), &reconcile.Plan{}); !admitted || err != nil {
				t.Fatalf("admitted %v, %v", admitted, err)
			}
			if admitted, err := passes[1].admitStops(t.Context(), plans[1]); !admitted || err != nil {
				t.Errorf("12 of 24: admitted %v, %v", admitted, err)
			}
		})
	}
}

// A farm that takes over locks of many controllers before it reads them does not know which pods of theirs are stopping. Until it has
// read them it judges no stop.
func TestNoStopIsJudgedBeforeAllIsRead(t *testing.T) {
	t.Parallel()
	st := &tripping{}
	passes, plans := stopsAll(t, st, 2, 20)
	passes[0].kit.cache.as.stable = time.Now()
	stops := passes[1].kit.stops
	stops.claimed(passes[1].id)
	plans[0].Changes = plans[0].Changes[:5]
	if admitted, err := passes[0].admitStops(t.Context(), plans[0]); admitted || err != nil {
		t.Errorf("a stop was admitted while a controller had not been read: %v, %v", admitted, err)
	}
	since := time.Now()
	for i := range passes[1].head.Placements { // its former owner has asked 16 of 20 to stop
		if i < 16 {
			p := &passes[1].head.Placements[i].Value
			p.RunState, p.StoppingSince = pod.Stopped, &since
		}
	}
	passes[1].learn()
	stops.read(passes[1].id)
	if admitted, err := passes[0].admitStops(t.Context(), plans[0]); admitted || !errors.Is(err, errTripped) {
		t.Errorf("16 + 5 of 40 pods: %v, %v", admitted, err)
	}
}

// stopsOfMany are the first stops of a controller.
func stopsOfMany(rcID string, n int, at time.Time) (out []stop) {
	for i := range n {
		out = append(out, stop{at: at, pod: pod.Identity{RCID: rcID, Role: "main", Index: i}})
	}
	return out
}

// A stop counts from when it was asked for last, however often it had been tried before, and each pod once.
func TestTheBreakerCountsFromTheLastTry(t *testing.T) {
	t.Parallel()
	s, now := newStopCounter(), time.Now()
	at := func(later time.Duration) moment { return moment{wall: now.Add(later), steady: now.Add(later)} }
	s.means("b", 100)
	for _, try := range []time.Duration{0, 20 * time.Second} {
		if n, _, ok := s.admit(at(try), "a", 100, stopsOfMany("a", 12, now.Add(try))); n != 12 || !ok {
			t.Fatalf("after %s: %d stops, admitted %t", try, n, ok)
		}
	}
	s.add(at(25*time.Second), stopsOfMany("a", 12, now)) // an older word of the same
	s.forget("a")
	s.means("b", 3)
	later := at(massStopWindow + 10*time.Second) // after the first try
	if n, owned, ok := s.admit(later, "c", 9, stopsOfMany("c", 3, later.wall)); n != 15 || owned != 27 || ok {
		t.Errorf("%d of %d stops, admitted %t", n, owned, ok)
	}
	later = at(massStopWindow + 21*time.Second)
	if n, owned, ok := s.admit(later, "c", 9, stopsOfMany("c", 3, later.wall)); n != 3 || owned != 15 || !ok {
		t.Errorf("%d of %d stops, admitted %t", n, owned, ok)
	}
}

// A farm's clock runs an hour ahead while it stops pods, and is then corrected. What the farm asked for counts for a
// minute, and not until the clock gets there again, whether the placements say the time of then or have got another
// one.
func TestTheBreakerCountsByTheSteadyClock(t *testing.T) {
	t.Parallel()
	for name, rewritten := range map[string]bool{"the placements keep the time": false, "the placements get a time that can be": true} {
		s, now := newStopCounter(), time.Now()
		s.means("b", 28)
		wrong := moment{wall: now.Add(time.Hour), steady: now}
		if n, _, ok := s.admit(wrong, "a", 0, stopsOfMany("a", 12, wrong.wall)); n != 12 || !ok {
			t.Fatalf("%s: %d stops, admitted %t", name, n, ok)
		}
		right := func(after time.Duration) moment { return moment{wall: now.Add(after), steady: now.Add(after)} }
		says := wrong.wall
		if rewritten {
			says = right(30 * time.Second).wall
		}
		s.add(right(30*time.Second), stopsOfMany("a", 12, says))
		if n, _, _ := s.admit(right(40*time.Second), "c", 30, stopsOfMany("c", 1, right(40*time.Second).wall)); n != 13 {
			t.Errorf("%s: %d stops count within the minute, want 13", name, n)
		}
		s.add(right(10*time.Minute), stopsOfMany("a", 12, says)) // their nodes have not confirmed them yet
		later := right(10 * time.Minute)
		if n, _, ok := s.admit(later, "d", 19, stopsOfMany("d", 9, later.wall)); n != 9 || !ok {
			t.Errorf("%s: ten minutes later %d stops count, want 9; admitted %t", name, n, ok)
		}
	}
}

// A farm that takes over counts what an earlier owner asked for within the last minute, whatever is said of the future,
// and nothing older.
func TestTheBreakerCountsWhatAnEarlierOwnerAskedFor(t *testing.T) {
	t.Parallel()
	now := time.Now()
	at := func(later time.Duration) moment { return moment{wall: now.Add(later), steady: now.Add(later)} }
	for name, c := range map[string]struct {
		said time.Duration
		want int
	}{
		"a moment ago":               {-time.Second, 12},
		"just a minute ago":          {-massStopWindow, 12},
		"longer ago":                 {-massStopWindow - 1, 0},
		"in the future":              {time.Hour, 12},
		"in the very distant future": {100 * 365 * 24 * time.Hour, 12},
	} {
		s := newStopCounter()
		s.add(at(0), stopsOfMany("a", 12, now.Add(c.said)))
		if n, _, _ := s.admit(at(massStopWindow), "b", 100, nil); n != c.want {
			t.Errorf("%s: %d count after a minute, want %d", name, n, c.want)
		}
		s.add(at(massStopWindow+1), stopsOfMany("a", 12, now.Add(c.said)))
		if n, _, _ := s.admit(at(massStopWindow+1), "b", 100, nil); n != 0 {
			t.Errorf("%s: %d count after more than a minute", name, n)
		}
	}
}

// What an operator has looked at, and answered with rcctl farm resume, counts no more. What is asked for afterwards
// does.
func TestResumingClearsWhatTheBreakerCounted(t *testing.T) {
	t.Parallel()
	s, now := newStopCounter(), momentNow()
	s.means("b", 28)
	stops := stopsOfMany("a", 12, now.wall)
	s.add(now, stops)
	s.reset()
	s.add(now, stops) // their nodes have not confirmed them yet
	if n, _, ok := s.admit(now, "c", 19, stopsOfMany("c", 9, now.wall)); n != 9 || !ok {
		t.Errorf("%d stops count after the reset, want 9; admitted %t", n, ok)
	}
	again := moment{wall: now.wall.Add(time.Second), steady: now.steady.Add(time.Second)}
	if n, _, _ := s.admit(again, "a", 0, stopsOfMany("a", 12, again.wall)); n != 21 {
		t.Errorf("%d stops count, want the 9 and 12 new ones", n)
	}
}

// A controller whose records cannot be read holds back no stops of others, also while farms come and go.
func TestAnUnreadableControllerHoldsBackNoStops(t *testing.T) {
	t.Parallel()
	passes, plans := stopsAll(t, &tripping{}, 2, 20)
	passes[0].kit.cache.as.stable = time.Now()
	stops := passes[1].kit.stops
	stops.claimed(passes[1].id)
	plans[0].Changes = plans[0].Changes[:5]
	if admitted, err := passes[0].admitStops(t.Context(), plans[0]); admitted || err != nil {
		t.Errorf("a stop was admitted while a controller had not been read: %v, %v", admitted, err)
	}
	stops.read(passes[1].id)
	if admitted, err := passes[0].admitStops(t.Context(), plans[0]); !admitted || err != nil {
		t.Errorf("the stops wait for a controller that cannot be read: %v, %v", admitted, err)
	}
}

// leaveAll has the stops of a plan be those of pods that were never available and get a second node, or of pods that
// were back where they began.
func leaveAll(ps *pass, plan *reconcile.Plan, cameBack bool) {
	for i := range plan.Changes {
		now := ps.snapshot.Now
		next := ps.head.Placements[i].Value
		next.Node, next.Digest, next.RunState, next.StoppingSince = "n0", "m1", pod.Stopped, &now
		next.Avoid = []pod.Avoided{{Node: "n0", Digest: "m1", Since: now}}
		if cameBack {
			next.Avoid[0].Since = now.Add(-time.Hour)
		}
		plan.Changes[i].Placement = &next
	}
}

// However many pods leave the nodes where they were never available, that is no mass stop: neither for who plans it
// nor for who takes over. But they are not owned either, and such a pod that is stopped later where it came back to
// counts like any other.
func TestSecondNodesTripNothing(t *testing.T) {
	t.Parallel()
	for name, cameBack := range map[string]bool{"they leave": false, "they stop for another reason": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			passes, plans := stopsAll(t, &tripping{}, 13, 1)
			for i := range 12 {
				leaveAll(passes[i], plans[i], cameBack)
				admitted, err := passes[i].admitStops(t.Context(), plans[i])
				if trips := cameBack && i >= 9; admitted == trips || errors.Is(err, errTripped) != trips {
					t.Fatalf("%d of 13: admitted %t, %v", i+1, admitted, err)
				}
				passes[i].head.Placements[0].Value = *plans[i].Changes[0].Placement
				if i == 9 && cameBack {
					return
				}
			}
			successors, stops := stopsAll(t, &tripping{}, 13, 1)
			for i := range 12 {
				successors[i].head.Placements = passes[i].head.Placements
				successors[i].learn()
			}
			for i := range 11 {
				add(successors[12], stops[12], i+1)
			}
			if _, err := successors[12].admitStops(t.Context(), stops[12]); !errors.Is(err, errTripped) {
				t.Errorf("12 of the 12 that stay: %v", err)
			}
			stops[12].Changes = stops[12].Changes[:6]
			if admitted, err := successors[12].admitStops(t.Context(), stops[12]); !admitted || err != nil {
				t.Errorf("6 of the 12 that stay: admitted %t, %v", admitted, err)
			}
		})
	}
}
