package looks_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/rcfarm/rcfarm/pkg/farm/looks"
)

// A look is spared only where the last one went well and has read the bell since, nobody else asked for one, and none is due.
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
		expect("nothing was looked at", &looks.Looks{}, 5, false, 0)
		expect("it has not rung", look(), 5, true, 0)
		expect("an older index is heard late", look(), 4, true, 0)
		expect("it has rung", look(), 6, false, 0)

		l := look()
		l.Ask()
		expect("somebody asked", l, 5, false, 0)
		l.Begin()
		expect("a look that has not ended, or failed", l, 5, false, 0)
		l = look()
		l.Again(time.Second)
		<-time.After(400 * time.Millisecond)
		expect("one is due later", l, 5, true, 600*time.Millisecond)
		<-time.After(600 * time.Millisecond)
		expect("one is due", l, 5, false, 0)
	})
}

// A look that took long is followed by a rest as long, but for a process that was paused; a short one by none.
func TestRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for took, want := range map[time.Duration]time.Duration{
			looks.RestFrom - 1: 0, looks.RestFrom: looks.RestFrom, time.Second: time.Second, 20 * time.Minute: looks.RestMost,
		} {
			l := &looks.Looks{}
			if l.Took(took); l.Rest() != want {
				t.Errorf("after a look of %s it rests for %s, want %s", took, l.Rest(), want)
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
