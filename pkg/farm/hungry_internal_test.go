package farm

import (
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/reconcile"
)

// A controller whose pods are all placed, but one of which cannot leave its node for want of another, is looked at when any
// node changes; one that lacks nothing only when its own do.
func TestAMoveWithoutRoomIsHungry(t *testing.T) {
	t.Parallel()
	other := map[string]bool{"n9": true}
	for missing, want := range map[int]bool{0: false, 1: true} {
		c := &ReplicationController{}
		plan := &reconcile.Plan{Status: rc.Status{Desired: 2, Placed: 2}}
		s := &reconcile.Snapshot{Now: time.Now()}
		plan.Short(s, make([]pod.Identity, missing), "drained 3", time.Second)
		c.remember(&view{snapshot: s}, plan, false)
		if c.isHungry() != want || c.concernedBy(other) != want {
			t.Errorf("%d missing: hungry %t, concerned by any node %t", missing, c.isHungry(), c.concernedBy(other))
		}
	}
}
