package rollout_test

import (
	"strings"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/rollout"
)

// A rollback waits while something blocks it, because the version that it removes must not continue to serve requests.
func TestARollbackWaitsForAnObstacle(t *testing.T) {
	w := traced(t)
	w.old(1, 4)
	w.must(t, w.deploy(rollout.Knobs{}, 2, 4))
	for range 5 {
		w.round()
	}
	w.sick["d1"] = true
	for _, p := range w.pods {
		p.available = p.digest != "d1"
		p.lost = p.lost || !p.available
	}
	w.sick["d2"] = true
	w.stuckGoingBack(t, "web-r1")
	w.sick["d1"] = false
	w.settles(t, rollout.Failed)
	if d := w.ended; d.InEffect != 1 || !strings.Contains(d.Record.Reason, "web-r1 has all pods again") {
		t.Errorf("%+v", d)
	}
	w.has(t, map[string]int{web1: 4, web2: 0})
}

// stuckGoingBack lets the rollback run until it is stuck, and for a long time after that.
func (w *world) stuckGoingBack(t *testing.T, want string) {
	t.Helper()
	for range 2000 {
		w.calm = true
		w.now = w.now.Add(time.Second)
		for _, id := range w.ids() {
			w.own(id)
		}
		w.nodes(0.7)
		if d := w.run(); d.Ended {
			t.Fatalf("the rollback has ended: %+v", d.Record)
		}
	}
	if w.record.State != rollout.RollingBack || !strings.Contains(w.record.Stuck, want) {
		t.Fatalf("%s, stuck %q", w.record.State, w.record.Stuck)
	}
}

// A rollback without a surge moves although the old version had fewer pods than the minimum of the new one.
func TestARollbackToFewerPodsNeedsNoSurge(t *testing.T) {
	w := traced(t)
	w.old(1, 4)
	w.must(t, w.deploy(rollout.Knobs{Strategy: rollout.ResourceUtilStrategy}, 2, 5))
	for len(w.podsOf(web2)) < 2 {
		w.round()
	}
	w.ask(rollout.RollbackVerb)
	if u := w.record.Update; u.Min != 3 || u.Surge != 0 {
		t.Errorf("%+v", u)
	}
	w.settles(t, rollout.Failed)
	w.has(t, map[string]int{web1: 4, web2: 0})
}

func TestAnInPlaceRollbackWaitsForAnObstacle(t *testing.T) {
	w := traced(t)
	w.old(1, 6)
	w.must(t, w.deployInPlace(rollout.Knobs{}, "d2", nil))
	for w.running("d2") < 2 {
		w.round()
	}
	w.sick["d1"], w.sick["d2"] = true, true
	w.stuckGoingBack(t, "pods of web-r1 run the new manifest and are available")
	w.sick["d1"] = false
	w.settles(t, rollout.Failed)
	if w.running("d1") != 6 {
		t.Errorf("%+v", w.ended)
	}
}

// The minimum of the former controller may be all its pods. Even then, a rollback in place changes one pod at a time.
// Afterwards the controller has its former minimum, also if the service was scaled during the rollback.
func TestInPlaceRollbackWithTheMinimumOfAll(t *testing.T) {
	for _, scaled := range []int{6, 4} {
		w := traced(t)
		w.old(1, 6)
		r := w.rcs[web1]
		r.MinAvailable = ptr(6)
		w.rcs[web1] = r
		w.must(t, w.deployInPlace(rollout.Knobs{Step: amount(2)}, "d2", func(next *rc.RC) { next.MinAvailable = nil }))
		for w.running("d2") < 4 {
			w.round()
		}
		w.ask(rollout.RollbackVerb)
		if scaled != 6 {
			w.rescale(scaled)
		}
		w.settles(t, rollout.Failed)
		if r := w.rcs[web1]; w.running("d1") != scaled || w.running("d2") > 0 || r.MinAvailable == nil ||
			*r.MinAvailable != 6 {
			t.Errorf("scaled to %d: %s, %+v", scaled, w.counts(), r)
		}
	}
}

// A rollback that an earlier version of rcfarm began has the minimum of the rollout. It still makes progress.
func TestARollbackOfAnEarlierVersionContinues(t *testing.T) {
	u := rollout.Update{Step: 1, Unavailable: 1, Min: 4}
	rec, obs := staged(rollout.ResourceUtilStrategy, rollout.Planning, u, 4,
		rev{dir: rollout.Up, has: 3, share: 75}, rev{has: 1, share: 25, abandoned: true})
	rec.State, rec.Groups = rollout.RollingBack, groupsOf(4)
	d := rollout.Decide(rec, obs)
	if u := d.Record.Update; u.Min != 3 || u.Unavailable != 1 || d.Record.Phase != rollout.Moving {
		t.Errorf("%+v", d.Record)
	}
}

// A rollback can be scaled even if no stage could move with its knobs, because a rollback lowers its minimum.
func TestARollbackMayBeScaled(t *testing.T) {
	w := traced(t)
	w.old(1, 4)
	w.must(t, w.deploy(rollout.Knobs{Order: rollout.StopFirst, MinAvailable: ptr(3)}, 2, 4))
	for len(w.podsOf(web2)) < 1 {
		w.round()
	}
	w.ask(rollout.RollbackVerb)
	w.rescale(3)
	if w.record.Total() != 3 || w.record.Update.Min != 2 {
		t.Errorf("%d pods, %+v", w.record.Total(), w.record.Update)
	}
	w.settles(t, rollout.Failed)
	w.has(t, map[string]int{web1: 3, web2: 0})
}

// The revision that a rollback goes to does not stand by any more.
func TestARollbackEndsTheStandby(t *testing.T) {
	rec, obs := staged(rollout.CanaryStrategy, rollout.Moving,
		rollout.Update{Step: 2, Surge: 2, Min: 4, CanaryPods: 1}, 4,
		rev{has: 3, target: 3, abandoned: true}, rev{has: 2, target: 2, standing: 2, standby: true},
		rev{dir: rollout.Up, has: 1, target: 1})
	rec.Request = &rollout.Request{Verb: rollout.RollbackVerb, By: "ann"}
	d := rollout.Decide(rec, obs)
	if v := d.Record.Revisions[1]; d.Record.State != rollout.RollingBack || v.Direction != rollout.Up || v.Standby {
		t.Errorf("%+v", d.Record)
	}
	for _, r := range d.RCs {
		if r.ID == web2 && r.Service.Standby {
			t.Errorf("its pods still stand by: %+v", r.Service)
		}
	}
}
