package reconcile

import (
	"slices"

	"github.com/rcfarm/rcfarm/pkg/pod"
)

// Foresee returns the plan that follows a plan whose changes have all landed, from what that plan was computed from: nothing but the
// status is left to write then. ok is false where more than that follows, or where what the changes leave must be read again: it
// is known of pods that are forgotten, and of nothing else. Replicas without a node and requests are in the next plan as they are in this one.
func Foresee(s *Snapshot, plan *Plan) (next Plan, ok bool) {
	if len(plan.Changes) == 0 {
		return next, false
	}
	gone := map[pod.Identity]bool{}
	for i := range plan.Changes {
		if ch := &plan.Changes[i]; ch.Action != Remove || ch.Placement != nil {
			return next, false
		}
		gone[plan.Changes[i].Identity] = true
	}
	after := *s
	after.Pods = slices.DeleteFunc(slices.Clone(s.Pods), func(p Pod) bool { return gone[p.Identity] })
	next = Compute(&after)
	return next, next.Unaided == s.CompanionsUnread && len(next.Changes) == 0 && len(next.Adds) == 0 && len(next.Answered) == 0 && !next.Finish
}
