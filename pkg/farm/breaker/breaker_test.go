package breaker

import (
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/pod"
)

// stopsOfMany returns stops of the first n pods of a controller.
func stopsOfMany(rcID string, n int, at time.Time) (out []Stop) {
	for i := range n {
		out = append(out, Stop{At: at, Pod: pod.Identity{RCID: rcID, Role: "main", Index: i}})
	}
	return out
}

// Each pod counts once, from its last stop, even if it was stopped several times.
func TestTheBreakerCountsFromTheLastStop(t *testing.T) {
	t.Parallel()
	s, now := NewStops(), time.Now()
	at := func(later time.Duration) Moment { return Moment{Wall: now.Add(later), Steady: now.Add(later)} }
	s.SetPods("b", 100)
	for _, try := range []time.Duration{0, 20 * time.Second} {
		if n, _, ok := s.Admit(at(try), "a", 100, stopsOfMany("a", 12, now.Add(try))); n != 12 || !ok {
			t.Fatalf("after %s: %d stops, admitted %t", try, n, ok)
		}
	}
	s.Add(at(25*time.Second), stopsOfMany("a", 12, now)) // the same stops with an older time
	s.Forget("a")
	s.SetPods("b", 3)
	later := at(Window + 10*time.Second) // more than a minute after the first stops
	if n, owned, ok := s.Admit(later, "c", 9, stopsOfMany("c", 3, later.Wall)); n != 15 || owned != 27 || ok {
		t.Errorf("%d of %d stops, admitted %t", n, owned, ok)
	}
	later = at(Window + 21*time.Second)
	if n, owned, ok := s.Admit(later, "c", 9, stopsOfMany("c", 3, later.Wall)); n != 3 || owned != 15 || !ok {
		t.Errorf("%d of %d stops, admitted %t", n, owned, ok)
	}
}

// A farm's wall clock is an hour ahead while it stops pods, and is then corrected. The stops count for a minute only,
// whether the placements keep the wrong time or get a correct one.
func TestTheBreakerUsesTheMonotonicClock(t *testing.T) {
	t.Parallel()
	for name, rewritten := range map[string]bool{
		"the placements keep the wrong time": false, "the placements get a correct time": true,
	} {
		s, now := NewStops(), time.Now()
		s.SetPods("b", 28)
		wrong := Moment{Wall: now.Add(time.Hour), Steady: now}
		if n, _, ok := s.Admit(wrong, "a", 0, stopsOfMany("a", 12, wrong.Wall)); n != 12 || !ok {
			t.Fatalf("%s: %d stops, admitted %t", name, n, ok)
		}
		right := func(after time.Duration) Moment { return Moment{Wall: now.Add(after), Steady: now.Add(after)} }
		asked := wrong.Wall
		if rewritten {
			asked = right(30 * time.Second).Wall
		}
		s.Add(right(30*time.Second), stopsOfMany("a", 12, asked))
		soon := right(40 * time.Second)
		if n, _, _ := s.Admit(soon, "c", 30, stopsOfMany("c", 1, soon.Wall)); n != 13 {
			t.Errorf("%s: %d stops count within the minute, want 13", name, n)
		}
		s.Add(right(10*time.Minute), stopsOfMany("a", 12, asked)) // the nodes have not confirmed the stops yet
		later := right(10 * time.Minute)
		if n, _, ok := s.Admit(later, "d", 19, stopsOfMany("d", 9, later.Wall)); n != 9 || !ok {
			t.Errorf("%s: ten minutes later %d stops count, want 9; admitted %t", name, n, ok)
		}
	}
}

// A new owner counts the stops that the previous owner asked for within the last minute or, by a wrong clock, in the
// future. It does not count older stops.
func TestTheBreakerCountsStopsOfThePreviousOwner(t *testing.T) {
	t.Parallel()
	now := time.Now()
	at := func(later time.Duration) Moment { return Moment{Wall: now.Add(later), Steady: now.Add(later)} }
	for name, c := range map[string]struct {
		asked time.Duration
		want  int
	}{
		"a moment ago":               {-time.Second, 12},
		"just a minute ago":          {-Window, 12},
		"longer ago":                 {-Window - 1, 0},
		"in the future":              {time.Hour, 12},
		"in the very distant future": {100 * 365 * 24 * time.Hour, 12},
	} {
		s := NewStops()
		s.Add(at(0), stopsOfMany("a", 12, now.Add(c.asked)))
		if n, _, _ := s.Admit(at(Window), "b", 100, nil); n != c.want {
			t.Errorf("%s: %d stops count after a minute, want %d", name, n, c.want)
		}
		s.Add(at(Window+1), stopsOfMany("a", 12, now.Add(c.asked)))
		if n, _, _ := s.Admit(at(Window+1), "b", 100, nil); n != 0 {
			t.Errorf("%s: %d stops count after more than a minute, want none", name, n)
		}
	}
}

// After rcctl farm resume the stops so far do not count any more. Later stops do.
func TestStopsBeforeAResumeDoNotCount(t *testing.T) {
	t.Parallel()
	s, now := NewStops(), Now()
	s.SetPods("b", 28)
	stops := stopsOfMany("a", 12, now.Wall)
	s.Add(now, stops)
	s.Reset()
	s.Add(now, stops) // the nodes have not confirmed the stops yet
	if n, _, ok := s.Admit(now, "c", 19, stopsOfMany("c", 9, now.Wall)); n != 9 || !ok {
		t.Errorf("%d stops count after the reset, want 9; admitted %t", n, ok)
	}
	again := Moment{Wall: now.Wall.Add(time.Second), Steady: now.Steady.Add(time.Second)}
	if n, _, _ := s.Admit(again, "a", 0, stopsOfMany("a", 12, again.Wall)); n != 21 {
		t.Errorf("%d stops count, want the 9 and 12 new ones", n)
	}
}
