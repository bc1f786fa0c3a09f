package reconcile

import (
	"iter"

	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
)

// AllowsMassStop reports whether the last change of a controller was made with --allow-mass-stop. The breaker ignores
// the stops of such a controller.
func AllowsMassStop(r *rc.RC) bool { return r.AllowMassStop != 0 && r.AllowMassStop == r.Generation }

// RemainingPods returns the number of a controller's pods with which the breaker compares stops: the pods that are
// meant to run, without the pods that this plan stops (going).
//
// The pods that an allowed change may stop are left out, or the stops of other controllers would look few in
// comparison. So for an allowed controller the result has the desired number of each role and the pods that are kept as
// adopted (R2). A disabled controller stops nothing, and one with a pod on each matching node has no desired number, so
// all their remaining pods are in the result.
func RemainingPods(r *rc.RC, allowed bool, placements iter.Seq[*pod.Placement], going map[pod.Identity]bool) int {
	asFound, byRole := 0, map[string]int{}
	for p := range placements {
		switch {
		case p.RunState != pod.Running || going[p.Identity]:
		case keptAsAdopted(r, p):
			asFound++
		default:
			byRole[p.Role]++
		}
	}
	desired := map[string]int{}
	if r.DeletedAt == nil {
		for _, g := range r.ReplicaGroups {
			desired[g.Role] = *g.Count
		}
	}
	n := asFound
	for role, running := range byRole {
		if allowed && (r.DeletedAt != nil || !r.EachNode() && !r.Disabled) {
			running = min(running, desired[role])
		}
		n += running
	}
	return n
}
