package inspect

import (
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/store"
)

func TestJoinNodes(t *testing.T) {
	t.Parallel()
	recs := []store.Rec[node.Node]{
		{Value: node.Node{Name: "b", Labels: map[string]string{"rack": "1", "disk": "hdd"}, Capacity: node.Capacity{Slots: 4}}, Session: "s"},
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
	if b.Used != (Usage{Slots: 2, CPU: 750, Memory: 11}) || b.Capacity.Slots != 4 || b.Labels["disk"] != "ssd" || b.Labels["rack"] != "1" || b.OperatorLabels["disk"] != "ssd" {
		t.Errorf("%+v", b)
	}
	for i, want := range [][2]string{{"no", "no"}, {"yes", "yes"}, {"yes", "drained"}} {
		if got := [2]string{views[i].AliveText(), views[i].OpenText()}; got != want {
			t.Errorf("%s: alive and open are %v, want %v", views[i].Name, got, want)
		}
	}
}

// The earliest loss that an owner of pods found out about counts, and only where the node is not alive.
func TestAddLosses(t *testing.T) {
	t.Parallel()
	at := func(s int64) *time.Time { v := time.Unix(s, 0); return &v }
	views := []NodeView{{Name: "a"}, {Name: "b"}, {Name: "c", Alive: true}, {Name: "d"}}
	var placements []store.Rec[pod.Placement]
	for _, p := range []pod.Placement{
		{Node: "a", UnmanagedSince: at(7)},
		{Node: "a", UnmanagedSince: at(5)},
		{Node: "b", UnmanagedSince: at(5)},
		{Node: "b", LostSince: at(9)},
		{Node: "c", LostSince: at(9)},
		{Node: "gone", LostSince: at(9)},
	} {
		placements = append(placements, store.Rec[pod.Placement]{Value: p})
	}
	AddLosses(views, placements)
	for i, want := range []string{"unmanaged", "lost", "yes", "no"} {
		if got := views[i].AliveText(); got != want {
			t.Errorf("%s: %s, want %s", views[i].Name, got, want)
		}
	}
	if !views[0].UnmanagedSince.Equal(*at(5)) {
		t.Errorf("%v is not the earliest", views[0].UnmanagedSince)
	}
}

func TestHeard(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_000_000, 0)
	heard := map[string]store.Heard{"quick": {At: now.Add(-time.Second), EverySeconds: 5}, "slow": {At: now.Add(-time.Hour), EverySeconds: 5}}
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
