package farm

import (
	"context"
	"errors"
	"maps"
	"reflect"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/rcfarm/rcfarm/pkg/farm/reconcile"
	"github.com/rcfarm/rcfarm/pkg/internal/contain"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/obs"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// writer writes what a pass has decided.
type writer struct {
	*reading
	room    *finder
	minimum *minimum // nil: no change needs it
}

// apply writes the plan's changes and status. It returns how many changes landed, and the error that made the pass end
// early: ErrUnknown before anything else, because it asks for a bump.
func (ps *writer) apply(ctx context.Context, plan *reconcile.Plan) (wrote int, err error) {
	batches, err := ps.batches(ctx, plan)
	if err != nil {
		return 0, err
	}
	if made := changesIn(batches); made < len(plan.Changes) {
		plan.MadeOnly(ps.snapshot.Now, made)
	}
	plan.Status.CarrySince(ps.head.Status)
	ps.track(plan)
	differs := statusDiffers(ps.head.Status, &plan.Status) && !ps.mem.recordless
	if len(batches) == 0 && differs && len(plan.Answered) == 0 {
		wait := ps.statusMayWait(plan)
		plan.Again = soonest(plan.Again, wait)
		differs = wait == 0
	}
	if len(batches) == 0 && (differs || len(plan.Answered) > 0) {
		batches = append(batches, ps.newBatch(plan))
	}
	if len(batches) == 0 {
		return 0, nil
	}
	reports := batches[0]
	if differs && len(batches) > 1 && forgets(plan.Changes) {
		reports = ps.newBatch(nil) // the status is true once all others have landed
	}
	if differs {
		reports.Status = &plan.Status
	}
	ps.auditVoid(batches[0], plan)
	was := ps.stale
	ps.stale = true // until all have landed
	if wrote, err = ps.send(ctx, batches); err != nil {
		return wrote, err
	}
	if reports != batches[0] {
		if err := ps.commitLeaving(ctx, reports); err != nil {
			return wrote, err
		}
		batches = append(batches, reports)
	}
	for _, b := range batches {
		ps.landed(&b.Batch)
	}
	ps.stale = was
	return wrote, nil
}

// send carries batches out, and returns how many changes landed. The first has the audit record of all: nothing else is
// written unless it lands.
func (ps *writer) send(ctx context.Context, batches []*batch) (wrote int, err error) {
	if err := ps.commitLeaving(ctx, batches[0]); err != nil {
		return 0, err
	}
	wrote = batches[0].changes
	errs := make([]error, len(batches))
	var group errgroup.Group
	group.SetLimit(inFlight)
	for i, b := range batches[1:] {
		group.Go(func() error {
			errs[i] = contain.Do(func() error { return ps.commitLeaving(ctx, b) })
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
		if errors.Is(e, store.ErrUnknown) || contain.Is(e) != nil {
			return wrote, e
		}
	}
	return wrote, joined(errs)
}

// inFlight is how many batches of one pass are in flight at once.
const inFlight = 8

// forgets reports whether some changes leave nothing of a pod.
func forgets(changes []reconcile.Change) bool {
	return slices.ContainsFunc(changes, func(ch reconcile.Change) bool { return ch.Placement == nil })
}

func changesIn(batches []*batch) (n int) {
	for _, b := range batches {
		n += b.changes
	}
	return n
}

// auditVoid adds the requests that a batch answers without carrying them out to its audit record.
func (ps *writer) auditVoid(b *batch, plan *reconcile.Plan) {
	var lines, nodes []string
	for _, void := range plan.Void {
		if slices.Contains(b.Answered, void.Request) {
			lines, nodes = append(lines, void.Reason), append(nodes, void.Node)
			ps.log.WithFields(obs.Fields{obs.Node: void.Node, obs.Reason: void.Reason}).Warn("a request of an operator is void")
		}
	}
	if len(lines) == 0 {
		return
	}
	if b.Audit != nil {
		lines, nodes = append(lines, b.Audit.Changes...), append(nodes, b.Audit.Nodes...)
	}
	a := store.NewAudit(ps.kit.farm, "reconcile", ps.id, lines).OnNodes(nodes...)
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
func (ps *writer) newBatch(plan *reconcile.Plan) *batch {
	b := &batch{Batch: store.Batch{Fence: ps.mem.fence, RCID: ps.id, RCIndex: ps.head.RC.Index, Beside: ps.beside()}}
	if ps.head.RC.Value.Service != nil || rc.IsPreDeploy(ps.id) {
		index := ps.view.Rollout.Index
		b.Rollout = &index
	}
	if ps.minimum != nil {
		b.Newest = ps.minimum.newest() // or another one: see commitLeaving
	}
	b.load = ps.kit.writes.HeadLoad(&b.Batch, plan != nil)
	if plan != nil && len(plan.Answered) > 0 {
		answers := store.Part{Answered: plan.Answered[:min(len(plan.Answered), maxAnswered)]}
		b.load.Add(ps.kit.writes.LoadOf(ps.id, &answers))
		b.Add(&answers)
	}
	return b
}

// beside returns the indices of the records of the service's other revisions: where operators change those, minimum and bound are others.
// One that is made comes with a rollout.
func (ps *writer) beside() map[string]uint64 {
	if ps.snapshot == nil || len(ps.snapshot.Companions) == 0 {
		return nil
	}
	beside := make(map[string]uint64, len(ps.snapshot.Companions))
	for i := range ps.snapshot.Companions {
		id := ps.snapshot.Companions[i].RCID
		beside[id] = ps.Heads[id].RC.Index
	}
	return beside
}

// batches groups the plan's changes into transactions. Each node's reservation is in one batch only, so that batches can be
// in flight together; a change that would need a node of an earlier, full batch waits for the next pass.
func (ps *writer) batches(ctx context.Context, plan *reconcile.Plan) ([]*batch, error) {
	reserved, unreadable, err := ps.reservationsOf(ctx, plan.Changes)
	if err != nil || len(plan.Changes) == 0 {
		return nil, err
	}
	p := ps.newPacking(plan, reserved, unreadable)
	for rest := plan.Changes; len(rest) > 0; {
		run := rest[:sharing(rest)]
		p.add(run)
		rest = rest[len(run):]
	}
	if len(p.out) > 0 {
		a := store.NewAudit(ps.kit.farm, "reconcile", ps.id, p.lines).AndMore(p.more).OnNodes(p.concerned...)
		p.out[0].Audit = &a
	}
	return p.out, nil
}

// reservationsOf returns what is taken on every node whose reservation a change touches, and reads what this pass has not;
// those that cannot be read come back as errors too.
func (ps *writer) reservationsOf(ctx context.Context, changes []reconcile.Change) (map[string]store.Rec[node.Reservation], map[string]error, error) {
	var names []string
	seen := maps.Clone(ps.room.reserved)
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
	d, err := ps.kit.reads.ReadDetails(ctx, store.Wanted{Reservations: names, Nodes: len(ps.snapshot.Nodes)}, false)
	if err != nil {
		return nil, nil, err
	}
	maps.Copy(seen, d.Reservations)
	return seen, d.Unreadable, nil
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
