package place

import (
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// The farm remembers for a minute how full a node is, from its last read or write. It does so only for nodes that could
// not take pods.
func TestHowFullANodeIsIsRememberedForAMinute(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_700_000_000, 0)
	nodes := map[string]*node.View{}
	for _, name := range []string{"n1", "n2", "n3"} {
		nodes[name] = &node.View{Node: node.Node{Name: name, Capacity: node.Capacity{Slots: 9, CPU: 1000}}}
	}
	taken := func(cpu int64) node.Reservation {
		return node.Reservation{Claims: map[string]node.Claim{"other/main.0": {CPU: cpu}}}
	}
	var u usage
	full := func(now time.Time, want ...string) {
		t.Helper()
		is := u.full(nodes, node.Claim{CPU: 500}, 0, now)
		got := slices.DeleteFunc(slices.Sorted(maps.Keys(nodes)), func(name string) bool {
			return is == nil || !is(name)
		})
		if !slices.Equal(got, want) {
			t.Errorf("full are %v, want %v", got, want)
		}
	}
	wrote := func(name string, cpu int64, landed bool) {
		u.wrote([]store.ReservationWrite{{Node: name, Value: taken(cpu)}}, landed, now)
	}
	wrote("n1", 900, true)
	full(now) // no look has noted n1
	u.saw(map[string]store.Rec[node.Reservation]{
		"n1": {Value: taken(900)}, "n2": {Value: taken(400)}, "gone": {Value: taken(900)},
	}, now)
	full(now, "n1")
	wrote("n2", 600, true)
	wrote("n3", 600, true)
	full(now, "n1", "n2")
	wrote("n1", 100, true)
	full(now, "n2")
	wrote("n2", 700, false) // the write failed, because another farm has written
	full(now)
	wrote("n1", 900, true)
	full(now.Add(usageAge), "n1")
	full(now.Add(usageAge + 1))
	if !u.tight(3, now) || u.tight(4, now) {
		t.Errorf("tight must be true for 3 nodes and false for 4; known: %v", u.seen)
	}
	if u.tight(0, now.Add(usageAge+1)) || len(u.seen) != 0 {
		t.Errorf("old entries are remembered: %v", u.seen)
	}
}
