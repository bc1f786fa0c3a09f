package farm

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/rcfarm/rcfarm/pkg/farm/reconcile"
	"github.com/rcfarm/rcfarm/pkg/obs"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// reading is what one look at one controller has read, with the indices that its writes depend on, and what it works with.
type reading struct {
	kit    *kit
	id     string // of the controller
	log    obs.Logger
	mem    memory
	unit   *unit
	shared *shared

	*view               // of the unit
	head     store.Head // of the controller, as the pass goes by it
	snapshot *reconcile.Snapshot
	resync   bool
}

// pass is one look at one controller: its reader reads, reconcile decides, placing finds nodes, its writer writes. It lives as long as the
// look.
type pass struct {
	*reading
	room    *finder
	books   *booking
	reader  reader
	placing placing
	writer  writer
}

// run looks at the controller once: read, decide, write.
func (ps *pass) run(ctx context.Context) (made passed, err error) {
	started := time.Now()
	ps.shared.begin() // what changes while this pass is under way may matter to it
	defer func() { ps.kit.ledger.GiveBack(ps.room.taken) }()
	err = ps.reader.read(ctx)
	var corrupt *store.CorruptError
	switch {
	case errors.As(err, &corrupt):
		return made, cmp.Or(ps.writer.sayUnreadable(ctx, ps.head, err), err)
	case err != nil:
		return made, err
	}
	if ps.consistent {
		ps.writer.tellMissed()
	}
	plan, err := ps.decide(ctx)
	if err != nil {
		return made, err
	}
	if made.more, err = ps.writer.guardMinimum(ctx, &plan); made.more || err != nil {
		return made, err
	}
	if even := ps.books.balance(ctx, &plan, ps.resync); even && plan.Finish {
		return made, ps.finish(ctx)
	}
	if admitted, err := ps.admitStops(ctx, &plan); err != nil || !admitted {
		return passed{again: claimsLook}, err
	}
	if err := ps.placing.assign(ctx, &plan); err != nil {
		return made, err
	}
	wrote, err := ps.writer.apply(ctx, &plan)
	ps.remember(&plan, wrote, err)
	if err == nil {
		ps.mem.found = &plan.Status
	}
	ps.mem.noteConfirmed(ps.snapshot.Pods, &plan)
	if wrote > 0 {
		ps.log.WithFields(obs.Fields{
			obs.Action: summary(plan.Changes), obs.Desired: plan.Status.Desired, obs.Current: plan.Status.Placed,
			obs.Took: time.Since(started).Round(time.Millisecond).String(), "written": wrote,
		}).Info("changed pods")
	}
	if err != nil {
		return made, ps.unit.afterFailure(ctx, err)
	}
	told := ps.writer.alert(ctx, &plan)
	if wrote > 0 && frees(plan.Changes) {
		ps.kit.fleet.roomFreed(ps.id)
	}
	asked := wrote > 0 && wrote == len(plan.Changes) && onlyAsks(plan.Changes)
	made = passed{again: plan.Again, waits: asked && ps.unhampered(&plan), awaits: plan.Status.Is(rc.WaitsForService)}
	switch {
	case asked && !told:
		made.again = soonest(plan.Again, askedLook)
	case wrote > 0 || told || len(plan.Answered) > 0:
		made.more = true // there may be further requests, too
	}
	return made, nil
}

// askedLook is when a controller whose plan was to place, move or stop pods, and nothing else, is looked at again. Nothing more can be
// done before the nodes report, which rings; only the status says less than it could until then.
const askedLook = time.Second

func onlyAsks(changes []reconcile.Change) bool {
	return !slices.ContainsFunc(changes, func(ch reconcile.Change) bool { return !adds(&ch) && ch.Action != reconcile.Stop })
}

// soonest returns the shorter of two times; each may be zero for none.
func soonest(a, b time.Duration) time.Duration {
	if a > 0 && b > 0 {
		return min(a, b)
	}
	return cmp.Or(a, b)
}

// unhampered reports whether nothing follows from a plan that only asks nodes for something until they report.
func (ps *reading) unhampered(plan *reconcile.Plan) bool {
	return plan.Unhampered() && ps.head.RC.Value.InPlace == nil && len(ps.snapshot.Requests) == 0
}

// finish removes the last records of a deleted controller, and with the last controller of its unit those of the unit. Before that it looks for placements once more: a list, unlike the
// transaction that the pass began with, tells of whatever the token may not read. And it moves the fence before it looks. A
// snapshot that is restored between the removal of the last placement and the last transaction brings placements back,
// while the controller's own record may be just as it was; but then the lock is not as it is now.
func (ps *pass) finish(ctx context.Context) error {
	if err := ps.unit.bump(ctx); err != nil {
		return err
	}
	switch left, corrupt, err := ps.kit.lists.Placements(ctx, ps.id, true); {
	case err != nil:
		return err
	case len(left)+len(corrupt) > 0:
		return fmt.Errorf("controller %s has %d placements that its pass did not see", ps.id, len(left)+len(corrupt))
	}
	ps.mem.alertGone(ctx, ps.kit.teller, ps.id, ps.head.Status)
	a := store.NewAudit(ps.kit.farm, "finish", ps.id, []string{"removed " + ps.head.RC.Value.Name + " after its last pod"})
	last := uint64(0)
	if ps.view.alone(ps.id) {
		last = ps.BellIndex
	}
	if err := ps.kit.lock.Finish(ctx, ps.mem.fence, ps.head.RC, last, ps.schema.Index, a); err != nil {
		return ps.unit.afterFailure(ctx, err)
	}
	ps.log.WithField(obs.RCName, ps.head.RC.Value.Name).Info("deleted a controller")
	return errRecordGone
}

// remember keeps what the others of the farm ask of the controller.
func (ps *pass) remember(plan *reconcile.Plan, wrote int, err error) {
	nodes, placed := map[string]bool{}, 0
	for i := range ps.snapshot.Pods {
		nodes[ps.snapshot.Pods[i].Node] = true
	}
	for i := range plan.Changes {
		if p := plan.Changes[i].Placement; p != nil {
			nodes[p.Node] = true
		}
		if plan.Changes[i].Action == reconcile.Place && err == nil && wrote == len(plan.Changes) {
			placed++
		}
	}
	wantsNodes := plan.Status.Placed+placed < plan.Status.Desired || plan.Status.Is(rc.InsufficientNodes) || plan.Status.Is(rc.SchedulerFailing) || // also for a move
		ps.snapshot.WantsSecondNode()
	ps.shared.ended(nodes, wantsNodes, ps.snapshot.Follows(), ps.resync && err == nil && wrote == 0 && ps.snapshot.Hold == "" && ps.snapshot.Breaker == "")
	ps.kit.stops.means(ps.id, ps.staying(plan))
}

// summary counts changes by action, for the log.
func summary(changes []reconcile.Change) string {
	counts := map[reconcile.Action]int{}
	var order []reconcile.Action
	for i := range changes {
		if counts[changes[i].Action]++; counts[changes[i].Action] == 1 {
			order = append(order, changes[i].Action)
		}
	}
	text := ""
	for _, a := range order {
		text += fmt.Sprintf(" %s:%d", a, counts[a])
	}
	return text[min(1, len(text)):]
}
