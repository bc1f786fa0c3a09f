package farm

import (
	"slices"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// A share is a leak once nothing has explained it for a while, at each look at its node.
func TestSuspectsAreConfirmed(t *testing.T) {
	t.Parallel()
	at := func(name string, i int) store.At {
		return store.At{Node: name, Identity: pod.Identity{RCID: "rc", Role: "main", Index: i}}
	}
	start := time.Unix(1_700_000_000, 0)
	s := suspects{}
	both := map[string]bool{"n1": true, "n2": true}
	for i, step := range []struct {
		after  time.Duration
		looked map[string]bool
		found  []store.At
		want   []store.At
	}{
		{0, both, []store.At{at("n1", 0), at("n1", 1), at("n2", 2)}, nil},
		{29 * time.Second, both, []store.At{at("n1", 0), at("n2", 2)}, nil},                                            // n1's second was of a moment
		{30 * time.Second, map[string]bool{"n1": true}, []store.At{at("n1", 0), at("n1", 1)}, []store.At{at("n1", 0)}}, // and begins anew
		{40 * time.Second, both, []store.At{at("n2", 2)}, []store.At{at("n2", 2)}},
		{50 * time.Second, both, []store.At{at("n1", 0)}, nil},
	} {
		if got := s.confirm(step.looked, step.found, start.Add(step.after), 30*time.Second); !slices.Equal(got, step.want) {
			t.Errorf("step %d: %v, want %v", i, got, step.want)
		}
	}
	if len(s) != 1 {
		t.Errorf("suspects left: %v", s)
	}
}

// Whether a node runs a pod it must have said itself.
func TestShareless(t *testing.T) {
	t.Parallel()
	id := pod.Identity{RCID: "rc", Role: "main"}
	for name, tt := range map[string]struct {
		v    *node.View
		want bool
	}{
		"it runs nothing of it":    {&node.View{Alive: true, Node: node.Node{Epoch: "now", Orphans: []pod.Orphan{{Identity: pod.Identity{RCID: "other", Role: "main"}}}}}, true},
		"it runs it":               {&node.View{Alive: true, Node: node.Node{Epoch: "now", Orphans: []pod.Orphan{{Identity: id}}}}, false},
		"it is dead":               {&node.View{Node: node.Node{Epoch: "now"}}, false},
		"it said so before":        {&node.View{Alive: true, Node: node.Node{Epoch: "then"}}, false},
		"its pages were not read":  {&node.View{Alive: true, OrphansUnread: true, Node: node.Node{Epoch: "now"}}, false},
		"there is no record of it": {nil, false},
	} {
		if got := shareless(tt.v, "now", id); got != tt.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}
