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

// The pauses between looks at all nodes grow, up to what a look costs; other shapes know nothing of it.
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
			pause := s.Short(big, now, s.Mark(), nodes, scheduler.Reasons{scheduler.Resources: nodes})
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

// A shape is remembered for an hour after somebody asked for it: then its pauses go on where they were, later they begin anew.
func TestAShapeIsRememberedForAnHour(t *testing.T) {
	t.Parallel()
	for after, want := range map[time.Duration]time.Duration{
		time.Minute: 2 * placement.FirstPause, time.Hour: 2 * placement.FirstPause, time.Hour + 1: placement.FirstPause,
	} {
		var s placement.Scarcity
		now := time.Unix(1_700_000_000, 0)
		s.Begin(big, now, s.Mark())
		s.Short(big, now, s.Mark(), 10_000, nil)
		now = now.Add(after)
		s.Begin(small, now, s.Mark())
		s.Short(small, now, s.Mark(), 10_000, nil) // which forgets what nobody asks for
		s.Begin(big, now, s.Mark())
		if pause := s.Short(big, now, s.Mark(), 10_000, nil); pause != want {
			t.Errorf("asked for again after %s: it pauses for %s, want %s", after, pause, want)
		}
	}
}

// What happens to a node is looked at once, and at once; what happens during a look is for the next one.
func TestNewsIsLookedAtOnce(t *testing.T) {
	t.Parallel()
	var s placement.Scarcity
	now := time.Unix(1_700_000_000, 0)
	s.Changed([]string{"n1"}) // nobody has looked yet
	s.Begin(big, now, s.Mark())
	s.Changed([]string{"n2"})
	s.Short(big, now, s.Mark(), 3, nil)
	s.Changed([]string{"n3"})
	look := s.Begin(big, now.Add(time.Second), s.Mark())
	if look.All || !slices.Equal(slices.Sorted(maps.Keys(look.Nodes)), []string{"n2", "n3"}) || look.Wait != 14*time.Second {
		t.Errorf("after news: %+v", look)
	}
	if got := look.Names([]string{"n1", "n3"}); !slices.Equal(got, []string{"n3"}) {
		t.Errorf("looks at %v", got)
	}
	if again := s.Begin(big, now.Add(2*time.Second), s.Mark()); !again.None() {
		t.Errorf("the same news again: %+v", again)
	}
	s.Changed([]string{"n1"})
	s.Begin(big, now.Add(3*time.Second), s.Mark())
	s.Found(big)
	if after := s.Begin(big, now.Add(4*time.Second), s.Mark()); !after.All {
		t.Errorf("after room was found: %+v", after)
	}
	s.Short(big, now, s.Mark(), 3, nil)
	if s.Reset(); !s.Known(big, now).All {
		t.Error("it is remembered")
	}
}

// When the pause is over one pod of a shape looks, and the others wait for what comes of it.
func TestOneOfAShapeLooks(t *testing.T) {
	t.Parallel()
	var s placement.Scarcity
	now := time.Unix(1_700_000_000, 0)
	if first, second := s.Begin(big, now, s.Mark()), s.Begin(big, now, s.Mark()); !first.All || !second.All {
		t.Error("nothing was known, and somebody did not look")
	}
	due := now.Add(s.Short(big, now, s.Mark(), 3, nil))
	if first, second := s.Begin(big, due, s.Mark()), s.Begin(big, due, s.Mark()); !first.All || !second.None() {
		t.Errorf("first %+v, second %+v", first, second)
	}
}

// Room is never overlooked for longer than the longest pause, and never for a moment on a node of which there was news: whatever
// happens, each node is looked at in time after it got room. Looks see the nodes of a snapshot that may be older than news.
func TestRoomIsFound(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var s placement.Scarcity
		now := time.Unix(1_700_000_000, 0)
		nodes := []string{"n0", "n1", "n2"}
		told, hidden := map[string]int{}, time.Time{}   // in which step nodes got room since they were looked at, and since when one has that nobody told of
		mark, snapshot := s.Mark(), map[string]int(nil) // what looks see
		fresh := func() { mark, snapshot = s.Mark(), maps.Clone(told) }
		for step := range rapid.IntRange(1, 40).Draw(t, "steps") {
			now = now.Add(time.Duration(rapid.IntRange(0, 20).Draw(t, "seconds")) * time.Second)
			switch name := rapid.SampledFrom(nodes).Draw(t, "node"); rapid.IntRange(0, 5).Draw(t, "what") {
			case 0:
				told[name] = step + 1
				s.Changed([]string{name})
			case 1:
				if hidden.IsZero() {
					hidden = now
					fresh() // by which it is seen
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
					if told[name] == at && !slices.Contains(look.Names(nodes), name) {
						t.Fatalf("%s, which has room as was told, is not looked at: %+v", name, look)
					}
				}
				if !look.All && !hidden.IsZero() && now.Sub(hidden) >= 2*time.Minute {
					t.Fatalf("there has been room since %s, and not all nodes are looked at: %+v", now.Sub(hidden), look)
				}
				maps.DeleteFunc(told, func(name string, at int) bool { return snapshot[name] == at })
				if look.All {
					hidden = time.Time{}
					s.Short(big, now, mark, rapid.SampledFrom([]int{3, 10_000}).Draw(t, "size"), nil)
				}
			}
		}
	})
}

// A node that got room after the snapshot of a look is looked at by the next one, also where nobody had looked before.
func TestRoomThatALookCouldNotSee(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_700_000_000, 0)
	for name, told := range map[string]func(*placement.Scarcity){
		"a node":     func(s *placement.Scarcity) { s.Changed([]string{"n1"}) },
		"everything": func(s *placement.Scarcity) { s.Reset() },
	} {
		for _, before := range []int{0, 1} { // looks at all nodes
			var s placement.Scarcity
			s.Changed([]string{"n3"})
			for range before {
				s.Begin(big, now, s.Mark())
				s.Short(big, now, s.Mark(), 3, nil)
			}
			mark := s.Mark()
			told(&s)
			if look := s.Begin(big, now, mark); look.All {
				s.Short(big, now, mark, 3, nil)
			}
			if look := s.Begin(big, now.Add(time.Second), s.Mark()); !slices.Contains(look.Names([]string{"n1", "n2"}), "n1") {
				t.Errorf("%s, %d looks before: %+v", name, before, look)
			}
			if look := s.Begin(big, now.Add(2*time.Second), s.Mark()); !look.None() && !look.All {
				t.Errorf("%s, %d looks before: looked at again: %+v", name, before, look)
			}
		}
	}
}

// What one look has seen is no news again because another one, of an older snapshot, ends later.
func TestAnOlderLook(t *testing.T) {
	t.Parallel()
	var s placement.Scarcity
	now := time.Unix(1_700_000_000, 0)
	older := s.Mark()
	s.Changed([]string{"n1"})
	s.Begin(big, now, s.Mark())
	s.Begin(big, now, older)
	s.Short(big, now, older, 3, nil)
	if look := s.Begin(big, now.Add(time.Second), s.Mark()); !look.None() {
		t.Errorf("%+v", look)
	}
}
