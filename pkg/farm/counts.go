package farm

import (
	"reflect"
	"time"

	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/reconcile"
)

// countsEvery is how often a status is written that only counts how many pods have come or gone: each wakes the runner of a rollout, and most
// often the one that says that all have comes at once.
const countsEvery = 200 * time.Millisecond

// statusMayWait returns how long a status may stay unwritten, zero for not at all: it says nothing but how many of the pods that nodes
// were asked for are there, and the one before it has just been written.
func (ps *pass) statusMayWait(plan *reconcile.Plan) time.Duration {
	if !onlyCounts(ps.head.Status, plan) {
		return 0
	}
	return max(0, countsEvery-time.Since(ps.mem.reported))
}

// onlyCounts reports whether a status says no more than the one before it but how many pods there are.
func onlyCounts(before *rc.Status, plan *reconcile.Plan) bool {
	after := &plan.Status
	if before == nil || before.Is(rc.Converged) || after.Is(rc.Converged) || !plan.Unhampered() {
		return false
	}
	was, is := *before, *after
	for _, st := range []*rc.Status{&was, &is} {
		st.Placed, st.Available, st.Updated, st.UpdatedAvailable, st.Stopping, st.StandingBy = 0, 0, 0, 0, 0, 0
	}
	was.Conditions, is.Conditions = flags(before), flags(after)
	return reflect.DeepEqual(was, is)
}

// flags returns what conditions say, without their reasons.
func flags(st *rc.Status) []rc.Condition {
	flags := make([]rc.Condition, len(st.Conditions))
	for i, cond := range st.Conditions {
		flags[i] = rc.Condition{Type: cond.Type, True: cond.True}
	}
	return flags
}
