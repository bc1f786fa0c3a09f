package reconcile_test

import (
	"testing"

	"github.com/rcfarm/rcfarm/pkg/farm/reconcile"
	"github.com/rcfarm/rcfarm/pkg/pod"
)

// A node remembers a stop of a replica from a time when the clock was ahead. The replica is placed at a revision above
// the stop's. Otherwise the node would refuse the pod, and the pod would be placed and removed until the clock has
// caught up (R3).
func TestAPlacementIsAboveTheStopThatANodeRemembers(t *testing.T) {
	t.Parallel()
	s := snapshotOf(1)
	id := pod.Identity{RCID: s.RC.ID, Role: "main"}
	ahead := s.Now.UnixMilli() + 600_000
	s.Stopped = map[pod.Identity]int64{id: ahead}
	plan := reconcile.Compute(s)
	ch := plan.Placer().On(id, "n0")
	if ch.Placement.Revision <= ahead || ch.Intents[0].Intent.Revision != ch.Placement.Revision {
		t.Errorf("placed at %d with an intent at %d, stopped at %d", ch.Placement.Revision,
			ch.Intents[0].Intent.Revision, ahead)
	}
}
