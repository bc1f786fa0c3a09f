package farm

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/obs"
	"github.com/rcfarm/rcfarm/pkg/placement"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/reconcile"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// Writes are how a pass changes the world.
type Writes interface {
	Commit(ctx context.Context, b *store.Batch) error
	CostOf(p *store.PodWrite, intents []store.IntentWrite, reservations []store.ReservationWrite) store.Cost
	Ring(ctx context.Context, rcID string) error
	MendClosed(ctx context.Context, nodeName string) (mended bool, err error)
	Finish(ctx context.Context, f store.Fence, rec store.Rec[rc.RC], schemaIndex uint64, a store.Audit) error
}

// assign finds nodes for the plan's adds, turns them into changes and completes the status with what found no node.
func (c *ReplicationController) assign(ctx context.Context, v *view, plan *reconcile.Plan) error {
	if len(plan.Adds) == 0 {
		c.giveBack(v, nil)
		c.farm.cfg.Metrics.short(c.ID, 0, nil)
		return nil
	}
	s := v.snapshot
	if v.nodes == nil {
		if err := c.findNodes(ctx, v); err != nil {
			return c.unscheduled(ctx, v, plan, err)
		}
	}
	if c.farm.books != nil {
		return c.assignAllocated(ctx, v, plan)
	}
	nodes, left, placed := v.nodes, plan.Adds, len(plan.Changes)
	nodes.count(s, plan)
	for len(left) > 0 && (!nodes.pool.empty() || len(nodes.guessed) > 0) {
		some, reservations, err := c.nextNodes(ctx, v, len(left))
		if err != nil {
			return err
		}
		assigned, refused := placement.Assign(placement.Request{
			Pods: left, Want: reconcile.NewHolder(s, pod.Identity{}), Dynamic: s.Manifest.DynamicPorts(), MaxPerNode: s.RC.MaxPerNode, PerNode: nodes.perNode, Avoid: nodes.avoid,
			Spread: nodes.spread, PerGroup: nodes.perGroup, Strict: nodes.strict, Order: some, Reluctant: nodes.foreign, Nodes: s.Nodes, Reservations: reservations,
		})
		for _, a := range assigned {
			plan.Changes = append(plan.Changes, reconcile.PlaceOn(s, a.Pod, a.Node))
			nodes.placed(s, a.Node)
		}
		left = unplaced(left, assigned)
		for reason, n := range refused {
			nodes.others[reason] += n
		}
	}
	c.giveBack(v, plan.Changes)
	c.assigned(v, plan, placed, left)
	return nil
}

// assigned completes a plan whose changes from the given one on place its adds, all but those left.
func (c *ReplicationController) assigned(v *view, plan *reconcile.Plan, placed int, left []pod.Identity) {
	// Changes on one node share its reservation, which only one batch may write: side by side they share a batch too.
	slices.SortStableFunc(plan.Changes[placed:], func(a, b reconcile.Change) int {
		return strings.Compare(a.Placement.Node, b.Placement.Node)
	})
	for _, mark := range plan.Marks {
		if slices.Contains(left, mark.Identity) {
			plan.Changes = append(plan.Changes, mark)
		}
	}
	plan.Short(v.snapshot.Now, len(left), len(v.snapshot.Nodes), v.nodes.others.String())
	c.farm.cfg.Metrics.short(c.ID, len(left), v.nodes.others)
}

// unplaced returns the identities that were not assigned, in their order.
func unplaced(all []pod.Identity, assigned []placement.Assignment) []pod.Identity {
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
	is := make(map[T]bool, len(some))
	for _, x := range some {
		is[x] = true
	}
	return slices.DeleteFunc(slices.Clone(all), func(x T) bool { return is[x] })
}

// apply writes the plan's changes and status. It returns how many changes landed, and the error that made the pass end
// early: ErrUnknown before anything else, because it asks for a bump.
func (c *ReplicationController) apply(ctx context.Context, v *view, plan *reconcile.Plan) (wrote int, err error) {
	batches, err := c.batches(ctx, v, plan)
	if err != nil {
		return 0, err
	}
	plan.Status.CarrySince(v.head.Status)
	c.track(v, plan)
	differs := statusDiffers(v.head.Status, &plan.Status) && !c.phantom
	if len(batches) == 0 && (differs || len(plan.Answered) > 0) {
		batches = append(batches, &batch{Batch: c.newBatch(v)})
	}
	if differs {
		batches[0].Status = &plan.Status
	}
	if len(batches) > 0 { // the others of many come with the next look
		batches[0].Answered = append(batches[0].Answered, plan.Answered[:min(len(plan.Answered), store.MaxAnswered)]...)
	}
	if len(batches) == 0 {
		return 0, nil
	}
	// The first carries the pass's audit record and status: nothing else is written unless it lands.
	if err := c.commit(ctx, batches[0]); err != nil {
		return 0, err
	}
	wrote = batches[0].changes
	errs := make([]error, len(batches))
	var group errgroup.Group
	group.SetLimit(c.farm.cfg.InFlight)
	for i, b := range batches[1:] {
		group.Go(func() error {
			errs[i] = c.commit(ctx, b)
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
	return wrote, errors.Join(errs...)
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
	cost    store.Cost
	nodes   map[string]int // node -> position in Reservations
}

func (c *ReplicationController) newBatch(v *view) store.Batch {
	return store.Batch{Fence: c.fence, RCID: c.ID, RCIndex: v.head.RC.Index}
}

// answerBytes is more than the removal of a request takes.
const answerBytes = 1024

// headBytes is set aside in each batch for its conditions, audit record and status.
const headBytes = 32 * 1024

// batches groups the plan's changes into transactions. Each node's reservation is in one batch only, so that batches can be
// in flight together; a change that would need a node of an earlier, full batch waits for the next pass.
func (c *ReplicationController) batches(ctx context.Context, v *view, plan *reconcile.Plan) ([]*batch, error) {
	reserved, unreadable, err := c.reservationsOf(ctx, v, plan.Changes)
	if err != nil || len(plan.Changes) == 0 {
		return nil, err
	}
	var out []*batch
	home := map[string]*batch{} // of each node's reservation
	var lines []string
	for i := range plan.Changes {
		ch := &plan.Changes[i]
		// Writing over an unreadable reservation would forget who holds what.
		if at := slices.IndexFunc(ch.Reserve, func(r reconcile.ReserveChange) bool { return unreadable[r.Node] != nil }); at >= 0 {
			plan.Fail(fmt.Sprintf("%s: %v", ch, unreadable[ch.Reserve[at].Node]))
			continue
		}
		writes, reason := c.reserve(v, reserved, ch)
		if reason != "" {
			plan.Block(v.snapshot.Now, fmt.Sprintf("%s: %s has no room: %s", ch, ch.Placement.Node, reason))
			continue
		}
		pod, intents := rows(ch)
		cost := c.farm.cfg.Store.CostOf(&pod, intents, writes)
		cost.Ops, cost.Bytes = cost.Ops+len(ch.Answers), cost.Bytes+len(ch.Answers)*answerBytes
		b := c.batchFor(cost, sharing(plan.Changes[i:]), &out, home, v, writes)
		if b == nil {
			continue
		}
		b.Pods = append(b.Pods, pod)
		b.Intents = append(b.Intents, intents...)
		c.put(b, v, ch, writes)
		for _, w := range writes {
			home[w.Node] = b
			reserved[w.Node] = store.Rec[node.Reservation]{Value: w.Value, Index: w.Index}
		}
		lines = append(lines, ch.String())
	}
	if len(out) > 0 {
		a := store.NewAudit(c.farm.cfg.ID, "reconcile", c.ID, lines).OnNodes(slices.Collect(maps.Keys(home))...)
		out[0].Audit = &a
	}
	return out, nil
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
	d, err := c.farm.cfg.Store.ReadDetails(ctx, store.Wanted{Reservations: names}, false)
	if err != nil {
		return nil, nil, err
	}
	maps.Copy(seen, d.Reservations)
	return seen, d.Unreadable, nil
}

// reserve returns the new reservations that a change needs, or why a node cannot take it. It fills in the numbers of the
// change's dynamic ports: nobody else gets one of them, since it lands only if these reservations do (P3).
func (c *ReplicationController) reserve(v *view, reserved map[string]store.Rec[node.Reservation], ch *reconcile.Change) ([]store.ReservationWrite, placement.Reason) {
	var writes []store.ReservationWrite
	key := ch.Identity.String()
	for _, r := range ch.Reserve {
		rec := reserved[r.Node]
		next := rec.Value.Clone()
		view := v.snapshot.Nodes[r.Node]
		if rec.Index == 0 && view != nil && view.MustLeave() {
			next.Closed = true // the record was lost (R13); whoever ends the drain writes it
		}
		if r.Holder == nil {
			delete(next.Holders, key)
		} else {
			share, ports, reason := c.share(v, next, &r)
			if reason != "" {
				return nil, reason
			}
			ch.AssignPorts(r.Node, ports)
			next.Holders[key] = share
		}
		writes = append(writes, store.ReservationWrite{Node: r.Node, Index: rec.Index, Value: next})
	}
	return writes, ""
}

// share returns what a change takes of a node besides what is reserved there, with the numbers of dynamic ports.
func (c *ReplicationController) share(v *view, res node.Reservation, r *reconcile.ReserveChange) (node.Holder, map[string]int, placement.Reason) {
	share, n := *r.Holder, v.snapshot.Nodes[r.Node]
	var ports map[string]int
	var reason placement.Reason
	switch {
	case n == nil && len(r.Dynamic) > 0:
		return share, nil, placement.NotAlive // whatever its range was
	case n != nil && len(r.Dynamic) > 0:
		share, ports, reason = placement.Share(n, res, share, r.Dynamic, r.Held)
	}
	if r.Keep {
		share = share.With(res.Holders[share.Pod.String()])
	}
	if reason == "" && n != nil && !r.Force {
		reason = placement.Fits(n, res, share.Pod, share)
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

// batchFor returns the batch that a change goes into, nil when it must wait for the next pass. The change is the first of
// some on the same node, which go into the same batch if one can take them all: those left over would wait.
func (c *ReplicationController) batchFor(cost store.Cost, some int, out *[]*batch, home map[string]*batch, v *view, writes []store.ReservationWrite) *batch {
	var bound *batch
	for _, w := range writes {
		b := home[w.Node]
		if b != nil && bound != nil && b != bound {
			return nil
		}
		if b != nil {
			bound = b
		}
	}
	if bound != nil {
		for _, w := range writes {
			if home[w.Node] == bound {
				// The reservation is one operation, however many pods of the batch it is for.
				before := c.farm.cfg.Store.CostOf(nil, nil, bound.Reservations[bound.nodes[w.Node]:][:1])
				cost.Ops, cost.Bytes = cost.Ops-before.Ops, cost.Bytes-before.Bytes
			}
		}
	}
	if bound == nil && len(*out) > 0 {
		bound = (*out)[len(*out)-1]
		all := store.Cost{Ops: cost.Ops * some, Bytes: cost.Bytes * some}
		if !bound.fits(cost) || !bound.fits(all) && (&batch{}).fits(all) {
			bound = nil
		}
	} else if bound != nil && !bound.fits(cost) {
		return nil
	}
	if bound == nil {
		bound = &batch{Batch: c.newBatch(v), nodes: map[string]int{}}
		*out = append(*out, bound)
	}
	bound.cost.Ops += cost.Ops
	bound.cost.Bytes += cost.Bytes
	return bound
}

func (b *batch) fits(more store.Cost) bool {
	return b.cost.Ops+more.Ops+store.BatchHead <= store.MaxBatchOps && b.cost.Bytes+more.Bytes+headBytes <= store.MaxBatchBytes
}

// rows translates a change into what is written for its identity.
func rows(ch *reconcile.Change) (store.PodWrite, []store.IntentWrite) {
	intents := make([]store.IntentWrite, len(ch.Intents))
	for i, in := range ch.Intents {
		intents[i] = store.IntentWrite{Node: in.Node, Identity: ch.Identity, Intent: in.Intent}
	}
	return store.PodWrite{Identity: ch.Identity, Index: ch.Index, Placement: ch.Placement}, intents
}

// put adds a change's reservations and the conditions that it depends on to a batch.
func (c *ReplicationController) put(b *batch, v *view, ch *reconcile.Change, writes []store.ReservationWrite) {
	for _, w := range writes {
		if at, known := b.nodes[w.Node]; known {
			b.Reservations[at].Value = w.Value
			continue
		}
		b.nodes[w.Node] = len(b.Reservations)
		b.Reservations = append(b.Reservations, w)
	}
	if ch.NeedsSchema {
		b.SchemaIndex = v.schema.Index
	}
	if dead := ch.NeedsDead; dead != nil {
		if b.Dead == nil {
			b.Dead = map[string]uint64{}
		}
		b.Dead[dead.Name] = dead.Index
	}
	if ch.NeedsBreaker {
		b.BreakerIndex = v.breaker.Index
	}
	if ch.NeedsBell {
		b.BellIndex = v.head.BellIndex
	}
	b.Answered = append(b.Answered, ch.Answers...)
	b.changes++
	b.actions = append(b.actions, ch.Action)
	c.log.WithFields(obs.Fields{obs.Action: string(ch.Action), obs.Pod: ch.Identity.String()}).Debug("planned")
}
