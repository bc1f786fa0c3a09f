package farm

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/obs"
	"github.com/rcfarm/rcfarm/pkg/placement"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/reconcile"
	"github.com/rcfarm/rcfarm/pkg/scheduler"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// owner is on whose behalf an outside scheduler is asked in this pass.
func (c *ReplicationController) owner(v *view) scheduler.Owner {
	return scheduler.Owner{RCID: c.ID, Term: fmt.Sprintf("%s/%020d", v.schema.Value.Nonce, c.fence.Index)}
}

// balance brings the books of an outside scheduler in line with the placements, and reports whether they are. The books say
// what is left to do: a crash between an allocation and its placement, or a deallocation that failed, shows in them to
// whoever owns the controller next. They are read when they are not known: at the start of a tenure, in a deep check, and
// after each failure.
func (c *ReplicationController) balance(ctx context.Context, v *view, plan *reconcile.Plan) (even bool) {
	if even, known := c.knowBooks(ctx, v, plan); !known {
		return even
	}
	loose, unbooked := compareBooks(v.snapshot, c.farm.world.orphansOf(c.ID), plan.Adds, c.held)
	if len(loose) > 0 && v.snapshot.Hold != "" {
		return false // what looks loose may run on a node that has not spoken yet (R1)
	}
	loose, err := c.reallyLoose(ctx, loose)
	if err != nil {
		c.log.WithError(err).Warn("cannot tell which shares of nodes are not needed any more")
		plan.Retry()
		return false
	}
	var trouble []string
	if err := c.deallocate(ctx, v, loose); err != nil {
		trouble = append(trouble, describeLoose(v.snapshot, loose)+": "+err.Error())
	}
	if err := c.book(ctx, v, unbooked); err != nil {
		trouble = append(trouble, fmt.Sprintf("%d replicas are not in its books: %v", len(unbooked), err))
	}
	plan.BooksDiffer(v.snapshot.Now, strings.Join(trouble, "; "))
	return len(trouble) == 0
}

// knowBooks reads the books where they are not known. Where they are not known then, or there are none, it returns whether all is in line.
func (c *ReplicationController) knowBooks(ctx context.Context, v *view, plan *reconcile.Plan) (even, known bool) {
	if c.farm.books == nil {
		plan.BooksDiffer(v.snapshot.Now, "")
		return true, false
	}
	if c.held == nil && !c.bookless || v.deep {
		held, err := c.farm.books.held(ctx, c.owner(v))
		c.held, c.bookless = held, errors.Is(err, scheduler.ErrNoBooks)
		if err != nil && !c.bookless {
			c.held = nil
			c.log.WithError(err).Warn("the scheduler does not show its books")
			plan.Retry()
			if plan.Finish {
				plan.SchedulerFails(v.snapshot.Now, "the controller's last records stay until its books are known: "+err.Error())
			}
			return false, false
		}
	}
	if c.bookless {
		plan.BooksDiffer(v.snapshot.Now, "")
		return true, false
	}
	return false, true
}

// keepsBooks reports whether nodes are given by a scheduler with books.
func (c *ReplicationController) keepsBooks() bool { return c.farm.books != nil && !c.bookless }

// reallyLoose leaves out the shares of placements that the pass did not see. A leader that is behind may lack some, and the
// transaction that a pass begins with does not tell of those that the token may not read; a list does.
func (c *ReplicationController) reallyLoose(ctx context.Context, loose []scheduler.Allocation) ([]scheduler.Allocation, error) {
	if len(loose) == 0 {
		return nil, nil
	}
	placements, corrupt, err := c.farm.cfg.Store.Placements(ctx, c.ID, true)
	if err = joined(append(corrupt, err)); err != nil {
		return nil, err
	}
	there := map[scheduler.Allocation]bool{}
	for i := range placements {
		p := reconcile.Pod{Placement: placements[i].Value}
		for _, name := range nodesOf(&p) {
			there[scheduler.Allocation{Pod: p.Identity, Node: name}] = true
		}
	}
	return slices.DeleteFunc(loose, func(a scheduler.Allocation) bool { return there[a] }), nil
}

// compareBooks returns the shares that nobody has or wants any more, and the replicas that have none where they are, in a
// stable order.
func compareBooks(s *reconcile.Snapshot, orphans []reconcile.Orphan, adds []pod.Identity, held map[scheduler.Allocation]bool) (loose []scheduler.Allocation, unbooked []scheduler.Want) {
	there := map[scheduler.Allocation]bool{}
	for i := range s.Pods {
		p := &s.Pods[i]
		for _, name := range nodesOf(p) {
			there[scheduler.Allocation{Pod: p.Identity, Node: name}] = true
		}
		if at := (scheduler.Allocation{Pod: p.Identity, Node: p.Node}); !held[at] {
			unbooked = append(unbooked, scheduler.Want{Pod: p.Identity, Node: p.Node})
		}
	}
	for _, o := range orphans {
		there[scheduler.Allocation{Pod: o.Identity, Node: o.Node}] = true
	}
	added := setOf(adds)
	for a, ours := range held {
		// What was allocated for a replica that is still to be placed is asked for again, and placed.
		if ours && !there[a] && !added[a.Pod] {
			loose = append(loose, a)
		}
	}
	slices.SortFunc(loose, func(a, b scheduler.Allocation) int {
		if d := a.Pod.Compare(b.Pod); d != 0 {
			return d
		}
		return strings.Compare(a.Node, b.Node)
	})
	return loose, unbooked
}

// describeLoose names for each share the node and, where the replica is elsewhere by now, that one too.
func describeLoose(s *reconcile.Snapshot, loose []scheduler.Allocation) string {
	const show = 5
	var lines []string
	for _, a := range loose[:min(show, len(loose))] {
		line := fmt.Sprintf("%s is still allocated to %s.%d, which is gone", a.Node, a.Pod.Role, a.Pod.Index)
		if i := slices.IndexFunc(s.Pods, func(p reconcile.Pod) bool { return p.Identity == a.Pod }); i >= 0 {
			line = fmt.Sprintf("%s is still allocated to %s.%d, which is on %s now", a.Node, a.Pod.Role, a.Pod.Index, s.Pods[i].Node)
		}
		lines = append(lines, line)
	}
	if more := len(loose) - show; more > 0 {
		lines = append(lines, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(lines, ", ")
}

// deallocate gives shares back. What came of it is not known when it fails.
func (c *ReplicationController) deallocate(ctx context.Context, v *view, shares []scheduler.Allocation) error {
	if len(shares) == 0 {
		return nil
	}
	if err := c.farm.books.deallocate(ctx, c.owner(v), shares); err != nil {
		c.held = nil
		c.log.WithError(err).WithField("shares", len(shares)).Warn("the scheduler did not take shares of nodes back")
		return err
	}
	for _, a := range shares {
		delete(c.held, a)
	}
	return nil
}

// book makes the books show replicas that are where they are.
func (c *ReplicationController) book(ctx context.Context, v *view, wants []scheduler.Want) error {
	if len(wants) == 0 || c.held == nil || v.snapshot.Manifest == nil {
		return nil
	}
	given, err := c.farm.books.allocate(ctx, c.owner(v), viewOf(v.snapshot, v.nodesVersion), wants)
	if err != nil {
		c.held = nil
		return err
	}
	booked := map[scheduler.Allocation]bool{}
	for _, a := range given {
		booked[a], c.held[a] = true, true
	}
	for _, w := range wants {
		if !booked[scheduler.Allocation{Pod: w.Pod, Node: w.Node}] {
			c.held = nil // looked at again in the next pass
			return fmt.Errorf("%s.%d is on %s, which was not booked", w.Pod.Role, w.Pod.Index, w.Node)
		}
	}
	return nil
}

// allocate asks an outside scheduler for shares for the plan's adds, and returns those that can be used. Those that cannot
// be are given back.
func (c *ReplicationController) allocate(ctx context.Context, v *view, plan *reconcile.Plan) ([]placement.Assignment, error) {
	s, avoid := v.snapshot, v.nodes.avoid
	wants := make([]scheduler.Want, len(plan.Adds))
	for i, id := range plan.Adds {
		wants[i] = scheduler.Want{Pod: id, Avoid: avoid[id]}
	}
	given, err := c.farm.books.allocate(ctx, c.owner(v), viewOf(s, v.nodesVersion), wants)
	if err != nil {
		c.held = nil
		return nil, err
	}
	eligible := setOf(slices.Collect(v.nodes.pool.Share.All()))
	var usable, back []scheduler.Allocation
	var names []string
	for _, a := range given {
		if c.held != nil {
			c.held[a] = true
		}
		switch {
		case slices.Contains(avoid[a.Pod], a.Node):
			c.farm.books.ignore(s.RC.ID, a.Node, fmt.Sprintf("%s is or was there", a.Pod)) // and keeps its share
		case !eligible[a.Node]:
			c.farm.books.ignore(s.RC.ID, a.Node, "it is not among the eligible nodes")
			back = append(back, a)
		default:
			usable = append(usable, a)
			names = append(names, a.Node)
		}
	}
	slices.Sort(names)
	d, err := c.farm.cfg.Store.ReadDetails(ctx, store.Wanted{Reservations: slices.Compact(names)}, false)
	if err != nil {
		return nil, err // the next pass asks for the same shares again
	}
	c.keepReservations(v, d)
	assigned, unfit := fitting(v, usable, d.Reservations)
	if err := c.deallocate(ctx, v, append(back, unfit...)); err != nil {
		plan.Retry()
	}
	return assigned, nil
}

// fitting sorts out what does not fit into the nodes' reservations, which count for every scheduler (P3).
func fitting(v *view, shares []scheduler.Allocation, reservations map[string]store.Rec[node.Reservation]) (fit []placement.Assignment, unfit []scheduler.Allocation) {
	s, perNode := v.snapshot, v.nodes.perNode
	taken := map[string]node.Reservation{}
	for _, a := range shares {
		res, known := taken[a.Node]
		if !known {
			res = reservations[a.Node].Value.Clone()
			taken[a.Node] = res
		}
		rule := scheduler.Rule{MaxPerNode: s.RC.MaxPerNode, Share: reconcile.NewHolder(s, a.Pod), Dynamic: s.Placing().DynamicPorts()}
		reason := rule.Refuses(scheduler.Candidate{View: s.Nodes[a.Node], Reservation: res, Pods: perNode[a.Node]}, a.Pod)
		if reason != "" {
			v.nodes.others[reason]++
			unfit = append(unfit, a)
			continue
		}
		holder, _, _ := scheduler.Share(s.Nodes[a.Node], res, rule.Share, rule.Dynamic, nil)
		res.Holders[a.Pod.String()] = holder
		perNode[a.Node]++
		fit = append(fit, placement.Assignment{Pod: a.Pod, Node: a.Node})
	}
	return fit, unfit
}

// assignAllocated is assign with an outside scheduler that keeps books.
func (c *ReplicationController) assignAllocated(ctx context.Context, v *view, plan *reconcile.Plan) error {
	placed := len(plan.Changes)
	assigned, err := c.allocate(ctx, v, plan)
	if err != nil {
		return c.unscheduled(ctx, v, plan, err)
	}
	placer := reconcile.NewPlacer(v.snapshot)
	for _, a := range assigned {
		plan.Changes = append(plan.Changes, placer.On(a.Pod, a.Node))
	}
	c.assigned(v, plan, placed, unplaced(plan.Adds, assigned), reconcile.RoomRetry, v.nodes.others)
	return nil
}

// unscheduled says in the status that an outside scheduler failed. Nothing is placed; everything else goes on.
func (c *ReplicationController) unscheduled(ctx context.Context, v *view, plan *reconcile.Plan, failure error) error {
	if ctx.Err() != nil {
		return failure
	}
	c.log.WithError(failure).WithField(obs.Desired, plan.Status.Desired).Warn("nothing can be placed")
	plan.Unscheduled(v.snapshot, failure.Error())
	c.farm.cfg.Metrics.short(c.ID, len(plan.Adds), nil)
	return nil
}
