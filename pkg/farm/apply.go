package farm

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"reflect"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/obs"
	"github.com/rcfarm/rcfarm/pkg/placement"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/reconcile"
	"github.com/rcfarm/rcfarm/pkg/scheduler"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// Writes are how a pass changes the world.
type Writes interface {
	Commit(ctx context.Context, b *store.Batch) error
	HeadLoad(b *store.Batch, reports bool) store.Load
	LoadOf(rcID string, p *store.Part) store.PartLoad
	Ring(ctx context.Context, rcID string) error
	ReleaseMutator(ctx context.Context, f store.Fence, rec store.Rec[rc.RC], service string, was store.InCharge, schemaIndex uint64, a store.Audit) error
	MakeMarks(ctx context.Context, drops, stops []string) error
	MendReservation(ctx context.Context, nodeName string) (mended bool, err error)
	Finish(ctx context.Context, f store.Fence, rec store.Rec[rc.RC], schemaIndex uint64, a store.Audit) error
}

// assign finds nodes for the plan's adds, turns them into changes and completes the status with what found no node.
func (c *ReplicationController) assign(ctx context.Context, v *view, plan *reconcile.Plan) error {
	if len(plan.Adds) == 0 {
		c.giveBack(v, nil)
		c.farm.cfg.Metrics.short(c.ID, 0, nil)
		return nil
	}
	digests, byDigest := v.snapshot.ByDigest(plan.Adds)
	all, reason := plan.Adds, ""
	for i, digest := range digests {
		v.snapshot.LookFor(digest)
		if plan.Adds = byDigest[digest]; i > 0 || digest != v.snapshot.RC.ManifestDigest {
			v.nodes = nil // those that were looked for before may not take these
		}
		if err := c.assignAlike(ctx, v, plan); err != nil {
			return err
		}
		reason = cmp.Or(reason, plan.Lacking())
	}
	plan.Adds = all
	plan.StillLacking(v.snapshot.Now, reason)
	return nil
}

// assignAlike is assign for adds that get one manifest.
func (c *ReplicationController) assignAlike(ctx context.Context, v *view, plan *reconcile.Plan) error {
	placed, look := len(plan.Changes), c.beginLook(v, plan)
	if look.None() {
		c.assigned(v, plan, placed, plan.Adds, look.Wait, look.Reasons)
		return nil
	}
	if v.nodes == nil {
		if err := c.findNodes(ctx, v); err != nil {
			return c.unscheduled(ctx, v, plan, err)
		}
	}
	if c.keepsBooks() {
		return c.assignAllocated(ctx, v, plan)
	}
	left, wait, why, err := c.search(ctx, v, plan, look)
	if err != nil {
		return err
	}
	c.giveBack(v, plan.Changes)
	c.assigned(v, plan, placed, left, wait, why)
	return nil
}

// assigned completes a plan whose changes from the given one on place its adds, all but those left, for which there is no room as
// far as is known, and will be looked for after a while.
func (c *ReplicationController) assigned(v *view, plan *reconcile.Plan, placed int, left []pod.Identity, wait time.Duration, why scheduler.Reasons) {
	// Changes on one node share its reservation, which only one batch may write: side by side they share a batch too.
	sortByNode(plan.Changes[placed:])
	unplaced := setOf(left)
	for _, mark := range plan.Marks {
		if unplaced[mark.Identity] {
			plan.Changes = append(plan.Changes, mark)
		}
	}
	plan.Short(v.snapshot, left, why.String(), wait)
	c.farm.cfg.Metrics.short(c.ID, len(left), why)
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
	done := make([]pod.Identity, len(assigned))
	for i, a := range assigned {
		done[i] = a.Pod
	}
	return without(all, done)
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

// apply writes the plan's changes and status. It returns how many changes landed, and the error that made the pass end
// early: ErrUnknown before anything else, because it asks for a bump.
func (c *ReplicationController) apply(ctx context.Context, v *view, plan *reconcile.Plan) (wrote int, err error) {
	batches, err := c.batches(ctx, v, plan)
	if err != nil {
		return 0, err
	}
	last := c.foresee(v, plan, batches)
	plan.Status.CarrySince(v.head.Status)
	c.track(v, plan)
	differs := statusDiffers(v.head.Status, &plan.Status) && !c.phantom
	if len(batches) == 0 && differs && len(plan.Answered) == 0 {
		v.later = c.statusMayWait(v, plan)
		differs = v.later == 0
	}
	if len(batches) == 0 && (differs || len(plan.Answered) > 0) {
		batches = append(batches, c.newBatch(v, plan))
	}
	if len(batches) == 0 {
		return 0, nil
	}
	if differs && last == nil {
		batches[0].Status = &plan.Status
	}
	c.auditVoid(batches[0], plan)
	// The first carries the pass's audit record and status: nothing else is written unless it lands.
	if err := c.commitLeaving(ctx, v, batches[0]); err != nil {
		return 0, err
	}
	wrote = batches[0].changes
	if !plan.Unhampered() || len(plan.Changes) == 0 || !onlyAsks(plan.Changes) { // what was asked for comes with another status soon
		c.tellRunner(batches[0])
	}
	errs := make([]error, len(batches))
	var group errgroup.Group
	group.SetLimit(c.farm.cfg.InFlight)
	for i, b := range batches[1:] {
		group.Go(func() error {
			errs[i] = c.commitLeaving(ctx, v, b)
			return nil
		})
	}
	_ = group.Wait() // the errors are in errs
	for i, b := range batches[1:] {
		if errs[i] == nil {
			wrote += b.changes
		}
	}
	for _, e := range errs {
		if errors.Is(e, store.ErrUnknown) {
			return wrote, e
		}
	}
	if err := joined(errs); err != nil || last == nil || !differs {
		return wrote, err
	}
	last.Status = &plan.Status
	if err := c.commit(ctx, last); err != nil {
		return wrote, err
	}
	c.tellRunner(last)
	return wrote, nil
}

// foresee makes the plan's status that which another look would find once all of its batches have landed, where that is known and
// nothing else is left to do. What is written last then bears it: it returns a batch for that, nil where the only one of the pass does.
func (c *ReplicationController) foresee(v *view, plan *reconcile.Plan, batches []*batch) (last *batch) {
	planned := 0
	for _, b := range batches {
		planned += b.changes
	}
	if v.deep || c.phantom || c.farm.books != nil || planned != len(plan.Changes) {
		return nil
	}
	next, ok := reconcile.Foresee(v.snapshot, plan)
	if !ok {
		return nil
	}
	v.foreseen = true
	plan.Status, plan.Again, plan.Alone = next.Status, next.Again, next.Alone
	if len(batches) > 1 {
		last = c.newBatch(v, nil)
	}
	return last
}

// tellRunner tells the runner of a rollout of a status that was written.
func (c *ReplicationController) tellRunner(b *batch) {
	if b.Rollout != "" && b.Status != nil && c.farm.cfg.OnStatus != nil {
		c.farm.cfg.OnStatus(b.Rollout, b.Landed)
	}
}

// auditVoid adds the requests that a batch answers without carrying them out to its audit record.
func (c *ReplicationController) auditVoid(b *batch, plan *reconcile.Plan) {
	var lines, nodes []string
	for _, void := range plan.Void {
		if slices.Contains(b.Answered, void.Request) {
			lines, nodes = append(lines, void.Reason), append(nodes, void.Node)
			c.log.WithFields(obs.Fields{obs.Node: void.Node, obs.Reason: void.Reason}).Warn("a request of an operator is void")
		}
	}
	if len(lines) == 0 {
		return
	}
	if b.Audit != nil {
		lines, nodes = append(lines, b.Audit.Changes...), append(nodes, b.Audit.Nodes...)
	}
	a := store.NewAudit(c.farm.cfg.ID, "reconcile", c.ID, lines).OnNodes(nodes...)
	b.Audit = &a
}

// statusDiffers compares what an operator would see.
func statusDiffers(before, after *rc.Status) bool {
	return before == nil || !reflect.DeepEqual(*before, *after)
}

// batch is a transaction in the making.
type batch struct {
	store.Batch
	changes int
	actions []reconcile.Action // of the changes
	freed   []string           // nodes where they give room back
	load    store.Load
	relies  bool           // on what counts as available
	takes   []pod.Identity // of that
}

// maxAnswered is how many requests that ask for nothing one pass answers. The others come with the next look.
const maxAnswered = 32

// newBatch returns a pass's first batch, which reports and answers besides, or with a nil plan a later one.
func (c *ReplicationController) newBatch(v *view, plan *reconcile.Plan) *batch {
	b := &batch{Batch: store.Batch{Fence: c.fence, RCID: c.ID, RCIndex: v.head.RC.Index, Rollout: v.head.RC.Value.Rollout()}}
	if v.minimum != nil {
		b.Newest = v.minimum.newest() // or another one: see commitLeaving
	}
	b.load = c.farm.cfg.Store.HeadLoad(&b.Batch, plan != nil)
	if plan != nil && len(plan.Answered) > 0 {
		answers := store.Part{Answered: plan.Answered[:min(len(plan.Answered), maxAnswered)]}
		b.load.Add(c.farm.cfg.Store.LoadOf(c.ID, &answers))
		b.Add(&answers)
	}
	return b
}

// batches groups the plan's changes into transactions. Each node's reservation is in one batch only, so that batches can be
// in flight together; a change that would need a node of an earlier, full batch waits for the next pass.
func (c *ReplicationController) batches(ctx context.Context, v *view, plan *reconcile.Plan) ([]*batch, error) {
	reserved, unreadable, err := c.reservationsOf(ctx, v, plan.Changes)
	if err != nil || len(plan.Changes) == 0 {
		return nil, err
	}
	p := c.newPacking(v, plan, reserved, unreadable)
	for rest := plan.Changes; len(rest) > 0; {
		run := rest[:sharing(rest)]
		p.add(run)
		rest = rest[len(run):]
	}
	if len(p.out) > 0 {
		a := store.NewAudit(c.farm.cfg.ID, "reconcile", c.ID, p.lines).AndMore(p.more).OnNodes(p.concerned...)
		p.out[0].Audit = &a
	}
	return p.out, nil
}

// reservationsOf returns what is taken on every node whose reservation a change touches, and reads what this pass has not;
// those that cannot be read come back as errors too.
func (c *ReplicationController) reservationsOf(ctx context.Context, v *view, changes []reconcile.Change) (map[string]store.Rec[node.Reservation], map[string]error, error) {
	var names []string
	seen := maps.Clone(v.reserved)
	for i := range changes {
		for _, r := range changes[i].Reserve {
			if _, known := seen[r.Node]; !known {
				seen[r.Node] = store.Rec[node.Reservation]{}
				names = append(names, r.Node)
			}
		}
	}
	if len(names) == 0 {
		return seen, nil, nil
	}
	d, err := c.farm.cfg.Store.ReadDetails(ctx, store.Wanted{Reservations: names, Nodes: len(v.snapshot.Nodes)}, false)
	if err != nil {
		return nil, nil, err
	}
	maps.Copy(seen, d.Reservations)
	return seen, d.Unreadable, nil
}

// reserve returns the new reservations that a change needs, or why a node cannot take it. It fills in the numbers of the
// change's dynamic ports: nobody else gets one of them, since it lands only if these reservations do (P3).
func (c *ReplicationController) reserve(v *view, reserved map[string]store.Rec[node.Reservation], ch *reconcile.Change) ([]store.ReservationWrite, scheduler.Reason) {
	var writes []store.ReservationWrite
	for i := range ch.Reserve {
		r := &ch.Reserve[i]
		rec := reserved[r.Node]
		next := nextOf(v, rec, r.Node)
		if reason := c.reserveOn(v, next, ch, r); reason != "" {
			return nil, reason
		}
		writes = append(writes, store.ReservationWrite{Node: r.Node, Index: rec.Index, Value: next})
	}
	return writes, ""
}

// nextOf returns a copy of a node's reservation for a change to write to.
func nextOf(v *view, rec store.Rec[node.Reservation], nodeName string) node.Reservation {
	next := rec.Value.Clone()
	if n := v.snapshot.Nodes[nodeName]; rec.Index == 0 && n != nil && n.MustLeave() {
		next.Closed = true // the record was lost (R13); whoever ends the drain writes it
	}
	return next
}

// reserveOn is reserve on one node. With a reason the reservation is as it was.
func (c *ReplicationController) reserveOn(v *view, next node.Reservation, ch *reconcile.Change, r *reconcile.ReserveChange) scheduler.Reason {
	key := ch.Identity.String()
	if r.Holder == nil {
		delete(next.Holders, key)
		return ""
	}
	n := v.snapshot.Nodes[r.Node]
	if adds(ch) && r.Node == ch.Placement.Node && n != nil && scheduler.Outdated(n, next) {
		return scheduler.Relabelled
	}
	share, ports, reason := c.share(v, next, r)
	if reason == "" {
		ch.AssignPorts(r.Node, ports)
		next.Holders[key] = share
	}
	return reason
}

// adds reports whether a change brings a pod to a node, which must match then. What is there already has its share whatever the
// node's labels are.
func adds(ch *reconcile.Change) bool {
	return ch.Action == reconcile.Place || ch.Action == reconcile.Move
}

// share returns what a change takes of a node besides what is reserved there, with the numbers of dynamic ports.
func (c *ReplicationController) share(v *view, res node.Reservation, r *reconcile.ReserveChange) (node.Holder, map[string]int, scheduler.Reason) {
	share, n := *r.Holder, v.snapshot.Nodes[r.Node]
	var ports map[string]int
	var reason scheduler.Reason
	switch {
	case n == nil && len(r.Dynamic) > 0:
		return share, nil, scheduler.NotAlive // whatever its range was
	case n != nil && len(r.Dynamic) > 0:
		share, ports, reason = scheduler.Share(n, res, share, r.Dynamic, r.Held)
	}
	if r.Keep {
		share = share.With(res.Holders[share.Pod.String()])
	}
	if reason == "" && n != nil && !r.Force {
		reason = scheduler.Fits(n, res, share.Pod, share)
	}
	return share, ports, reason
}

// sharing returns how many changes, from the first on, are about the node that the first is about.
func sharing(changes []reconcile.Change) int {
	n := 1
	for n < len(changes) && len(changes[0].Reserve) == 1 && len(changes[n].Reserve) == 1 &&
		changes[n].Reserve[0].Node == changes[0].Reserve[0].Node {
		n++
	}
	return n
}
