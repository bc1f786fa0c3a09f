package looks_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/rcfarm/rcfarm/pkg/farm/looks"
)

// A look is spared only where the last one went well and has read every index since, nobody else asked for one, and none is due.
func TestALookThatWouldFindNothingIsSpared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		look := func() *looks.Looks {
			l := &looks.Looks{}
			l.Begin()
			l.Ended(map[string]uint64{"web": 5, "old": 7})
			return l
		}
		expect := func(what string, l *looks.Looks, now map[string]uint64, want bool, wantLeft time.Duration) {
			t.Helper()
			if idle, left := l.Idle(now); idle != want || left != wantLeft {
				t.Errorf("%s: spared %t, the next one due after %s; want %t, %s", what, idle, left, want, wantLeft)
			}
		}
		now := func(web, old uint64) map[string]uint64 { return map[string]uint64{"web": web, "old": old} }
		expect("nothing was looked at", &looks.Looks{}, now(5, 7), false, 0)
		expect("nothing has moved", look(), now(5, 7), true, 0)
		expect("an older index is heard late", look(), now(4, 6), true, 0)
		expect("one has moved", look(), now(6, 7), false, 0)
		expect("one that was not read has moved", look(), map[string]uint64{"web": 5, "new": 1}, false, 0)

		l := look()
		l.Heard("web", 6)
		expect("one has moved, before the watch tells", l, now(5, 7), false, 0)
		l.Begin()
		l.Ended(now(6, 7))
		expect("and was read", l, now(5, 7), true, 0)
		l = look()
		l.Ask()
		expect("somebody asked", l, now(5, 7), false, 0)
		l.Begin()
		expect("a look that has not ended, or failed", l, now(5, 7), false, 0)
		l = look()
		l.Again(time.Second)
		<-time.After(400 * time.Millisecond)
		expect("one is due later", l, now(5, 7), true, 600*time.Millisecond)
		<-time.After(600 * time.Millisecond)
		expect("one is due", l, now(5, 7), false, 0)
	})
}
