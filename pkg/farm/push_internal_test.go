package farm

import (
	"maps"
	"testing"

	"github.com/rcfarm/rcfarm/pkg/farm/breaker"

	"github.com/rcfarm/rcfarm/pkg/farm/push"
	"github.com/rcfarm/rcfarm/pkg/farm/reconcile"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/scale"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// The previous writer may not have pushed. So, under a new fence, a farm pushes to each node that does not watch and
// whose reports are behind its placements. It pushes to no other node.
func TestANewOwnerPushesMissedIntents(t *testing.T) {
	t.Parallel()
	at := func(index int, name string, state pod.RunState, revision, done int64) reconcile.Pod {
		p := reconcile.Pod{Placement: pod.Placement{
			Identity: pod.Identity{RCID: "r", Role: "main", Index: index},
			Node:     name, RunState: state, Revision: revision,
		}}
		if done > 0 {
			p.Reality = &pod.Reality{Revision: done}
		}
		return p
	}
	moved := at(4, "done", pod.Running, 5, 5)
	moved.Placement.Ghosts = []pod.Ghost{{Node: "ghost", Revision: 6}, {Node: "left", Revision: 6}, {Node: "runs"}}
	moved.Ghosts = map[string]*pod.Reality{"ghost": {Revision: 5}, "left": {Revision: 6}}
	pushed := map[string]scale.Request{}
	u := unitOver(&kit{stops: breaker.NewStops(), push: func(to push.Target, r scale.Request) {
		if to.API != "https://"+to.Node {
			t.Errorf("pushed to %+v", to)
		}
		pushed[to.Node] = r
	}}, "r", store.Fence{Index: 42})
	ps := passOver(u)
	ps.snapshot = &reconcile.Snapshot{Epoch: "e1", Nodes: map[string]*node.View{"watches": {}}, Pods: []reconcile.Pod{
		at(0, "behind", pod.Running, 5, 4), at(1, "behind", pod.Running, 5, 0), at(2, "behind", pod.Stopped, 6, 5),
		at(3, "done", pod.Running, 5, 5),
		moved, at(5, "watches", pod.Running, 5, 4), at(6, "unknown", pod.Running, 5, 4),
		at(7, "stops", pod.Stopped, 6, 5),
	}}
	for _, name := range []string{"behind", "done", "ghost", "left", "runs", "stops"} {
		ps.snapshot.Nodes[name] = &node.View{Node: node.Node{Intents: node.IntentsPush, API: "https://" + name}}
	}
	to := ps.pusher()
	to.pushMissed(ps.snapshot.Pods, u.fence)
	counts := map[string]uint32{}
	for name, r := range pushed {
		counts[name] = r.Replicas
		if r.Service != "r" || r.Revision != 43 ||
			*r.Epoch != (scale.Epoch{Cluster: "e1", RCID: "r", Term: scale.Term("e1", 42)}) {
			t.Errorf("%s: %+v", name, r)
		}
	}
	if want := map[string]uint32{"behind": 2, "ghost": 0, "stops": 0}; !maps.Equal(counts, want) {
		t.Errorf("pushed: %v, want %v", counts, want)
	}
}
