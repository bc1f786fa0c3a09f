package inspect

import (
	"strings"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/store"
)

func TestJoinNodes(t *testing.T) {
	t.Parallel()
	recs := []store.Rec[node.Node]{
		{Value: node.Node{
			Name: "b", Labels: map[string]string{"rack": "1", "disk": "hdd"}, Capacity: node.Capacity{Slots: 4},
		}, Session: "s"},
		{Value: node.Node{Name: "a"}},
		{Value: node.Node{Name: "c"}, Session: "s"},
	}
	ops := []node.Ops{{Name: "b", Labels: map[string]string{"disk": "ssd"}}, {Name: "c", Drain: &node.Drain{}}}
	taken := map[string]node.Reservation{
		"b": {Claims: map[string]node.Claim{"x": {CPU: 500, Memory: 10}, "y": {CPU: 250, Memory: 1}}},
		"a": {Ineligible: true},
	}
	views := JoinNodes(recs, ops, taken)
	if len(views) != 3 || views[0].Name != "a" || views[1].Name != "b" || views[2].Name != "c" {
		t.Fatalf("%+v", views)
	}
	b := views[1]
	if b.Used != (Usage{Slots: 2, CPU: 750, Memory: 11}) || b.Capacity.Slots != 4 || b.Labels["disk"] != "ssd" ||
		b.Labels["rack"] != "1" || b.OperatorLabels["disk"] != "ssd" {
		t.Errorf("%+v", b)
	}
	for i, want := range [][2]string{{"no", "no"}, {"yes", "yes"}, {"yes", "drained"}} {
		if got := [2]string{views[i].AliveText(), views[i].OpenText()}; got != want {
			t.Errorf("%s: alive and open are %v, want %v", views[i].Name, got, want)
		}
	}
}

// A dead node has the earliest loss that owners of pods have written for its present death, in placements or ghosts.
func TestAddLosses(t *testing.T) {
	t.Parallel()
	at := func(s int64) *time.Time { v := time.Unix(s, 0); return &v }
	rec := func(name, session string) store.Rec[node.Node] {
		return store.Rec[node.Node]{Value: node.Node{Name: name}, Session: session, Index: 3}
	}
	recs := []store.Rec[node.Node]{
		rec("a", ""), rec("b", ""), rec("c", "s"), rec("d", ""), rec("e", ""), rec("f", ""),
		rec("g", ""), rec("h", ""), rec("i", ""),
	}
	for i := range recs {
		recs[i].Value.ConsulNode = "machine-" + recs[i].Value.Name
	}
	placements := []pod.Placement{
		{Node: "a", UnmanagedSince: at(7), DeadIndex: 3},
		{Node: "a", UnmanagedSince: at(5)},
		{Node: "b", UnmanagedSince: at(5), DeadIndex: 3},
		{Node: "b", LostSince: at(9), DeadIndex: 3},
		{Node: "c", LostSince: at(9), DeadIndex: 3},
		{Node: "gone", LostSince: at(9), DeadIndex: 3},
		{Node: "e", LostSince: at(9), DeadIndex: 2},
		{Node: "i", UnmanagedSince: at(5), DeadIndex: 3},
		{Node: "c", Ghosts: []pod.Ghost{
			{Node: "f", MachineLost: true, DeadIndex: 3, Since: *at(4)},
			{Node: "g", DeadIndex: 3},
			{Node: "d", MachineLost: true, DeadIndex: 2},
		}},
	}
	views := JoinNodes(recs, nil, nil)
	// In Consul, the agents of c, h and i have failed. The preparer of c holds the lock, and no owner has written a
	// loss of h.
	AddLosses(views,
		LossesOf(recs, placements, map[string]bool{"machine-c": true, "machine-h": true, "machine-i": true}))
	for i, want := range [][2]string{
		{"unmanaged", Unmanaged},
		{"lost", Lost},
		{"yes", Alive},
		{"no", Away},
		{"no", Away},
		{"lost", Lost},
		{"no", Away},
		{"lost", Lost},
		{"lost", Lost},
	} {
		if got := [2]string{views[i].AliveText(), views[i].State}; got != want {
			t.Errorf("%s: %s, want %s", views[i].Name, got, want)
		}
	}
	if !views[0].UnmanagedSince.Equal(*at(5)) || !views[5].LostSince.Equal(*at(4)) {
		t.Errorf("%v %v", views[0].UnmanagedSince, views[5].LostSince)
	}
}

// The last report of a pod on a lost machine is not shown, and a pod that was declared gone is not shown as running.
func TestJoinPodsOnDeadNodes(t *testing.T) {
	t.Parallel()
	id := func(i int) pod.Identity { return pod.Identity{RCID: "r", Role: "main", Index: i} }
	ready := func(i int, node string) pod.Reality {
		return pod.Reality{Identity: id(i), Node: node, State: pod.StateReady, Available: true, Digest: "d"}
	}
	since := time.Unix(9, 0)
	recs := []store.Rec[node.Node]{
		{Value: node.Node{Name: "lost"}, Index: 3},
		{Value: node.Node{Name: "away"}, Index: 4},
		{Value: node.Node{Name: "failed", ConsulNode: "m"}, Index: 5},
		{Value: node.Node{Name: "up"}, Session: "s"},
	}
	placements := []pod.Placement{
		{
			Identity: id(0), Node: "up", Digest: "d", RunState: pod.Running,
			Ghosts: []pod.Ghost{{Node: "lost", MachineLost: true, DeadIndex: 3}},
		},
		{Identity: id(1), Node: "lost", Digest: "d", RunState: pod.Running}, // its owner has not written the loss yet
		{Identity: id(2), Node: "away", Digest: "d", RunState: pod.Running},
		{Identity: id(9), Node: "failed", Digest: "d", RunState: pod.Running}, // its owner has not written the loss
		{Identity: id(7), Node: "lost", Digest: "d", RunState: pod.Running, LostSince: &since, DeadIndex: 3},
	}
	local, localAway := ready(6, "lost"), ready(8, "away")
	local.Kind, localAway.Kind = pod.KindLocal, pod.KindLocal
	realities := []pod.Reality{
		ready(0, "up"), ready(0, "lost"), ready(1, "lost"), ready(2, "away"), ready(3, "lost"),
		ready(4, "away"), ready(5, "up"), local, localAway, ready(7, "lost"), ready(9, "failed"), ready(10, "failed"),
	}
	type seen struct {
		kind, node, state string
		available         bool
	}
	want := map[seen]string{
		{Placed, "up", "ready", true}:    "",
		{Ghost, "lost", Lost, false}:     "is gone since",
		{Placed, "lost", Lost, false}:    "is gone since",
		{Placed, "away", "ready", true}:  "",
		{Orphan, "lost", Lost, false}:    "has no placement; its node is gone since",
		{Local, "away", Unknown, false}:  "its node has no living preparer",
		{Orphan, "away", Unknown, false}: "has no placement; its node has no living preparer",
		{Orphan, "up", "ready", false}:   "it runs until its rc adopts or stops it",
		{Local, "lost", Lost, false}:     "is gone since",
		{Placed, "failed", Lost, false}:  "its node is gone",
		{Orphan, "failed", Lost, false}:  "has no placement; its node is gone",
	}
	views := JoinPods(placements, realities, LossesOf(recs, placements, map[string]bool{"m": true}), nil)
	for _, v := range views {
		says, ok := want[seen{v.Kind, v.Node, v.State, v.Available}]
		if !ok || !strings.Contains(v.Message, says) || says == "" && v.Message != "" ||
			strings.Count(v.Message, "gone since") > 1 {
			t.Errorf("%s on %s: %s %t %q", v.Kind, v.Node, v.State, v.Available, v.Message)
		}
	}
	if len(views) != len(want)+1 { // two pods are placed on the lost node
		t.Errorf("%d views", len(views))
	}
}

func TestHeard(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_000_000, 0)
	heard := map[string]store.Heard{
		"quick": {At: now.Add(-time.Second), EverySeconds: 5}, "slow": {At: now.Add(-time.Hour), EverySeconds: 5},
	}
	for name, tt := range map[string]struct{ alive, has, silent bool }{
		"quick": {true, true, false}, "slow": {true, true, true}, "unknown": {true, false, false},
	} {
		if h := HearingOf(heard, name, tt.alive, now); (h.Heard != nil) != tt.has || h.Silent != tt.silent {
			t.Errorf("%s: %v, silent %t", name, h.Heard, h.Silent)
		}
	}
	if HearingOf(heard, "slow", false, now).Silent {
		t.Error("one that Consul takes for dead is not silent")
	}
}
