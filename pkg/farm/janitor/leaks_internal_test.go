package janitor

import (
	"slices"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// A share is a leak if it had no intent at every look at its node for a while.
func TestASuspectIsConfirmedAfterAWhile(t *testing.T) {
	t.Parallel()
	at := func(name string, i int) store.At {
		return store.At{Node: name, Identity: pod.Identity{RCID: "rc", Role: "main", Index: i}}
	}
	start := time.Unix(1_700_000_000, 0)
	s := suspects{}
	both := []string{"n1", "n2"}
	for i, step := range []struct {
		after  time.Duration
		looked []string
		found  []store.At
		want   []store.At
	}{
		{0, both, []store.At{at("n1", 0), at("n1", 1), at("n2", 2)}, nil},
		{29 * time.Second, both, []store.At{at("n1", 0), at("n2", 2)}, nil}, // n1's second share has an intent
		// It has none again, and its time starts again.
		{30 * time.Second, []string{"n1"}, []store.At{at("n1", 0), at("n1", 1)}, []store.At{at("n1", 0)}},
		{40 * time.Second, both, []store.At{at("n2", 2)}, []store.At{at("n2", 2)}},
		{50 * time.Second, both, []store.At{at("n1", 0)}, nil},
	} {
		got := s.confirm(step.looked, step.found, start.Add(step.after), 30*time.Second)
		if !slices.Equal(got, step.want) {
			t.Errorf("step %d: %v, want %v", i, got, step.want)
		}
	}
	if len(s) != 1 {
		t.Errorf("suspects left: %v", s)
	}
}

// Only the record of a living node shows that the node does not run a pod.
func TestANodeItselfSaysThatItDoesNotRunAPod(t *testing.T) {
	t.Parallel()
	id := pod.Identity{RCID: "rc", Role: "main"}
	for name, tt := range map[string]struct {
		v    *node.View
		want bool
	}{
		"it runs another pod": {&node.View{Alive: true, Node: node.Node{
			Epoch: "now", Orphans: []pod.Orphan{{Identity: pod.Identity{RCID: "other", Role: "main"}}},
		}}, true},
		"it runs it": {&node.View{Alive: true, Node: node.Node{
			Epoch: "now", Orphans: []pod.Orphan{{Identity: id}},
		}}, false},
		"it is dead":                {&node.View{Node: node.Node{Epoch: "now"}}, false},
		"it spoke in another epoch": {&node.View{Alive: true, Node: node.Node{Epoch: "then"}}, false},
		"its pages were not read": {
			&node.View{Alive: true, OrphansUnread: true, Node: node.Node{Epoch: "now"}}, false,
		},
		"there is no record of it": {nil, false},
	} {
		if got := shareless(tt.v, "now", id); got != tt.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}
