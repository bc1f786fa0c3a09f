package runner

import (
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/util/workqueue"

	"github.com/rcfarm/rcfarm/pkg/rollout"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// A look is spared only where the last one went well and knows record and bell as they are, nobody asked for one, and none is due.
func TestALookThatWouldSeeTheSameIsSpared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		queue := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[string]())
		defer queue.ShutDown()
		ended := func(c *carried, record, bell uint64) {
			c.looks.Begin()
			c.looks.Ended(map[string]uint64{recordKey: record, bellKey: bell})
		}
		look := func(again time.Duration) (*Runner, *carried) {
			c := &carried{}
			r := &Runner{
				queue: queue, carried: map[string]*carried{"web": c},
				known: known{records: map[string]*store.Rec[rollout.Record]{"web": {Index: 5}}, RolloutsSeen: store.RolloutsSeen{Bells: map[string]uint64{"web": 7}}},
			}
			ended(c, 5, 7)
			c.looks.Again(again)
			return r, c
		}
		expect := func(what string, r *Runner, c *carried, want bool, wantLeft time.Duration) {
			t.Helper()
			if idle, left := r.idle("web", c); idle != want || left != wantLeft {
				t.Errorf("%s: spared %t, the next one due after %s; want %t, %s", what, idle, left, want, wantLeft)
			}
		}
		r, c := look(0)
		expect("nothing has changed", r, c, true, 0)
		r.records["web"].Index = 6
		expect("the record has changed", r, c, false, 0)
		ended(c, 6, 7)
		expect("the change was its own", r, c, true, 0)
		r.Bells["web"] = 8
		expect("the bell has rung", r, c, false, 0)
		r, c = look(0)
		r.Ring("web", 8)
		expect("an owner of this farm has rung, before the watch tells", r, c, false, 0)
		r, c = look(0)
		r.want("web")
		expect("somebody asked", r, c, false, 0)
		c.looks.Begin()
		expect("a look that has not ended, or failed", r, c, false, 0)
		r, c = look(0)
		delete(r.records, "web")
		expect("the record is gone", r, c, false, 0)
		r, c = look(time.Second)
		<-time.After(400 * time.Millisecond)
		expect("one is due later", r, c, true, 600*time.Millisecond)
		<-time.After(600 * time.Millisecond)
		expect("one is due", r, c, false, 0)
	})
}
