package farm

import (
	"errors"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/farm/reconcile"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// A controller whose pods are all placed, but one of which cannot leave its node for want of another, is looked at when any
// node changes; one that lacks nothing only when its own do.
func TestAMoveWithoutRoomWantsNodes(t *testing.T) {
	t.Parallel()
	other := map[string]bool{"n9": true}
	for missing, want := range map[int]bool{0: false, 1: true} {
		u := unitOver(&kit{stops: newStopCounter()}, "web", store.Fence{})
		c, ps := u.known("web"), passOver(u)
		plan := &reconcile.Plan{Status: rc.Status{Desired: 2, Placed: 2}}
		s := &reconcile.Snapshot{Now: time.Now()}
		plan.Short(s, make([]pod.Identity, missing), "drained 3", time.Second)
		ps.snapshot = s
		ps.remember(plan, 0, nil)
		if c.shared.now().wantsNodes != want || c.shared.now().concernedBy(other, nil) != want {
			t.Errorf("%d missing: wantsNodes %t, concerned by any node %t", missing, c.shared.now().wantsNodes, c.shared.now().concernedBy(other, nil))
		}
	}
}

// A controller whose plan has placed all that was missing needs no other nodes; one of which something has not landed may.
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
		u := unitOver(&kit{stops: newStopCounter()}, "web", store.Fence{})
		c, ps := u.known("web"), passOver(u)
		ps.snapshot = &reconcile.Snapshot{Now: time.Now()}
		plan := &reconcile.Plan{Status: rc.Status{Desired: try.desired, Placed: 1}, Changes: []reconcile.Change{place, place}}
		ps.remember(plan, try.wrote, try.err)
		if c.shared.now().wantsNodes != try.want {
			t.Errorf("%s: wantsNodes %t", name, c.shared.now().wantsNodes)
		}
	}
}

// A controller with a pod on each node is looked at when a node changes that it has a pod on, or that may ask for one; other nodes are
// none of its business.
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
		"with": view("b", true, node.Ops{}), "new": view("a", true, node.Ops{}), "other": view("b", true, node.Ops{}), "dead": view("a", false, node.Ops{}),
		"cordoned": view("a", true, node.Ops{Unschedulable: true}), "drained": view("a", true, node.Ops{Drain: &node.Drain{}}),
		"labelled": view("b", true, node.Ops{Labels: map[string]string{"pool": "a"}}),
	}
	k := known{nodes: map[string]bool{"with": true}, follows: sel}
	for name, want := range map[string]bool{
		"with": true, "new": true, "labelled": true, "other": false, "dead": false, "cordoned": false, "drained": false, "gone": false,
	} {
		if got := k.concernedBy(map[string]bool{name: true}, views); got != want {
			t.Errorf("%s: %t", name, got)
		}
	}
	if k.follows = nil; k.concernedBy(map[string]bool{"new": true}, views) {
		t.Error("a controller with a number is looked at for a new node")
	}
}
