package farm

import (
	"slices"
	"testing"

	"github.com/rcfarm/rcfarm/pkg/farm/reconcile"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/scheduler"
)

// A scheduler that balances must tell the pods that stay from those that stop.
func TestAViewTellsWhichPodsStop(t *testing.T) {
	t.Parallel()
	var s reconcile.Snapshot
	want := []scheduler.Placed{{Node: "n1"}, {Node: "n2", Stopping: true}}
	for i, state := range []pod.RunState{pod.Running, pod.Stopped} {
		s.Pods = append(s.Pods, reconcile.Pod{Placement: pod.Placement{Node: want[i].Node, RunState: state}})
	}
	if got := slices.Collect(viewOf(&s, 0).Pods()); !slices.Equal(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
}

// What had no room for a pod is remembered as long as the scheduler goes on naming such nodes, the last few only.
func TestNodesWithoutRoomAreRememberedForAWhile(t *testing.T) {
	t.Parallel()
	a, b := pod.Identity{Role: "main"}, pod.Identity{Role: "main", Index: 1}
	both := []pod.Identity{a, b}
	var m memory
	m.noteUnfit(both, []scheduler.Allocation{{Pod: a, Node: "n1"}})
	m.noteUnfit(both, []scheduler.Allocation{{Pod: a, Node: "n2"}, {Pod: b, Node: "n2"}})
	m.noteUnfit(both, []scheduler.Allocation{{Pod: a, Node: "n2"}, {Pod: b, Node: "n3"}})
	if !slices.Equal(m.unfit[a], []string{"n1", "n2"}) || !slices.Equal(m.unfit[b], []string{"n2", "n3"}) {
		t.Errorf("%v", m.unfit)
	}
	for _, name := range []string{"n3", "n4", "n5", "n6", "n7", "n8", "n9"} {
		m.noteUnfit([]pod.Identity{a}, []scheduler.Allocation{{Pod: a, Node: name}})
	}
	if len(m.unfit[a]) != maxUnfit || m.unfit[a][0] != "n2" || !slices.Equal(m.unfit[b], []string{"n2", "n3"}) {
		t.Errorf("%v", m.unfit)
	}
	if m.noteUnfit([]pod.Identity{b}, nil); len(m.unfit) != 1 {
		t.Errorf("it has a node, or was named none: %v", m.unfit)
	}
}
