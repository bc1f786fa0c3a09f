package reconcile_test

import (
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/farm/reconcile"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
)

// compute computes a plan, and checks that the snapshot is unchanged.
func compute(t interface{ Fatalf(string, ...any) }, s *reconcile.Snapshot) reconcile.Plan {
	was := *s
	was.Pods = slices.Clone(s.Pods)
	for i := range was.Pods {
		was.Pods[i].Placement.Ghosts = slices.Clone(s.Pods[i].Placement.Ghosts)
		was.Pods[i].Avoid = slices.Clone(s.Pods[i].Avoid)
	}
	plan := reconcile.Compute(s)
	if !reflect.DeepEqual(&was, s) {
		t.Fatalf("the snapshot was %+v, and is %+v", was, s)
	}
	return plan
}

// A decision changes nothing in its snapshot: not the order of pods, not times in the future, not the count of a
// controller with a pod on each node, not what is recorded about lost nodes.
func TestComputeDoesNotChangeItsSnapshot(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(s *reconcile.Snapshot){
		"nothing": func(*reconcile.Snapshot) {},
		"a clock was ahead": func(s *reconcile.Snapshot) {
			s.Pods[0].ChangedAt = s.Now.Add(time.Hour)
			s.Pods[1].Placement.Ghosts = []pod.Ghost{{Node: "n3", Since: s.Now.Add(time.Hour)}}
			s.Pods[2].Avoid = []pod.Avoided{{Node: "n3", Since: s.Now.Add(time.Hour)}}
		},
		"a pod on each node": func(s *reconcile.Snapshot) { s.RC.Mode, s.RC.ReplicaGroups = rc.EachNode, nil },
		"lost nodes":         func(s *reconcile.Snapshot) { longLost(s, 0) },
	} {
		s := row(3, 5)
		change(s)
		rand.Shuffle(len(s.Pods), func(i, j int) { s.Pods[i], s.Pods[j] = s.Pods[j], s.Pods[i] })
		first, again := compute(t, s), compute(t, s)
		if !reflect.DeepEqual(first.Status, again.Status) || len(first.Changes) != len(again.Changes) {
			t.Errorf("%s: %+v, then %+v", name, first.Changes, again.Changes)
		}
	}
}
