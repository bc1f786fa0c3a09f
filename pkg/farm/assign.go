package farm

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	"github.com/rcfarm/rcfarm/pkg/farm/placement"
	"github.com/rcfarm/rcfarm/pkg/farm/reconcile"
	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/obs"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/scheduler"
)

// placing finds nodes for what a plan adds.
type placing struct {
	*reading
	room  *finder
	books *booking
	later []pod.Identity // of the adds that nodes are looked for, those beyond what the pass may place
}

// maxAdds is how many pods one pass places at most. The others come with the next look, and other units are looked at
// meanwhile.
const maxAdds = 1000

// assign finds nodes for the plan's adds, turns them into changes and completes the status with what found no node.
// Those without a node do not count against maxAdds: they would keep the others waiting for ever.
func (ps *placing) assign(ctx context.Context, plan *reconcile.Plan) error {
	if len(plan.Adds) == 0 {
		ps.room.giveBack(nil)
		ps.mem.unfit = nil
		ps.kit.metrics.short(ps.id, 0, nil)
		return nil
	}
	lots, pods := ps.snapshot.ByLot(plan.Adds)
	all, reason, most := plan.Adds, "", maxAdds
	for i, lot := range lots {
		now := min(len(pods[lot]), most)
		if plan.Adds, ps.later = pods[lot][:now], pods[lot][now:]; now == 0 {
			plan.More()
			break
		}
		before := len(plan.Changes)
		ps.snapshot.LookFor(lot)
		if i > 0 || lot.Digest != ps.snapshot.RC.ManifestDigest || lot.Role != "" {
			ps.room.nodes = nil // those that were looked for before may not take these
		}
		if err := ps.assignAlike(ctx, plan); err != nil {
			return err
		}
		reason = cmp.Or(reason, plan.Lacking())
		most -= placedSince(plan, before)
	}
	plan.Adds = all
	plan.StillLacking(ps.snapshot.Now, reason)
	return nil
}

// assignAlike is assign for adds that have the same manifest, and the same wishes.
func (ps *placing) assignAlike(ctx context.Context, plan *reconcile.Plan) error {
	placed, look := len(plan.Changes), ps.room.beginLook(plan)
	if look.None() {
		ps.assigned(plan, placed, plan.Adds, look.Wait, look.Reasons)
		return nil
	}
	if ps.room.nodes == nil {
		if err := ps.room.findNodes(ctx); err != nil {
			return ps.unscheduled(ctx, plan, err)
		}
	}
	if ps.books.keepsBooks() {
		return ps.assignAllocated(ctx, plan)
	}
	left, wait, why, err := ps.room.search(ctx, plan, look)
	if err != nil {
		return err
	}
	ps.room.giveBack(plan.Changes)
	ps.assigned(plan, placed, left, wait, why)
	return nil
}

// assigned completes a plan whose changes from the given one on place its adds, all but those left, for which there is no room as
// far as is known, and will be looked for after a while.
//
// The pods beyond what the pass may place are like the others: where some of these have no node they have none either.
func (ps *placing) assigned(
	plan *reconcile.Plan, placed int, left []pod.Identity, wait time.Duration, why scheduler.Reasons,
) {
	switch {
	case len(ps.later) > 0 && len(left) > 0:
		left = slices.Concat(left, ps.later)
	case len(ps.later) > 0:
		plan.More()
	}
	// Changes on one node share its reservation, which only one batch may write: side by side they share a batch too.
	sortByNode(plan.Changes[placed:])
	unplaced := setOf(left)
	for _, mark := range plan.Marks {
		if unplaced[mark.Identity] {
			plan.Changes = append(plan.Changes, mark)
		}
	}
	plan.Short(ps.snapshot, left, why.String(), wait)
	ps.kit.metrics.short(ps.id, len(left), why)
}

// placedSince returns how many pods the changes of a plan from one on place or move.
func placedSince(plan *reconcile.Plan, from int) (n int) {
	for i := range plan.Changes[from:] {
		if adds(&plan.Changes[from+i]) {
			n++
		}
	}
	return n
}

// sortByNode sorts changes by their pods' nodes; those of one node stay in their order. Changes are large, so that each is moved twice
// only, however many there are; and there may be far fewer nodes.
func sortByNode(changes []reconcile.Change) {
	on := map[string][]int{}
	for i := range changes {
		name := changes[i].Placement.Node
		on[name] = append(on[name], i)
	}
	sorted := make([]reconcile.Change, 0, len(changes))
	for _, name := range slices.Sorted(maps.Keys(on)) {
		for _, i := range on[name] {
			sorted = append(sorted, changes[i])
		}
	}
	copy(changes, sorted)
}

// unplaced returns the identities that were not assigned, in their order.
func unplaced(all []pod.Identity, assigned []placement.Assignment) []pod.Identity {
	if len(assigned) == len(all) {
		return nil
	}
	return without(all, field.Each(assigned, func(a placement.Assignment) pod.Identity { return a.Pod }))
}

// without returns what is not among some, in its order.
func without[T comparable](all, some []T) []T {
	if len(some) == 0 {
		return all
	}
	is := setOf(some)
	return slices.DeleteFunc(slices.Clone(all), func(x T) bool { return is[x] })
}

func setOf[T comparable](some []T) map[T]bool {
	is := make(map[T]bool, len(some))
	for _, x := range some {
		is[x] = true
	}
	return is
}

// assignAllocated is assign with an outside scheduler that keeps books.
func (ps *placing) assignAllocated(ctx context.Context, plan *reconcile.Plan) error {
	placed := len(plan.Changes)
	ps.room.nodes.count(ps.snapshot, plan)
	assigned, err := ps.books.allocate(ctx, plan)
	if err != nil {
		return ps.unscheduled(ctx, plan, err)
	}
	placer := reconcile.NewPlacer(ps.snapshot)
	for _, a := range assigned {
		plan.Changes = append(plan.Changes, placer.On(a.Pod, a.Node))
	}
	left, why := unplaced(plan.Adds, assigned), ps.room.nodes.others
	if len(left) > 0 && len(why) == 0 {
		why = scheduler.Reasons{notGiven: ps.room.nodes.pool.Preferred.Left()}
	}
	ps.assigned(plan, placed, left, reconcile.RoomRetry, why)
	return nil
}

// unscheduled says in the status that an outside scheduler failed. Nothing is placed; everything else goes on.
func (ps *placing) unscheduled(ctx context.Context, plan *reconcile.Plan, failure error) error {
	if ctx.Err() != nil {
		return failure
	}
	plan.Adds = slices.Concat(plan.Adds, ps.later)
	ps.mem.booked = nil // whoever failed may have begun anew, without them
	ps.log.WithError(failure).WithField(obs.Desired, plan.Status.Desired).Warn("nothing can be placed")
	plan.Unscheduled(ps.snapshot, failure.Error())
	ps.kit.metrics.short(ps.id, len(plan.Adds), nil)
	return nil
}
