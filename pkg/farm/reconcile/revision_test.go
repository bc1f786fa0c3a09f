package reconcile_test

import (
	"testing"

	"github.com/rcfarm/rcfarm/pkg/farm/reconcile"
	"github.com/rcfarm/rcfarm/pkg/pod"
)

// A replica whose node remembers a stop from a time when the clock was ahead is placed at a revision above it: the node refuses
// anything else, and it would be placed and removed for as long as the clock is behind (R3).
func TestAPlacementIsAboveTheStopThatANodeRemembers(t *testing.T) {
	t.Parallel()
	s := snapshotOf(1)
	id := pod.Identity{RCID: s.RC.ID, Role: "main"}
	ahead := s.Now.UnixMilli() + 600_000
	s.Stopped = map[pod.Identity]int64{id: ahead}
	ch := reconcile.NewPlacer(s).On(id, "n0")
	if ch.Placement.Revision <= ahead || ch.Intents[0].Intent.Revision != ch.Placement.Revision {
		t.Errorf("placed at %d with an intent at %d, stopped at %d", ch.Placement.Revision, ch.Intents[0].Intent.Revision, ahead)
	}
}
