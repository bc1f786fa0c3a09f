package preparer

import (
	"slices"
	"testing"

	"github.com/rcfarm/rcfarm/pkg/pod"
)

var allStates = []PodState{Behind, Up, Spent, Suspended, Stopping, Stopped, Collected}

// In any order of events, the table of states keeps the package's promises.
func TestTheTableOfStatesKeepsThePromises(t *testing.T) {
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
		for _, on := range []Event{
			RunAccepted, StopAccepted, Replaced, Launched, Ran, Barred, Freed, Buried, Cleared, Littered,
		} {
			to, ok := from.After(on)
			reached[to] = reached[to] || to != from
			switch {
			case !ok && (on == RunAccepted || on == StopAccepted || on == Replaced):
				t.Errorf("%s, and %s: the event may come at any time, and there is no row", from, on)
			case !ok && to != from:
				t.Errorf("%s becomes %s without a row", from, to)
			case to == Stopping && from != Stopping && on != StopAccepted:
				t.Errorf("%s stops because it is %s; only an intent may stop it (P4)", from, on)
			case over(to) && !over(from) && (from != Stopping || on != Buried):
				t.Errorf("%s is stopped because it is %s; only a tombstone on the disk confirms a stop (P5)", from, on)
			case (from == Stopping || over(from)) && to != Stopping && !over(to) && on != RunAccepted:
				t.Errorf("%s runs again because it is %s; only an intent may start it again", from, on)
			case to.up() && !from.up() && on != Launched && on != Ran:
				t.Errorf("%s is up because it is %s", from, on)
			case from == Suspended && to != Suspended && on != Freed && on != StopAccepted:
				t.Errorf("a suspended pod becomes %s because it is %s", to, on)
			}
		}
	}
	for _, s := range allStates {
		if !reached[s] {
			t.Errorf("no row leads to %s", s)
		}
	}
}

// After a restart, the state of a pod is derived from its record.
func TestStateAfterARestartFollowsFromTheRecord(t *testing.T) {
	t.Parallel()
	runs := sampleRecord(0)
	stops := runs.accept(pod.Intent{Identity: ident(0), State: pod.Stopped, Revision: 9})
	for want, rec := range map[PodState]Record{Behind: runs, Stopping: stops, Stopped: stops.buried(thisInstant())} {
		if got := firstState(&rec); got != want || !slices.Contains(allStates, got) {
			t.Errorf("%s, want %s", got, want)
		}
	}
}
