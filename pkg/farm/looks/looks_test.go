package looks_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/rcfarm/rcfarm/pkg/farm/looks"
)

// A look is skipped only if the last look succeeded and read the latest bell, nothing else has asked for a look, and no
// look is due.
func TestALookThatWouldFindNothingIsSpared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		look := func() *looks.Looks {
			l := &looks.Looks{}
			l.Begin()
			l.Ended(5)
			return l
		}
		expect := func(what string, l *looks.Looks, bell uint64, want bool, wantLeft time.Duration) {
			t.Helper()
			if idle, left := l.Idle(bell); idle != want || left != wantLeft {
				t.Errorf("%s: spared %t, the next one due after %s; want %t, %s", what, idle, left, want, wantLeft)
			}
		}
		expect("no look before", &looks.Looks{}, 5, false, 0)
		expect("the bell has not rung", look(), 5, true, 0)
		expect("the watch is behind", look(), 4, true, 0)
		expect("the bell has rung", look(), 6, false, 0)

		l := look()
		l.Ask()
		expect("Ask was called", l, 5, false, 0)
		l.Begin()
		expect("the look failed or has not ended", l, 5, false, 0)
		l = look()
		l.Again(time.Second)
		<-time.After(400 * time.Millisecond)
		expect("a look is due later", l, 5, true, 600*time.Millisecond)
		<-time.After(600 * time.Millisecond)
		expect("a look is due", l, 5, false, 0)
	})
}

// After a long look the unit rests for as long, but at most RestMost. After a short look it does not rest.
func TestAUnitRestsAfterALongLook(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for took, want := range map[time.Duration]time.Duration{
			looks.RestFrom - 1: 0, looks.RestFrom: looks.RestFrom, time.Second: time.Second,
			20 * time.Minute: looks.RestMost,
		} {
			l := &looks.Looks{}
			if l.Took(took); l.Rest() != want {
				t.Errorf("after a look of %s the unit rests for %s, want %s", took, l.Rest(), want)
			}
			l.Ask()
			l.Begin()
			<-time.After(want / 2)
			if left := want - want/2; l.Rest() != left {
				t.Errorf("%s are left, want %s", l.Rest(), left)
			}
			if <-time.After(want); l.Rest() != 0 {
				t.Errorf("%s are left", l.Rest())
			}
		}
	})
}
