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

// tripping is a store in which a breaker can be tripped once.
type tripping struct {
	Session
	trips atomic.Int32
}

func (t *tripping) TripBreaker(context.Context, uint64, store.Breaker, store.Audit) error {
	if t.trips.Add(1) > 1 {
		return store.ErrConflict
	}
	return nil
}

// stopsAll returns the passes and plans of some controllers. Each controller has the given number of pods, and its plan
// stops all of them.
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
		f.roster.add(u)
		f.kit.stops.SetPods(id, pods)
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

// add adds a running pod to a pass, and the stop of this pod to the plan.
func add(ps *pass, plan *reconcile.Plan, index int) {
	p := pod.Placement{
		Identity: pod.Identity{RCID: ps.head.RC.Value.ID, Role: "main", Index: index},
		RunState: pod.Running,
	}
	ps.head.Placements = append(ps.head.Placements, store.Rec[pod.Placement]{Value: p})
	ps.snapshot.Pods = append(ps.snapshot.Pods, reconcile.Pod{Placement: p})
	plan.Changes = append(plan.Changes, reconcile.Change{Action: reconcile.Stop, Identity: p.Identity})
}

// Even if many workers plan stops at the same time, at most half of the farm's pods are asked to stop before the
// breaker trips.
func TestConcurrentStopsAreCountedTogether(t *testing.T) {
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

// A stop that was planned, refused and planned again counts once.
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

// The breaker limits a sweep that the leader asked for. It does not limit a sweep that an operator asked for.
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

// Pods of a change with --allow-mass-stop count neither as stopped nor as owned. This is so from the moment when the
// first plan of the change is admitted, or when a farm takes the lock. So a stop of all 12 other pods is a mass stop,
// even while pods of the change still run.
func TestPodsOfAnAllowedMassStopAreNotOwned(t *testing.T) {
	t.Parallel()
	for name, prepare := range map[string]func(t *testing.T, ps *pass, plan *reconcile.Plan){
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
			plan := reconcile.Compute(ps.snapshot)
			ps.remember(&plan, 0, nil)
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
			passes[0].kit.stops.SetPods(passes[0].id, len(passes[0].head.Placements))
			prepare(t, passes[0], plans[0])
			if _, err := passes[1].admitStops(t.Context(), plans[1]); !errors.Is(err, errTripped) {
				t.Errorf("12 of 12 that stay: %v", err)
			}
		})
	}
}

// Pods of a change without --allow-mass-stop count as owned until they are asked to stop. Pods that remain after a
// change with --allow-mass-stop also count as owned.
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

// A farm that takes the locks of many controllers before it reads them does not know which of their pods are stopping.
// It admits no stop until it has read them.
func TestNoStopIsAdmittedBeforeAllUnitsAreRead(t *testing.T) {
	t.Parallel()
	st := &tripping{}
	passes, plans := stopsAll(t, st, 2, 20)
	passes[0].kit.cache.as.stable = time.Now()
	stops := passes[1].kit.stops
	stops.Claimed(passes[1].id)
	plans[0].Changes = plans[0].Changes[:5]
	if admitted, err := passes[0].admitStops(t.Context(), plans[0]); admitted || err != nil {
		t.Errorf("a stop was admitted while a controller had not been read: %v, %v", admitted, err)
	}
	since := time.Now()
	for i := range passes[1].head.Placements { // its previous owner has asked 16 of 20 to stop
		if i < 16 {
			p := &passes[1].head.Placements[i].Value
			p.RunState, p.StoppingSince = pod.Stopped, &since
		}
	}
	passes[1].learn()
	stops.Read(passes[1].id)
	if admitted, err := passes[0].admitStops(t.Context(), plans[0]); admitted || !errors.Is(err, errTripped) {
		t.Errorf("16 + 5 of 40 pods: %v, %v", admitted, err)
	}
}

// A controller whose records cannot be read delays no stops of other controllers, even while farms join and leave.
func TestAnUnreadableControllerDelaysNoStops(t *testing.T) {
	t.Parallel()
	passes, plans := stopsAll(t, &tripping{}, 2, 20)
	passes[0].kit.cache.as.stable = time.Now()
	stops := passes[1].kit.stops
	stops.Claimed(passes[1].id)
	plans[0].Changes = plans[0].Changes[:5]
	if admitted, err := passes[0].admitStops(t.Context(), plans[0]); admitted || err != nil {
		t.Errorf("a stop was admitted while a controller had not been read: %v, %v", admitted, err)
	}
	stops.Read(passes[1].id)
	if admitted, err := passes[0].admitStops(t.Context(), plans[0]); !admitted || err != nil {
		t.Errorf("the stops wait for an unreadable controller: %v, %v", admitted, err)
	}
}

// leaveAll changes the pods that a plan stops. If cameBack is false, the pods were never available and get a second
// node. If cameBack is true, they have returned to their first node.
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

// If many pods move off nodes on which they were never available, this is no mass stop, neither for the farm that plans
// the moves nor for the next owner. These pods do not count as owned either. If such a pod returns and is stopped
// later, its stop counts like any other.
func TestSecondNodesDoNotTripTheBreaker(t *testing.T) {
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
