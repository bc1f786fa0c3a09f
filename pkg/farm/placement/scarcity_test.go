package placement_test

import (
	"maps"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/rcfarm/rcfarm/pkg/farm/placement"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/scheduler"
)

var (
	big   = placement.ShapeOf("zone=a", node.Claim{CPU: 4000, Memory: 1 << 30}, 0)
	small = placement.ShapeOf("zone=a", node.Claim{CPU: 10}, 0)
)

// The pauses between looks at all nodes grow to a maximum that depends on the number of nodes.
// Other shapes do not wait.
func TestPausesGrow(t *testing.T) {
	t.Parallel()
	for nodes, want := range map[int][]time.Duration{
		5:      {15, 15, 15},
		2500:   {15, 30, 30},
		10_000: {15, 30, 60, 120, 120},
	} {
		var s placement.Scarcity
		now := time.Unix(1_700_000_000, 0)
		for i, seconds := range want {
			if look := s.Begin(big, now, s.Mark()); !look.All {
				t.Fatalf("%d nodes: look %d is %+v", nodes, i, look)
			}
			pause := s.NoneFound(big, now, s.Mark(), nodes, scheduler.Reasons{scheduler.Resources: nodes})
			if pause != seconds*time.Second {
				t.Errorf("%d nodes: pause %d is %s, want %ds", nodes, i, pause, seconds)
			}
			early := s.Known(big, now.Add(pause-time.Second))
			if !early.None() || early.Wait != time.Second || early.Reasons[scheduler.Resources] != nodes {
				t.Errorf("%d nodes: before the end of pause %d: %+v", nodes, i, early)
			}
			if other := s.Known(small, now); !other.All {
				t.Errorf("another shape: %+v", other)
			}
			now = now.Add(pause)
		}
	}
}

// A shape is remembered for an hour after a pass asked for it. Within the hour its pauses go on.
// Later they start again.
func TestAShapeIsRememberedForAnHour(t *testing.T) {
	t.Parallel()
	for after, want := range map[time.Duration]time.Duration{
		time.Minute: 2 * placement.FirstPause, time.Hour: 2 * placement.FirstPause, time.Hour + 1: placement.FirstPause,
	} {
		var s placement.Scarcity
		now := time.Unix(1_700_000_000, 0)
		s.Begin(big, now, s.Mark())
		s.NoneFound(big, now, s.Mark(), 10_000, nil)
		now = now.Add(after)
		s.Begin(small, now, s.Mark())
		s.NoneFound(small, now, s.Mark(), 10_000, nil) // forgets shapes that no pass asks for
		s.Begin(big, now, s.Mark())
		if pause := s.NoneFound(big, now, s.Mark(), 10_000, nil); pause != want {
			t.Errorf("asked for again after %s: pause %s, want %s", after, pause, want)
		}
	}
}

// A node that has changed is looked at at once, and only once. A change during a look is for the next look.
func TestAChangedNodeIsLookedAtOnce(t *testing.T) {
	t.Parallel()
	var s placement.Scarcity
	now := time.Unix(1_700_000_000, 0)
	s.Changed([]string{"n1"}) // before the first look
	s.Begin(big, now, s.Mark())
	s.Changed([]string{"n2"})
	s.NoneFound(big, now, s.Mark(), 3, nil)
	s.Changed([]string{"n3"})
	look := s.Begin(big, now.Add(time.Second), s.Mark())
	nodes := slices.Sorted(maps.Keys(look.Nodes))
	if look.All || !slices.Equal(nodes, []string{"n2", "n3"}) || look.Wait != 14*time.Second {
		t.Errorf("after changes: %+v", look)
	}
	if got := look.Names([]string{"n1", "n3"}); !slices.Equal(got, []string{"n3"}) {
		t.Errorf("looks at %v", got)
	}
	if again := s.Begin(big, now.Add(2*time.Second), s.Mark()); !again.None() {
		t.Errorf("the same changes again: %+v", again)
	}
	s.Changed([]string{"n1"})
	s.Begin(big, now.Add(3*time.Second), s.Mark())
	s.Found(big)
	if after := s.Begin(big, now.Add(4*time.Second), s.Mark()); !after.All {
		t.Errorf("after the pods found nodes: %+v", after)
	}
	s.NoneFound(big, now, s.Mark(), 3, nil)
	if s.Reset(); !s.Known(big, now).All {
		t.Error("the shape is remembered after Reset")
	}
}

// After the pause one pod of a shape looks, and the others wait for its result.
func TestOnlyOnePodOfAShapeLooks(t *testing.T) {
	t.Parallel()
	var s placement.Scarcity
	now := time.Unix(1_700_000_000, 0)
	if first, second := s.Begin(big, now, s.Mark()), s.Begin(big, now, s.Mark()); !first.All || !second.All {
		t.Error("nothing is known of the shape, and a pod does not look at all nodes")
	}
	due := now.Add(s.NoneFound(big, now, s.Mark(), 3, nil))
	if first, second := s.Begin(big, due, s.Mark()), s.Begin(big, due, s.Mark()); !first.All || !second.None() {
		t.Errorf("first %+v, second %+v", first, second)
	}
}

// A node that gets capacity is looked at by the next look if its change was noted, otherwise within the longest pause.
// The snapshot of a look may be older than a change.
func TestFreedCapacityIsFound(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var s placement.Scarcity
		now := time.Unix(1_700_000_000, 0)
		nodes := []string{"n0", "n1", "n2"}
		changed := map[string]int{}                     // nodes whose change was noted since a look at them, by step
		hidden := time.Time{}                           // since when a node has had capacity without a noted change
		mark, snapshot := s.Mark(), map[string]int(nil) // what looks see
		fresh := func() { mark, snapshot = s.Mark(), maps.Clone(changed) }
		for step := range rapid.IntRange(1, 40).Draw(t, "steps") {
			now = now.Add(time.Duration(rapid.IntRange(0, 20).Draw(t, "seconds")) * time.Second)
			switch name := rapid.SampledFrom(nodes).Draw(t, "node"); rapid.IntRange(0, 5).Draw(t, "what") {
			case 0:
				changed[name] = step + 1
				s.Changed([]string{name})
			case 1:
				if hidden.IsZero() {
					hidden = now
					fresh() // the snapshot has the node's capacity
				}
			case 2:
				fresh()
			default:
				known := s.Known(big, now)
				look := s.Begin(big, now, mark)
				if look.All != known.All || look.None() != known.None() {
					t.Fatalf("known %+v, begun %+v", known, look)
				}
				for name, at := range snapshot {
					if changed[name] == at && !slices.Contains(look.Names(nodes), name) {
						t.Fatalf("%s has changed and is not looked at: %+v", name, look)
					}
				}
				if !look.All && !hidden.IsZero() && now.Sub(hidden) >= 2*time.Minute {
					t.Fatalf("a node has had capacity for %s, and not all nodes are looked at: %+v",
						now.Sub(hidden), look)
				}
				maps.DeleteFunc(changed, func(name string, at int) bool { return snapshot[name] == at })
				if look.All {
					hidden = time.Time{}
					s.NoneFound(big, now, mark, rapid.SampledFrom([]int{3, 10_000}).Draw(t, "size"), nil)
				}
			}
		}
	})
}

// A node that changes after the snapshot of a look is looked at by the next look, even if this is only the second look.
func TestAChangeAfterTheSnapshotIsForTheNextLook(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_700_000_000, 0)
	for name, change := range map[string]func(*placement.Scarcity){
		"a node":     func(s *placement.Scarcity) { s.Changed([]string{"n1"}) },
		"everything": func(s *placement.Scarcity) { s.Reset() },
	} {
		for _, before := range []int{0, 1} { // looks at all nodes
			var s placement.Scarcity
			s.Changed([]string{"n3"})
			for range before {
				s.Begin(big, now, s.Mark())
				s.NoneFound(big, now, s.Mark(), 3, nil)
			}
			mark := s.Mark()
			change(&s)
			if look := s.Begin(big, now, mark); look.All {
				s.NoneFound(big, now, mark, 3, nil)
			}
			look := s.Begin(big, now.Add(time.Second), s.Mark())
			if !slices.Contains(look.Names([]string{"n1", "n2"}), "n1") {
				t.Errorf("%s, %d looks before: %+v", name, before, look)
			}
			if look := s.Begin(big, now.Add(2*time.Second), s.Mark()); !look.None() && !look.All {
				t.Errorf("%s, %d looks before: looked at again: %+v", name, before, look)
			}
		}
	}
}

// A change that one look has seen stays seen, although a look with an older snapshot ends later.
func TestALookWithAnOlderSnapshotKeepsWhatWasSeen(t *testing.T) {
	t.Parallel()
	var s placement.Scarcity
	now := time.Unix(1_700_000_000, 0)
	older := s.Mark()
	s.Changed([]string{"n1"})
	s.Begin(big, now, s.Mark())
	s.Begin(big, now, older)
	s.NoneFound(big, now, older, 3, nil)
	if look := s.Begin(big, now.Add(time.Second), s.Mark()); !look.None() {
		t.Errorf("%+v", look)
	}
}
