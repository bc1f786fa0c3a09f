package farm

import (
	"errors"
	"math"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/farm/breaker"

	"github.com/rcfarm/rcfarm/pkg/farm/reconcile"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// If all pods of a controller are placed, but one pod cannot move because no node has capacity, the controller is
// looked at when any node changes. A controller without such a pod is looked at only when its own nodes change.
func TestAMoveWithoutANodeWantsNodes(t *testing.T) {
	t.Parallel()
	other := map[string]bool{"n9": true}
	for missing, want := range map[int]bool{0: false, 1: true} {
		u := unitOver(&kit{stops: breaker.NewStops()}, "web", store.Fence{})
		c, ps := u.known("web"), passOver(u)
		s := &reconcile.Snapshot{Now: time.Now()}
		plan := reconcile.Compute(s)
		plan.Status = rc.Status{Desired: 2, Placed: 2}
		plan.SetUnplaced(make([]pod.Identity, missing), "drained 3", time.Second)
		ps.snapshot = s
		ps.remember(&plan, 0, nil)
		if c.shared.now().wantsNodes != want || c.shared.now().concernedBy(other, nil) != want {
			t.Errorf("%d missing: wantsNodes %t, concerned by any node %t", missing, c.shared.now().wantsNodes,
				c.shared.now().concernedBy(other, nil))
		}
	}
}

// A controller whose plan has placed all missing pods does not want nodes. If a part of the plan did not land, it may
// want nodes.
func TestAControllerWithItsPodsWantsNoNodes(t *testing.T) {
	t.Parallel()
	place := reconcile.Change{Action: reconcile.Place, Placement: &pod.Placement{Node: "n1"}}
	for name, try := range map[string]struct {
		desired, wrote int
		err            error
		want           bool
	}{
		"all are placed":        {desired: 3, wrote: 2},
		"one found no node":     {desired: 4, wrote: 2, want: true},
		"one has not landed":    {desired: 3, wrote: 1, want: true},
		"none is known to have": {desired: 3, wrote: 2, err: errors.New("unknown"), want: true},
	} {
		u := unitOver(&kit{stops: breaker.NewStops()}, "web", store.Fence{})
		c, ps := u.known("web"), passOver(u)
		ps.snapshot = &reconcile.Snapshot{Now: time.Now()}
		plan := reconcile.Compute(ps.snapshot)
		plan.Status, plan.Changes = rc.Status{Desired: try.desired, Placed: 1}, []reconcile.Change{place, place}
		ps.remember(&plan, try.wrote, try.err)
		if c.shared.now().wantsNodes != try.want {
			t.Errorf("%s: wantsNodes %t", name, c.shared.now().wantsNodes)
		}
	}
}

// others are peers with units that wait for a look.
type others struct {
	peers
	wait int
}

func (o others) waiting() int { return o.wait }

// A pass places all pods that it can, unless other units wait.
func TestAPassLeavesTimeForUnitsThatWait(t *testing.T) {
	t.Parallel()
	for wait, want := range map[int]int{0: math.MaxInt, 1: addsForOthers} {
		if got := passOver(unitOver(&kit{peers: others{wait: wait}}, "web", store.Fence{})).maxAdds(); got != want {
			t.Errorf("%d wait: it places %d, want %d", wait, got, want)
		}
	}
}

// If a node changes that has a pod of a controller in each-node mode, or that may need one of its pods, the farm looks
// at the controller. Other nodes do not concern the controller.
func TestWhichNodesConcernAControllerOnEachNode(t *testing.T) {
	t.Parallel()
	sel, err := rc.ParseSelector("pool=a")
	if err != nil {
		t.Fatal(err)
	}
	view := func(pool string, alive bool, ops node.Ops) *node.View {
		return &node.View{Node: node.Node{Labels: map[string]string{"pool": pool}}, Alive: alive, Ops: ops}
	}
	views := map[string]*node.View{
		"with": view("b", true, node.Ops{}), "new": view("a", true, node.Ops{}), "other": view("b", true, node.Ops{}),
		"dead":     view("a", false, node.Ops{}),
		"cordoned": view("a", true, node.Ops{Unschedulable: true}),
		"drained":  view("a", true, node.Ops{Drain: &node.Drain{}}),
		"labelled": view("b", true, node.Ops{Labels: map[string]string{"pool": "a"}}),
	}
	k := known{nodes: map[string]bool{"with": true}, follows: sel}
	for name, want := range map[string]bool{
		"with": true, "new": true, "labelled": true, "other": false, "dead": false, "cordoned": false,
		"drained": false, "gone": false,
	} {
		if got := k.concernedBy(map[string]bool{name: true}, views); got != want {
			t.Errorf("%s: %t", name, got)
		}
	}
	if k.follows = nil; k.concernedBy(map[string]bool{"new": true}, views) {
		t.Error("a controller with a number is looked at for a new node")
	}
}
