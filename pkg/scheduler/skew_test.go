package scheduler_test

import (
	"slices"
	"testing"

	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/scheduler"
)

func inRack(rack string) *node.View {
	return &node.View{Alive: true, Node: node.Node{Name: "n", Labels: map[string]string{"rack": rack}}}
}

// One more pod is refused if its group would have more pods than the smallest group plus the skew. A node without a
// group is always refused. A node is also refused if its group has no nodes that may take pods.
func TestASkewRefusesFullGroups(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		skew    int
		pods    map[string]int
		refused []string
	}{
		"no pods":                      {1, nil, []string{"", "gone"}},
		"as many in each":              {1, map[string]int{"a": 2, "b": 2}, []string{"", "gone"}},
		"one more in a, skew 1":        {1, map[string]int{"a": 3, "b": 2}, []string{"", "a", "gone"}},
		"one more in a, skew 2":        {2, map[string]int{"a": 3, "b": 2}, []string{"", "gone"}},
		"two more in a, skew 2":        {2, map[string]int{"a": 4, "b": 2}, []string{"", "a", "gone"}},
		"pods outside of all groups":   {1, map[string]int{"": 9, "gone": 9}, []string{"", "gone"}},
		"no skew: nothing is required": {0, map[string]int{"a": 9}, nil},
	} {
		tally := scheduler.NewTally("rack", tt.skew, []string{"a", "b", "", "b"})
		for rack, pods := range tt.pods {
			tally.Add(rack, pods)
		}
		var refused []string
		for _, rack := range []string{"", "a", "b", "gone"} {
			if tally.Refuses(inRack(rack)) {
				refused = append(refused, rack)
			}
		}
		if !slices.Equal(refused, tt.refused) {
			t.Errorf("%s: racks %q are refused, want %q", name, refused, tt.refused)
		}
	}
}

func TestATallyIsClonedWithItsCounts(t *testing.T) {
	t.Parallel()
	tally := scheduler.NewTally("rack", 1, []string{"a", "b"})
	tally.Add("b", 1)
	next := tally.Clone()
	next.Add("a", 2)
	if !next.Refuses(inRack("a")) || next.Refuses(inRack("b")) {
		t.Error("the clone does not count what was added to it")
	}
	if tally.Refuses(inRack("a")) || !tally.Refuses(inRack("b")) {
		t.Error("what was added to the clone counts in the original")
	}
	if none := scheduler.NewTally("rack", 0, []string{"a"}); none.Clone() != nil {
		t.Error("where nothing is required, the clone requires something")
	}
}

// The weights of all matching selectors add up.
func TestPreferencesAddUp(t *testing.T) {
	t.Parallel()
	var prefers scheduler.Preferences
	for selector, weight := range map[string]int{"rack in (a,b)": 10, "rack=a": 1, "rack": 100} {
		if err := prefers.Prefer(selector, weight); err != nil {
			t.Fatal(err)
		}
	}
	if err := prefers.Prefer("rack in (", 1000); err == nil {
		t.Error("a selector that nobody can read is preferred")
	}
	for rack, want := range map[string]int{"a": 111, "b": 110, "c": 100} {
		if got := prefers.Score(inRack(rack)); got != want {
			t.Errorf("rack %s has score %d, want %d", rack, got, want)
		}
	}
	if got := prefers.Score(&node.View{}); got != 0 {
		t.Errorf("a node without a rack has score %d", got)
	}
}
