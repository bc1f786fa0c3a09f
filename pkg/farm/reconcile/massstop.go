package reconcile

import (
	"iter"

	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
)

// AllowsMassStop reports whether the last change of a controller was made with --allow-mass-stop. The breaker counts none of its stops.
func AllowsMassStop(r *rc.RC) bool { return r.AllowMassStop != 0 && r.AllowMassStop == r.Generation }

// Staying returns how many of a controller's pods the mass-stop breaker measures stops against: those that are meant to run and are
// not in going, which the plan at hand stops. The rule is that what an allowed change may stop is neither counted as a stop nor as
// owned, from the moment that the change is known: else the stops of other controllers would look few beside pods that go as well.
// So of a controller whose change is allowed only as many pods of each role stay as are desired, and those that stay as they were
// found (R2). A disabled controller stops nothing, whatever it asks for. One with a pod on every matching node asks for no number: of its pods those
// stay that no plan stops.
func Staying(r *rc.RC, allowed bool, placements iter.Seq[*pod.Placement], going map[pod.Identity]bool) int {
	asFound, byRole := 0, map[string]int{}
	for p := range placements {
		switch {
		case p.RunState != pod.Running || going[p.Identity]:
		case stays(r, p):
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
		if allowed && (r.DeletedAt != nil || !r.EachNode()) && (r.DeletedAt != nil || !r.Disabled) {
			running = min(running, desired[role])
		}
		n += running
	}
	return n
}
