package preparer

import (
	"slices"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/pod"
)

var allStates = []PodState{Behind, Up, Spent, Held, Stopping, Stopped, Collected}

// The table is what the promises ask for, whatever comes in which order.
func TestStatesThatFollow(t *testing.T) {
	t.Parallel()
	seen := map[step]bool{}
	reached := map[PodState]bool{}
	for _, s := range steps {
		key := step{from: s.from, on: s.on}
		if seen[key] {
			t.Errorf("%s, %s: there are two rows", s.from, s.on)
		}
		seen[key] = true
		if s.why == "" {
			t.Errorf("%s, %s: it does not say why", s.from, s.on)
		}
		if s.from != s.to {
			reached[s.to] = true
		}
		ended := func(s PodState) bool { return s == Stopped || s == Collected }
		switch {
		case s.to == Stopping && s.from != Stopping && s.on != ToldToStop:
			t.Errorf("%s stops because it is %s; only an intent may have it stopped (P4)", s.from, s.on)
		case ended(s.to) && !ended(s.from) && (s.from != Stopping || s.on != Buried):
			t.Errorf("%s is stopped because it is %s; only what is on the disk confirms a stop (P5)", s.from, s.on)
		case (s.from == Stopping || ended(s.from)) && s.to != Stopping && !ended(s.to) && s.on != ToldToRun:
			t.Errorf("%s runs again because it is %s; only an intent may revive it", s.from, s.on)
		case s.to.up() && !s.from.up() && s.on != Launched && s.on != Ran:
			t.Errorf("%s is up because it is %s", s.from, s.on)
		case s.from == Held && s.to != Held && s.on != Freed && s.on != ToldToStop:
			t.Errorf("what is held is let go because it is %s", s.on)
		}
	}
	for _, s := range allStates {
		if !reached[s] {
			t.Errorf("nothing leads to %s", s)
		}
		for _, on := range []Event{ToldToRun, ToldToStop, Replaced} { // what may come at any time
			if _, ok := s.After(on); !ok {
				t.Errorf("%s, and %s: there is no row", s, on)
			}
		}
	}
	if next, ok := Stopped.After(Launched); ok || next != Stopped {
		t.Errorf("what is stopped is %s when it is launched", next)
	}
}

// A restart goes on from what is on the disk, and a state that a restart finds is not ahead of the one before it.
func TestFirstState(t *testing.T) {
	t.Parallel()
	runs := sampleRecord(0)
	stops := runs.accept(pod.Intent{Identity: ident(0), State: pod.Stopped, Revision: 9})
	for want, rec := range map[PodState]Record{Behind: runs, Stopping: stops, Stopped: stops.buried(time.Now())} {
		if got := firstState(&rec); got != want || !slices.Contains(allStates, got) {
			t.Errorf("%s, want %s", got, want)
		}
	}
}
