package farm

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/labels"

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
	shared *shared

	head       store.Head
	schema     store.Rec[store.Schema]
	rollout    store.InCharge // where the record has a mutator
	breaker    store.Rec[store.Breaker]
	companions []store.Companion   // that have a record
	drops      store.DropsBy       // of the controller and its companions, as listed before the realities
	reported   map[store.At]uint64 // indices of the realities
	snapshot   *reconcile.Snapshot
	resync     bool
	consistent bool // what was read is not that of a leader that is behind
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

// run looks at the controller once: read, decide, write. It returns when to look again even if nothing rings.
func (ps *pass) run(ctx context.Context) (again time.Duration, err error) {
	started := time.Now()
	if ps.mem.unsure {
		if err := ps.bump(ctx); err != nil {
			return 0, err
		}
	}
	ps.shared.begin() // what changes while this pass is under way may matter to it
	defer func() { ps.kit.ledger.GiveBack(ps.room.taken) }()
	err = ps.reader.read(ctx)
	var corrupt *store.CorruptError
	switch {
	case errors.Is(err, store.ErrNotFound) && !ps.consistent:
		ps.mem.consistent = true // a leader that is behind may not have it yet
		return time.Millisecond, nil
	case errors.Is(err, store.ErrNotFound):
		return 0, ps.abandon(ctx, ps.head.Status)
	case errors.As(err, &corrupt):
		ps.kit.stops.unreadable(ps.id)
		return 0, cmp.Or(ps.writer.sayUnreadable(ctx, ps.head, err), err)
	case err != nil:
		return 0, err
	}
	if ps.consistent {
		ps.writer.tellMissed()
	}
	if ps.kit.stops.isUnread(ps.id) {
		ps.learn()
	}
	if gone, err := ps.leave(ctx); gone || err != nil {
		return 0, err
	}
	if ps.head.BellIndex == 0 {
		// Without a bell nobody could tell us of a change, and no write could depend on there being none.
		return time.Millisecond, ps.kit.writes.Ring(ctx, ps.id)
	}
	if released, err := ps.releaseMutator(ctx); released || err != nil {
		return time.Millisecond, err
	}
	plan, err := ps.decide(ctx)
	if err != nil {
		return 0, err
	}
	if made, err := ps.writer.guardMinimum(ctx, &plan); made || err != nil {
		return time.Millisecond, err
	}
	if even := ps.books.balance(ctx, &plan, ps.resync); even && plan.Finish {
		return 0, ps.finish(ctx)
	}
	if admitted, err := ps.admitStops(ctx, &plan); err != nil || !admitted {
		return claimsLook, err
	}
	if err := ps.placing.assign(ctx, &plan); err != nil {
		return 0, err
	}
	wrote, err := ps.writer.apply(ctx, &plan)
	ps.remember(&plan, wrote, err)
	ps.expect(&plan, wrote)
	ps.mem.noteConfirmed(ps.snapshot.Pods, &plan)
	if wrote > 0 {
		ps.log.WithFields(obs.Fields{
			obs.Action: summary(plan.Changes), obs.Desired: plan.Status.Desired, obs.Current: plan.Status.Placed,
			obs.Took: time.Since(started).Round(time.Millisecond).String(), "written": wrote,
		}).Info("changed pods")
	}
	if err != nil {
		return 0, ps.afterFailure(ctx, err)
	}
	told := ps.writer.alert(ctx, &plan)
	ps.looked(plan.Alone || ps.mem.expects.nodes)
	if wrote > 0 && frees(plan.Changes) {
		ps.kit.fleet.roomFreed(ps.id)
	}
	switch {
	case wrote > 0 && !told && ps.writer.foreseen:
		return plan.Again, nil
	case wrote > 0 && !told && wrote == len(plan.Changes) && onlyAsks(plan.Changes):
		return soonest(plan.Again, askedLook), nil
	case wrote > 0 || told || len(plan.Answered) > 0:
		return time.Millisecond, nil // what this made possible comes with the next look, and further requests
	}
	if ps.writer.later > 0 {
		return soonest(plan.Again, ps.writer.later), nil
	}
	return plan.Again, nil
}

// askedLook is when a controller whose plan was to place, move or stop pods, and nothing else, is looked at again. Nothing more can be
// done before the nodes report, which rings; only the status says less than it could until then.
const askedLook = time.Second

func onlyAsks(changes []reconcile.Change) bool {
	return !slices.ContainsFunc(changes, func(ch reconcile.Change) bool { return !adds(&ch) && ch.Action != reconcile.Stop })
}

// soonest returns the shorter of two times; the first may be zero for none.
func soonest(a, b time.Duration) time.Duration {
	if a > 0 {
		return min(a, b)
	}
	return b
}

// afterFailure makes sure of the fence before anybody reads on: after an unknown outcome it is bumped, so that a write that
// lingers somewhere can no longer land; where the fence itself was refused, bumping tells whether the lock is still ours
// (R9).
func (ps *reading) afterFailure(ctx context.Context, failure error) error {
	if !errors.Is(failure, store.ErrUnknown) && !store.LockRefused(failure, ps.mem.fence) {
		return failure
	}
	ps.mem.unsure = true
	if err := ps.bump(ctx); err != nil {
		return fmt.Errorf("after %w: %w", failure, err)
	}
	ps.log.WithError(failure).WithField(obs.ConsulIndex, ps.mem.fence.Index).Info("bumped the fence")
	return failure
}

// bump moves the fence. Until that has worked, every pass begins with it.
func (ps *reading) bump(ctx context.Context) error {
	fence, err := ps.kit.lock.Bump(ctx, ps.mem.fence)
	if err != nil {
		return fmt.Errorf("bump the fence: %w", err)
	}
	if ps.mem.unsure {
		ps.kit.metrics.bumps.Inc()
	}
	ps.mem.fence, ps.mem.consistent, ps.mem.unsure = fence, true, false
	return nil
}

// abandon gives up a controller whose record is gone. Its pods, if any, run on: nothing says that they should stop (P4).
func (ps *pass) abandon(ctx context.Context, st *rc.Status) error {
	if err := ps.kit.lock.Abandon(ctx, ps.id, ps.mem.fence); err != nil {
		ps.mem.consistent = true // the record may be there after all
		return ps.afterFailure(ctx, err)
	}
	ps.mem.alertGone(ctx, ps.kit.teller, ps.id, st)
	ps.log.Warn("the controller's record is gone; its pods are left alone")
	return errRecordGone
}

// finish removes the last records of a deleted controller. Before that it looks for placements once more: a list, unlike the
// transaction that the pass began with, tells of whatever the token may not read. And it moves the fence before it looks. A
// snapshot that is restored between the removal of the last placement and the last transaction brings placements back,
// while the controller's own record may be just as it was; but then the lock is not as it is now.
func (ps *pass) finish(ctx context.Context) error {
	if err := ps.bump(ctx); err != nil {
		ps.mem.unsure = true
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
	if err := ps.kit.lock.Finish(ctx, ps.mem.fence, ps.head.RC, ps.schema.Index, a); err != nil {
		return ps.afterFailure(ctx, err)
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
	wantsNodes := plan.Status.Placed+placed < plan.Status.Desired || plan.Status.Is(rc.InsufficientNodes) || plan.Status.Is(rc.SchedulerFailing) // also for a move
	ps.shared.ended(nodes, wantsNodes, ps.snapshot.Follows(), ps.resync && err == nil && wrote == 0 && ps.snapshot.Hold == "" && ps.snapshot.Breaker == "")
	ps.kit.stops.means(ps.id, ps.staying(stopsOf(plan, ps.snapshot.Now)))
}

// looked notes the bells as this pass has read them: those of companions too, unless nothing follows whatever they do.
func (ps *pass) looked(alone bool) {
	seen := map[string]uint64{ps.id: ps.head.BellIndex}
	if !alone {
		for i := range ps.companions {
			seen[ps.companions[i].RCID] = ps.companions[i].Marks.Bell
		}
	}
	ps.shared.looks.Ended(seen, alone)
}

// leave gives the controller up if another farm should have it: its labels do not match this farm's selector any more, or
// the members have been stable and another one prefers it.
func (ps *pass) leave(ctx context.Context) (bool, error) {
	leaving := ps.shared.takeLeaving()
	owner := ps.kit.farm
	if matches := ps.mem.recordless || ps.kit.selector.Matches(labels.Set(ps.head.RC.Value.Labels)); leaving && matches {
		var err error
		if owner, _, err = ps.kit.fleet.preferred(ctx, ps.id); err != nil {
			return false, err
		}
	} else if !matches {
		owner = "a farm whose selector matches it"
	}
	if owner == ps.kit.farm || owner == "" {
		return false, nil
	}
	if err := ps.kit.lock.Release(ctx, ps.id, ps.mem.fence); err != nil {
		ps.shared.rebalance()
		return false, ps.afterFailure(ctx, err)
	}
	ps.log.WithField("to", owner).Info("handed a controller over")
	return true, errHandedOver
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
