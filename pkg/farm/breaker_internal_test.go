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
			identity := pod.Identity{RCID: id, Role: "main", Index: n}
			v.head.Placements = append(v.head.Placements, store.Rec[pod.Placement]{Value: pod.Placement{Identity: identity}})
			plan.Changes = append(plan.Changes, reconcile.Change{Action: reconcile.Stop, Identity: identity})
		}
		cs, views, plans = append(cs, c), append(views, v), append(plans, plan)
	}
	return cs, views, plans
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
