package farm

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/rcfarm/rcfarm/pkg/store"
)

// A look is spared only where the last one went well and has seen every bell since, nobody else asked for one, and none is due.
func TestALookThatWouldFindNothingIsSpared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		seen := store.Companion{RCID: "old", Marks: store.Marks{Bell: 7}}
		look := func(alone bool) *looks {
			l := &looks{}
			l.begin()
			l.ended("web", &store.Head{BellIndex: 5}, []store.Companion{seen}, alone)
			return l
		}
		expect := func(what string, l *looks, rung map[string]uint64, want bool, wantLeft time.Duration) {
			t.Helper()
			if idle, left := l.idle("web", rung); idle != want || left != wantLeft {
				t.Errorf("%s: spared %t, the next one due after %s; want %t, %s", what, idle, left, want, wantLeft)
			}
		}
		rung := func(own, companion uint64) map[string]uint64 { return map[string]uint64{"web": own, "old": companion} }
		expect("nothing was looked at", &looks{}, rung(5, 7), false, 0)
		expect("nothing has rung", look(false), rung(5, 7), true, 0)
		expect("an older ring is heard late", look(false), rung(4, 6), true, 0)
		expect("its bell has rung", look(true), rung(6, 7), false, 0)
		expect("a companion's bell has rung", look(false), rung(5, 8), false, 0)
		expect("a companion's bell has rung, which makes no difference", look(true), rung(5, 8), true, 0)
		expect("a companion that was not seen has rung", look(false), map[string]uint64{"web": 5, "new": 1}, false, 0)
		expect("its bell is gone", look(false), rung(0, 7), false, 0)

		l := look(true)
		l.heard(6)
		expect("the runner has rung, before the watch tells", l, rung(5, 7), false, 0)
		l = look(true)
		l.ask()
		expect("somebody asked", l, rung(5, 7), false, 0)
		l.begin()
		expect("a look that has not ended, or failed", l, rung(5, 7), false, 0)
		l = look(true)
		l.again(time.Second)
		<-time.After(400 * time.Millisecond)
		expect("one is due later", l, rung(5, 7), true, 600*time.Millisecond)
		<-time.After(600 * time.Millisecond)
		expect("one is due", l, rung(5, 7), false, 0)
	})
}
