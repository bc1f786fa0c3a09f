package reconcile_test

import (
	"reflect"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/farm/reconcile"
	"github.com/rcfarm/rcfarm/pkg/pod"
)

// A farm's clock was an hour ahead. Each time that it wrote into a placement is replaced by now, once. Otherwise waits
// that begin at such a time would last an hour longer.
func TestFutureTimesAreReplacedOnce(t *testing.T) {
	t.Parallel()
	for name, set := range map[string]func(p *pod.Placement, at time.Time){
		"changed_at":      func(p *pod.Placement, at time.Time) { p.ChangedAt = at },
		"stopping_since":  func(p *pod.Placement, at time.Time) { p.RunState, p.StoppingSince = pod.Stopped, &at },
		"lost_since":      func(p *pod.Placement, at time.Time) { p.LostSince, p.DeadIndex = &at, 7 },
		"unmanaged_since": func(p *pod.Placement, at time.Time) { p.UnmanagedSince, p.DeadIndex = &at, 7 },
		"ghosts": func(p *pod.Placement, at time.Time) {
			p.Ghosts = []pod.Ghost{
				{Node: "n1", Revision: 3, Since: at.Add(-2 * time.Hour)}, {Node: "n2", Revision: 3, Since: at},
			}
		},
		"avoid": func(p *pod.Placement, at time.Time) {
			p.Avoid = []pod.Avoided{{Node: "n1", Since: at.Add(-2 * time.Hour)}, {Node: "n2", Since: at}}
		},
	} {
		s := snapshotOf(1)
		s.Pods = []reconcile.Pod{running(0, "n0", 5, 0)}
		p := &s.Pods[0]
		if name == "lost_since" || name == "unmanaged_since" {
			s.Nodes["n0"].Alive, s.Nodes["n0"].MachineLost, s.Nodes["n0"].FreeIndex = false, name == "lost_since", 7
		}
		set(&p.Placement, s.Now.Add(time.Hour))
		ghosts, avoid := p.Placement.Ghosts, p.Avoid
		given := [2]any{append([]pod.Ghost(nil), ghosts...), append([]pod.Avoided(nil), avoid...)}
		want := p.Placement
		set(&want, s.Now)
		for range 2 { // the second plan from the same snapshot is the same
			plan := reconcile.Compute(s)
			if len(plan.Changes) != 1 || plan.Changes[0].Action != reconcile.Mark || plan.Changes[0].Index != 9 {
				t.Fatalf("%s: changes %v", name, plan.Changes)
			}
			got := *plan.Changes[0].Placement
			if name == "ghosts" || name == "avoid" { // the first time is in the past, and is kept
				if got.Ghosts != nil &&
					(!got.Ghosts[0].Since.Equal(s.Now.Add(-time.Hour)) || !got.Ghosts[1].Since.Equal(s.Now)) ||
					got.Avoid != nil &&
						(!got.Avoid[0].Since.Equal(s.Now.Add(-time.Hour)) || !got.Avoid[1].Since.Equal(s.Now)) {
					t.Errorf("%s: %+v %+v", name, got.Ghosts, got.Avoid)
				}
			} else if !reflect.DeepEqual(got, want) {
				t.Errorf("%s: %+v, want %+v", name, got, want)
			}
		}
		read := [2]any{append([]pod.Ghost(nil), ghosts...), append([]pod.Avoided(nil), avoid...)}
		if !reflect.DeepEqual(given, read) {
			t.Errorf("%s: the lists of the record that was read have changed", name)
		}
		plan := reconcile.Compute(s)
		s.Pods[0].Placement, s.Pods[0] = *plan.Changes[0].Placement, reconcile.Pod{
			Placement: *plan.Changes[0].Placement, Index: 10, Reality: p.Reality, Ghosts: p.Ghosts,
		}
		if plan = reconcile.Compute(s); len(plan.Changes) != 0 {
			t.Errorf("%s: once written, changes %v", name, plan.Changes)
		}
	}
}

// If a record has a loss that begins in an hour, the pod is replaced in 30 s, not in an hour and 30 s.
func TestALossInTheFutureCountsFromNow(t *testing.T) {
	t.Parallel()
	s := snapshotOf(1)
	s.Pods = []reconcile.Pod{running(0, "n0", 5, 0)}
	s.Nodes["n0"].Alive, s.Nodes["n0"].MachineLost, s.Nodes["n0"].FreeIndex = false, true, 7
	ahead := s.Now.Add(time.Hour)
	s.Pods[0].LostSince, s.Pods[0].DeadIndex = &ahead, 7
	plan := reconcile.Compute(s)
	if len(plan.Changes) != 1 || plan.Again <= 0 || plan.Again > 30*time.Second {
		t.Fatalf("changes %v, again in %s", plan.Changes, plan.Again)
	}
	s.Pods[0].Placement = *plan.Changes[0].Placement
	s.Now = s.Now.Add(30 * time.Second)
	if plan = reconcile.Compute(s); len(plan.Adds) != 1 {
		t.Errorf("after 30 s: adds %v, changes %v", plan.Adds, plan.Changes)
	}
}

// A pod that is placed elsewhere gets the corrected times with that change. If no node is found, the times are written
// alone.
func TestFutureTimesAreReplacedIfNoNodeIsFound(t *testing.T) {
	t.Parallel()
	s := snapshotOf(1)
	s.Pods = []reconcile.Pod{running(0, "n0", 5, 0)}
	s.Nodes["n0"].Alive, s.Nodes["n0"].MachineLost, s.Nodes["n0"].FreeIndex = false, true, 7
	lost := s.Now.Add(-time.Minute)
	s.Pods[0].LostSince, s.Pods[0].DeadIndex, s.Pods[0].ChangedAt = &lost, 7, s.Now.Add(time.Hour)
	plan := reconcile.Compute(s)
	if len(plan.Adds) != 1 || len(plan.Changes) != 0 {
		t.Fatalf("adds %v, changes %v", plan.Adds, plan.Changes)
	}
	plan.Unscheduled("out of order")
	if len(plan.Changes) != 1 || plan.Changes[0].Action != reconcile.Mark ||
		!plan.Changes[0].Placement.ChangedAt.Equal(s.Now) {
		t.Errorf("changes %v", plan.Changes)
	}
}
