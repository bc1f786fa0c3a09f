package farm

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/rcfarm/rcfarm/pkg/farm/looks"
	"github.com/rcfarm/rcfarm/pkg/farm/reconcile"
	"github.com/rcfarm/rcfarm/pkg/rc"
)

// A status that differs from the last one only in numbers of pods may wait for a while. Any other status may not.
func TestAStatusThatDiffersOnlyInNumbersMayWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		status := func(change func(*rc.Status)) *rc.Status {
			st := &rc.Status{RCID: "web", ObservedGeneration: 3, Desired: 4, Placed: 4, Epoch: "n"}
			st.Conditions = rc.SetCondition(nil, rc.Converged, false, "0 of 4", time.Now())
			if change != nil {
				change(st)
			}
			return st
		}
		is := func(t rc.ConditionType) func(*rc.Status) {
			return func(st *rc.Status) { st.Conditions = rc.SetCondition(st.Conditions, t, true, "why", time.Now()) }
		}
		two := func(st *rc.Status) {
			st.Available, st.Updated, st.UpdatedAvailable, st.Stopping = 2, 4, 2, 1
			st.Conditions = rc.SetCondition(st.Conditions, rc.Converged, false, "2 of 4", time.Now())
		}
		for name, c := range map[string]struct {
			before *rc.Status
			after  func(*rc.Status)
			waits  bool
		}{
			"two of four are there":       {status(nil), two, true},
			"all are there":               {status(nil), is(rc.Converged), false},
			"all were there":              {status(is(rc.Converged)), two, false},
			"it is the first":             {nil, two, false},
			"it is of another generation": {status(func(st *rc.Status) { st.ObservedGeneration = 2 }), two, false},
			"another world":               {status(func(st *rc.Status) { st.Epoch = "m" }), two, false},
			"another number is desired":   {status(func(st *rc.Status) { st.Desired = 3 }), two, false},
			"one fails": {
				status(nil),
				func(st *rc.Status) { st.Failing = []rc.PodFailure{{Pod: "main.0"}} }, false,
			},
			"one is lost":         {status(nil), func(st *rc.Status) { st.Lost = 1 }, false},
			"something is wrong":  {status(nil), func(st *rc.Status) { st.LastError = "oh" }, false},
			"something was wrong": {status(is(rc.Blocked)), two, false},
			"something keeps it":  {status(nil), is(rc.WaitsForService), false},
			"people are alerted": {
				status(nil),
				func(st *rc.Status) { st.Incidents = []rc.Incident{{Key: "k"}} }, false,
			},
		} {
			plan := &reconcile.Plan{Status: *status(c.after)}
			want := time.Duration(0)
			if c.waits {
				want = countsEvery
			}
			if got := statusMayWait(c.before, plan, time.Now()); got != want {
				t.Errorf("%s: it waits %s, want %s", name, got, want)
			}
			if got := statusMayWait(c.before, plan, time.Now().Add(-countsEvery)); got != 0 {
				t.Errorf("%s: it waits %s although the last was long ago", name, got)
			}
		}
	})
}

// A look that a bell asks for waits a little for further reports. It waits longer while more looks are under way, and
// does not wait twice.
func TestALookWaitsForReportsThatComeTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		waits := func(what string, c *unit, busy int64, want time.Duration) {
			t.Helper()
			if got := c.holdOff(busy, 0); got != want {
				t.Errorf("%s: %s, want %s", what, got, want)
			}
		}
		c := &unit{waits: true}
		waits("alone", c, 0, looks.GatherLeast)
		<-time.After(looks.GatherLeast / 5)
		waits("another bell, and more is under way", c, 100, looks.GatherLeast-looks.GatherLeast/5)
		<-time.After(looks.GatherLeast - looks.GatherLeast/5)
		waits("later", c, 0, 0)
		c.looks.Begin()
		waits("many are under way", c, 1000, looks.GatherMost)
		c.looks.Ask()
		waits("a look was asked for", c, 1000, 0)
		c.looks.Begin()
		c.looks.Again(time.Millisecond)
		<-time.After(time.Millisecond)
		waits("it is due", c, 1000, 0)
		waits("nodes are not waited for", &unit{}, 1000, 0)
	})
}

// After a long look a unit rests while other units wait.
func TestAUnitRestsWhileOthersWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := &unit{}
		u.looks.Took(time.Second)
		if got := u.holdOff(0, 0); got != 0 {
			t.Errorf("it rests for %s while no unit waits", got)
		}
		<-time.After(time.Second / 4)
		if got := u.holdOff(0, 1); got != time.Second*3/4 {
			t.Errorf("it rests for %s while a unit waits, want 750ms", got)
		}
	})
}
