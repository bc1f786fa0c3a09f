package farm

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/rcfarm/rcfarm/pkg/farm/placement"
	"github.com/rcfarm/rcfarm/pkg/farm/reconcile"
	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/scale"
	"github.com/rcfarm/rcfarm/pkg/scheduler"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// booking keeps the books of an outside scheduler in line in one pass.
type booking struct {
	*reading
	room *finder
}

// owner is on whose behalf an outside scheduler is asked in this pass.
func (b *booking) owner() scheduler.Owner {
	return scheduler.Owner{RCID: b.id, Term: scale.Term(b.snapshot.Epoch, b.mem.fence.Index)}
}

// balance brings the books of an outside scheduler in line with the placements, and reports whether they are. The books say
// what is left to do: a crash between an allocation and its placement, or a deallocation that failed, shows in them to
// whoever owns the controller next. They are read when they are not known: at the start of a tenure, in a resync, and
// after each failure.
func (b *booking) balance(ctx context.Context, plan *reconcile.Plan, resync bool) (even bool) {
	if even, known := b.knowBooks(ctx, plan, resync); !known {
		return even
	}
	leaked, unallocated := compareBooks(b.snapshot, b.kit.cache.orphansOf(b.id), plan.Adds, b.mem.booked)
	if len(leaked) > 0 && b.snapshot.Hold != "" {
		return false // what looks leaked may run on a node that has not spoken yet (R1)
	}
	leaked, err := b.stillLeaked(ctx, leaked)
	if err != nil {
		b.log.WithError(err).Warn("cannot tell which shares of nodes are not needed any more")
		plan.Retry()
		return false
	}
	var errs []string
	if err := b.deallocate(ctx, leaked); err != nil {
		errs = append(errs, describeLeaked(b.snapshot, leaked)+": "+err.Error())
	}
	if err := b.book(ctx, unallocated); err != nil {
		errs = append(errs, fmt.Sprintf("%d replicas are not in its books: %v", len(unallocated), err))
	}
	plan.BooksDiffer(b.snapshot.Now, strings.Join(errs, "; "))
	return len(errs) == 0
}

// knowBooks reads the books where they are not known. Where they are not known then, or there are none, it returns whether all is in line.
func (b *booking) knowBooks(ctx context.Context, plan *reconcile.Plan, resync bool) (even, known bool) {
	if b.kit.books == nil {
		plan.BooksDiffer(b.snapshot.Now, "")
		return true, false
	}
	if b.mem.booked == nil && !b.mem.bookless || resync {
		booked, err := b.kit.books.booked(ctx, b.owner())
		b.mem.booked, b.mem.bookless = booked, errors.Is(err, scheduler.ErrNoBooks)
		if err != nil && !b.mem.bookless {
			b.mem.booked = nil
			b.log.WithError(err).Warn("the scheduler does not show its books")
			plan.Retry()
			if plan.Finish {
				plan.SchedulerFails(b.snapshot.Now, "the controller's last records stay until its books are known: "+err.Error())
			}
			return false, false
		}
	}
	if b.mem.bookless {
		plan.BooksDiffer(b.snapshot.Now, "")
		return true, false
	}
	return false, true
}

// keepsBooks reports whether nodes are given by a scheduler with books.
func (b *booking) keepsBooks() bool { return b.kit.books != nil && !b.mem.bookless }

// stillLeaked leaves out the shares of placements that the pass did not see. A leader that is behind may lack some, and the
// transaction that a pass begins with does not tell of those that the token may not read; a list does.
func (b *booking) stillLeaked(ctx context.Context, leaked []scheduler.Allocation) ([]scheduler.Allocation, error) {
	if len(leaked) == 0 {
		return nil, nil
	}
	placements, corrupt, err := b.kit.lists.Placements(ctx, b.id, true)
	if err = joined(append(corrupt, err)); err != nil {
		return nil, err
	}
	there := map[scheduler.Allocation]bool{}
	for i := range placements {
		for _, at := range copiesOf(&placements[i].Value) {
			there[scheduler.Allocation{Pod: at.Identity, Node: at.Node}] = true
		}
	}
	return slices.DeleteFunc(leaked, func(a scheduler.Allocation) bool { return there[a] }), nil
}

// compareBooks returns the shares that nobody has or wants any more, and the replicas that have none where they are, in a
// stable order.
func compareBooks(s *reconcile.Snapshot, orphans []reconcile.Orphan, adds []pod.Identity, booked map[scheduler.Allocation]bool) (leaked []scheduler.Allocation, unallocated []scheduler.Want) {
	there := map[scheduler.Allocation]bool{}
	for i := range s.Pods {
		p := &s.Pods[i]
		for _, at := range copiesOf(&p.Placement) {
			there[scheduler.Allocation{Pod: at.Identity, Node: at.Node}] = true
		}
		if at := (scheduler.Allocation{Pod: p.Identity, Node: p.Node}); !booked[at] {
			unallocated = append(unallocated, scheduler.Want{Pod: p.Identity, Node: p.Node})
		}
	}
	for _, o := range orphans {
		there[scheduler.Allocation{Pod: o.Identity, Node: o.Node}] = true
	}
	added := setOf(adds)
	for a, ours := range booked {
		// What was allocated for a replica that is still to be placed is asked for again, and placed.
		if ours && !there[a] && !added[a.Pod] {
			leaked = append(leaked, a)
		}
	}
	slices.SortFunc(leaked, func(a, b scheduler.Allocation) int {
		if d := a.Pod.Compare(b.Pod); d != 0 {
			return d
		}
		return strings.Compare(a.Node, b.Node)
	})
	return leaked, unallocated
}

// describeLeaked names for each share the node and, where the replica is elsewhere by now, that one too.
func describeLeaked(s *reconcile.Snapshot, leaked []scheduler.Allocation) string {
	const show = 5
	var lines []string
	for _, a := range leaked[:min(show, len(leaked))] {
		line := fmt.Sprintf("%s is still allocated to %s.%d, which is gone", a.Node, a.Pod.Role, a.Pod.Index)
		if i := slices.IndexFunc(s.Pods, func(p reconcile.Pod) bool { return p.Identity == a.Pod }); i >= 0 {
			line = fmt.Sprintf("%s is still allocated to %s.%d, which is on %s now", a.Node, a.Pod.Role, a.Pod.Index, s.Pods[i].Node)
		}
		lines = append(lines, line)
	}
	if more := len(leaked) - show; more > 0 {
		lines = append(lines, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(lines, ", ")
}

// deallocate gives shares back. What came of it is not known when it fails.
func (b *booking) deallocate(ctx context.Context, allocations []scheduler.Allocation) error {
	if len(allocations) == 0 {
		return nil
	}
	if err := b.kit.books.deallocate(ctx, b.owner(), allocations); err != nil {
		b.mem.booked = nil
		b.log.WithError(err).WithField("shares", len(allocations)).Warn("the scheduler did not take shares of nodes back")
		return err
	}
	for _, a := range allocations {
		delete(b.mem.booked, a)
	}
	return nil
}

// book makes the books show replicas that are where they are, one lot after the other: each is told what its pods take. Those whose manifest is not known wait.
func (b *booking) book(ctx context.Context, wants []scheduler.Want) error {
	if len(wants) == 0 || b.mem.booked == nil || b.snapshot.Manifest == nil {
		return nil
	}
	of := make(map[pod.Identity]scheduler.Want, len(wants))
	lots, pods := b.snapshot.ByLot(field.Each(wants, func(w scheduler.Want) pod.Identity {
		of[w.Pod] = w
		return w.Pod
	}))
	defer b.snapshot.LookFor(reconcile.Lot{}) // as it was
	for _, lot := range lots {
		if b.snapshot.LookFor(lot); b.snapshot.Placing() == nil {
			continue
		}
		if err := b.bookAlike(ctx, field.Each(pods[lot], func(id pod.Identity) scheduler.Want { return of[id] })); err != nil {
			return err
		}
	}
	return nil
}

// bookAlike is book for replicas of the lot that the snapshot looks for.
func (b *booking) bookAlike(ctx context.Context, wants []scheduler.Want) error {
	given, err := b.kit.books.allocate(ctx, b.owner(), viewOf(b.snapshot, b.room.version), wants)
	if err != nil {
		b.mem.booked = nil
		return err
	}
	booked := map[scheduler.Allocation]bool{}
	for _, a := range given {
		booked[a], b.mem.booked[a] = true, true
	}
	for _, w := range wants {
		if !booked[scheduler.Allocation{Pod: w.Pod, Node: w.Node}] {
			b.mem.booked = nil // looked at again in the next pass
			return fmt.Errorf("%s.%d is on %s, which was not booked", w.Pod.Role, w.Pod.Index, w.Node)
		}
	}
	return nil
}

// allocate asks an outside scheduler for shares for the plan's adds, and returns those that can be used. Those that cannot
// be are given back.
func (b *booking) allocate(ctx context.Context, plan *reconcile.Plan) ([]placement.Assignment, error) {
	s, avoid := b.snapshot, b.room.nodes.avoid
	wants := field.Each(plan.Adds, func(id pod.Identity) scheduler.Want {
		return scheduler.Want{Pod: id, Avoid: slices.Concat(avoid[id], b.mem.unfit[id])}
	})
	given, err := b.kit.books.allocate(ctx, b.owner(), viewOf(s, b.room.version), wants)
	if err != nil {
		b.mem.booked = nil
		return nil, err
	}
	eligible := setOf(slices.Collect(b.room.nodes.pool.Preferred.All()))
	var usable, back []scheduler.Allocation
	var names []string
	for _, a := range given {
		if b.mem.booked != nil {
			b.mem.booked[a] = true
		}
		switch {
		case slices.Contains(avoid[a.Pod], a.Node):
			b.kit.books.ignore(s.RC.ID, a.Node, fmt.Sprintf("%s is or was there", a.Pod)) // and keeps its share
		case !eligible[a.Node]:
			b.kit.books.ignore(s.RC.ID, a.Node, "it is not eligible, or the scheduler's EligibleNodes has left it out")
			back = append(back, a)
		default:
			usable = append(usable, a)
			names = append(names, a.Node)
		}
	}
	slices.Sort(names)
	d, err := b.kit.reads.ReadDetails(ctx, store.Wanted{Reservations: slices.Compact(names)}, false)
	if err != nil {
		return nil, err // the next pass asks for the same shares again
	}
	b.room.keep(d)
	assigned, unfit := b.room.fitting(usable, d.Reservations)
	b.mem.noteUnfit(plan.Adds, unfit)
	if err := b.deallocate(ctx, append(back, unfit...)); err != nil {
		plan.Retry()
	}
	return assigned, nil
}

// fitting sorts out what does not fit into the nodes' reservations, which count for every scheduler (P3).
func (f *finder) fitting(allocations []scheduler.Allocation, reservations map[string]store.Rec[node.Reservation]) (fit []placement.Assignment, unfit []scheduler.Allocation) {
	s, perNode := f.snapshot, f.nodes.perNode
	taken := map[string]node.Reservation{}
	for _, a := range allocations {
		res, known := taken[a.Node]
		if !known {
			res = reservations[a.Node].Value.Clone()
			taken[a.Node] = res
		}
		rule := scheduler.Rule{MaxPerNode: s.RC.MaxPerNode, Ask: reconcile.NewClaim(s, a.Pod), Dynamic: s.Placing().DynamicPorts()}
		reason := rule.Refuses(scheduler.Candidate{View: s.Nodes[a.Node], Reservation: res, Pods: perNode[a.Node], Skewed: f.nodes.tally.Refuses(s.Nodes[a.Node])}, a.Pod)
		if reason != "" {
			f.nodes.others[reason]++
			unfit = append(unfit, a)
			continue
		}
		claim, _, _ := scheduler.ClaimOn(s.Nodes[a.Node], res, rule.Ask, rule.Dynamic, nil)
		res.Claims[a.Pod.String()] = claim
		f.nodes.placed(s, a.Node)
		fit = append(fit, placement.Assignment{Pod: a.Pod, Node: a.Node})
	}
	return fit, unfit
}
