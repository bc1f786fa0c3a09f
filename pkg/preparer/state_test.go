package preparer

import (
	"slices"
	"testing"

	"github.com/rcfarm/rcfarm/pkg/pod"
)

var allStates = []PodState{Behind, Up, Spent, Suspended, Stopping, Stopped, Collected}

// The table is what the promises ask for, whatever comes in which order.
func TestStatesThatFollow(t *testing.T) {
	t.Parallel()
	rows := map[[2]string]int{}
	for _, row := range steps {
		for _, from := range row.from {
			rows[[2]string{string(from), string(row.on)}]++
		}
	}
	for key, n := range rows {
		if n > 1 {
			t.Errorf("%v: there are %d rows", key, n)
		}
	}
	reached := map[PodState]bool{}
	over := func(s PodState) bool { return s == Stopped || s == Collected }
	for _, from := range allStates {
		for _, on := range []Event{ToldToRun, ToldToStop, Replaced, Launched, Ran, Barred, Freed, Buried, Cleared, Littered} {
			to, ok := from.After(on)
			reached[to] = reached[to] || to != from
			switch {
			case !ok && (on == ToldToRun || on == ToldToStop || on == Replaced):
				t.Errorf("%s, and %s: it may come at any time, and there is no row", from, on)
			case !ok && to != from:
				t.Errorf("%s is %s because of what cannot be", from, to)
			case to == Stopping && from != Stopping && on != ToldToStop:
				t.Errorf("%s stops because it is %s; only an intent may have it stopped (P4)", from, on)
			case over(to) && !over(from) && (from != Stopping || on != Buried):
				t.Errorf("%s is stopped because it is %s; only what is on the disk confirms a stop (P5)", from, on)
			case (from == Stopping || over(from)) && to != Stopping && !over(to) && on != ToldToRun:
				t.Errorf("%s runs again because it is %s; only an intent may revive it", from, on)
			case to.up() && !from.up() && on != Launched && on != Ran:
				t.Errorf("%s is up because it is %s", from, on)
			case from == Suspended && to != Suspended && on != Freed && on != ToldToStop:
				t.Errorf("what is held is let go because it is %s", on)
			}
		}
	}
	for _, s := range allStates {
		if !reached[s] {
			t.Errorf("nothing leads to %s", s)
		}
	}
}

// A restart goes on from what is on the disk, and a state that a restart finds is not ahead of the one before it.
func TestFirstState(t *testing.T) {
	t.Parallel()
	runs := sampleRecord(0)
	stops := runs.accept(pod.Intent{Identity: ident(0), State: pod.Stopped, Revision: 9})
	for want, rec := range map[PodState]Record{Behind: runs, Stopping: stops, Stopped: stops.buried(thisInstant())} {
		if got := firstState(&rec); got != want || !slices.Contains(allStates, got) {
			t.Errorf("%s, want %s", got, want)
		}
	}
}
