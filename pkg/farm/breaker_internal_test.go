package farm

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/obs"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/reconcile"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// tripping is a store in which a breaker may be tripped, once.
type tripping struct {
	Tenure
	trips atomic.Int32
}

func (s *tripping) TripBreaker(context.Context, uint64, store.Breaker, store.Audit) error {
	if s.trips.Add(1) > 1 {
		return store.ErrConflict
	}
	return nil
}

// stopsAll returns controllers of so many pods each, with what a pass over each has read and would do: stop all of them.
func stopsAll(t *testing.T, st Tenure, controllers, pods int) (cs []*ReplicationController, views []*view, plans []*reconcile.Plan) {
	t.Helper()
	log, err := obs.NewLogger(discard{}, "error", "text")
	if err != nil {
		t.Fatal(err)
	}
	f := NewFarm(Config{ID: "f", Store: st, Log: log})
	t.Cleanup(f.queue.ShutDown)
	for i := range controllers {
		id := fmt.Sprintf("rc%d", i)
		c := &ReplicationController{ID: id, farm: f, log: log, pods: pods}
		f.owned[id] = c
		v, plan := &view{snapshot: &reconcile.Snapshot{Now: time.Now()}}, &reconcile.Plan{}
		v.head.RC.Value = rc.RC{ID: id, Name: id, Generation: 1}
		for n := range pods {
			add(v, plan, n)
		}
		cs, views, plans = append(cs, c), append(views, v), append(plans, plan)
	}
	return cs, views, plans
}

// add adds a pod that runs, and its stop.
func add(v *view, plan *reconcile.Plan, index int) {
	p := pod.Placement{Identity: pod.Identity{RCID: v.head.RC.Value.ID, Role: "main", Index: index}, RunState: pod.Running}
	v.head.Placements = append(v.head.Placements, store.Rec[pod.Placement]{Value: p})
	v.snapshot.Pods = append(v.snapshot.Pods, reconcile.Pod{Placement: p})
	plan.Changes = append(plan.Changes, reconcile.Change{Action: reconcile.Stop, Identity: p.Identity})
}

// However many workers plan stops at the same time, no more than half of the farm's pods are asked to stop before the breaker
// trips.
func TestTheBreakerCountsAtOneMoment(t *testing.T) {
	t.Parallel()
	const controllers, pods = 40, 5
	for range 20 {
		st := &tripping{}
		cs, views, plans := stopsAll(t, st, controllers, pods)
		var stopped atomic.Int32
		var all sync.WaitGroup
		start := make(chan struct{})
		for i, c := range cs {
			all.Go(func() {
				<-start
				switch judged, err := c.breaker(t.Context(), views[i], plans[i]); {
				case judged && err == nil:
					stopped.Add(pods)
				case !errors.Is(err, errTripped):
					t.Errorf("judged %v, %v", judged, err)
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
	cs, views, plans := stopsAll(t, st, 4, 8)
	for try := range 3 {
		for i := range 2 { // 16 of 32
			if judged, err := cs[i].breaker(t.Context(), views[i], plans[i]); !judged || err != nil {
				t.Fatalf("try %d: judged %v, %v", try, judged, err)
			}
		}
	}
	if _, err := cs[2].breaker(t.Context(), views[2], plans[2]); !errors.Is(err, errTripped) {
		t.Errorf("24 of 32: %v", err)
	}
}

// What a change with --allow-mass-stop may stop is neither counted as a stop nor as owned from the moment that its first plan is
// judged, or that its lock came: all of 12 other pods are a mass stop, however many of the former still run.
func TestPodsThatMayBeStoppedAreNotOwned(t *testing.T) {
	t.Parallel()
	for name, tell := range map[string]func(t *testing.T, c *ReplicationController, v *view, plan *reconcile.Plan){
		"a plan stops them all": func(t *testing.T, c *ReplicationController, v *view, plan *reconcile.Plan) {
			t.Helper()
			if judged, err := c.breaker(t.Context(), v, plan); !judged || err != nil {
				t.Fatalf("the allowed change: judged %v, %v", judged, err)
			}
		},
		"a plan stops the first of them": func(t *testing.T, c *ReplicationController, v *view, plan *reconcile.Plan) {
			t.Helper()
			plan.Changes = plan.Changes[:1]
			if judged, err := c.breaker(t.Context(), v, plan); !judged || err != nil {
				t.Fatalf("the allowed change: judged %v, %v", judged, err)
			}
		},
		"a plan cannot stop any yet": func(t *testing.T, c *ReplicationController, v *view, _ *reconcile.Plan) {
			t.Helper()
			if judged, err := c.breaker(t.Context(), v, &reconcile.Plan{}); !judged || err != nil {
				t.Fatalf("the allowed change: judged %v, %v", judged, err)
			}
		},
		"a pass was over": func(_ *testing.T, c *ReplicationController, v *view, _ *reconcile.Plan) {
			c.remember(v, &reconcile.Plan{}, 0, nil)
		},
		"they came with the lock": func(_ *testing.T, c *ReplicationController, v *view, _ *reconcile.Plan) { c.learn(&v.head) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cs, views, plans := stopsAll(t, &tripping{}, 2, 12)
			for i := range 40 {
				add(views[0], plans[0], i+12)
			}
			views[0].head.RC.Value.AllowMassStop = 1
			cs[0].pods = len(views[0].head.Placements)
			tell(t, cs[0], views[0], plans[0])
			if _, err := cs[1].breaker(t.Context(), views[1], plans[1]); !errors.Is(err, errTripped) {
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
			cs, views, plans := stopsAll(t, &tripping{}, 2, 12)
			change(&views[0].head.RC.Value)
			if judged, err := cs[0].breaker(t.Context(), views[0], &reconcile.Plan{}); !judged || err != nil {
				t.Fatalf("judged %v, %v", judged, err)
			}
			if judged, err := cs[1].breaker(t.Context(), views[1], plans[1]); !judged || err != nil {
				t.Errorf("12 of 24: judged %v, %v", judged, err)
			}
		})
	}
}

// A farm that takes over locks of many controllers before it reads them does not know which pods of theirs are stopping. Until it has
// read them it judges no stop.
func TestNoStopIsJudgedBeforeAllIsRead(t *testing.T) {
	t.Parallel()
	st := &tripping{}
	cs, views, plans := stopsAll(t, st, 2, 20)
	f := cs[0].farm
	f.world.stable = time.Now()
	cs[1].unread = true
	plans[0].Changes = plans[0].Changes[:5]
	if judged, err := cs[0].breaker(t.Context(), views[0], plans[0]); judged || err != nil {
		t.Errorf("a stop was judged while a controller had not been read: %v, %v", judged, err)
	}
	since := time.Now()
	for i := range views[1].head.Placements { // its former owner has asked 16 of 20 to stop
		if i < 16 {
			p := &views[1].head.Placements[i].Value
			p.RunState, p.StoppingSince = pod.Stopped, &since
		}
	}
	cs[1].learnOnce(&views[1].head)
	if cs[1].isUnread() {
		t.Error("it has been read")
	}
	if judged, err := cs[0].breaker(t.Context(), views[0], plans[0]); judged || !errors.Is(err, errTripped) {
		t.Errorf("16 + 5 of 40 pods: %v, %v", judged, err)
	}
}
