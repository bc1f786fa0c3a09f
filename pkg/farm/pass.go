package farm

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/rcfarm/rcfarm/pkg/farm/place"
	"github.com/rcfarm/rcfarm/pkg/farm/reconcile"
	"github.com/rcfarm/rcfarm/pkg/obs"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// pass has the state of one pass over one controller. Its reader, search, packer and writer do not know the pass: it
// gives each of them what it needs, and takes its result.
type pass struct {
	kit    *kit
	id     string // of the controller
	log    obs.Logger
	unit   *unit
	shared *shared
	mem    memory // in the end the next memory of the controller

	view                         // of the unit, when the pass began
	traces   traces              // in the end what the look adds to its view
	head     store.Head          // of the controller
	snapshot *reconcile.Snapshot // nil until it is read
	reader   reader
	search   *place.Search
}

func (p *pass) run(ctx context.Context) (made passed, err error) {
	started := time.Now()
	p.shared.begin() // until the pass ends, each changed node concerns the controller
	landed := false
	defer func() { p.mem.places = p.search.End(landed) }()
	if err := p.read(ctx); store.IsCorrupt(err) {
		return made, cmp.Or(p.reportUnreadable(ctx, p.head, err), err)
	} else if err != nil {
		return made, err
	}
	if p.level == store.Consistent {
		to := p.pusher()
		to.pushMissed(p.snapshot.Pods, p.unit.fence)
	}
	plan, err := p.decide(ctx)
	if err != nil {
		return made, err
	}
	least, more, err := p.guardMinimum(ctx, &plan)
	if made.more = more; more || err != nil {
		return made, err
	}
	if even := p.search.Balance(ctx, &plan, p.reader.resync); even && plan.Finish {
		return made, p.finish(ctx)
	}
	if admitted, err := p.admitStops(ctx, &plan); err != nil || !admitted {
		return passed{again: claimsLook}, err
	}
	if err := p.search.Assign(ctx, &plan, p.maxAdds()); err != nil {
		return made, err
	}
	done, err := p.write(ctx, &plan, least)
	wrote := done.changes
	landed = err == nil && wrote == len(plan.Changes)
	p.keep(&plan, done, err)
	if wrote > 0 {
		p.log.WithFields(obs.Fields{
			obs.Action: summary(plan.Changes), obs.Desired: plan.Status.Desired, obs.Current: plan.Status.Placed,
			obs.Took: time.Since(started).Round(time.Millisecond).String(), "written": wrote,
		}).Info("changed pods")
	}
	if err != nil {
		return made, p.unit.afterFailure(ctx, err)
	}
	alerted := p.alert(ctx, &plan)
	if wrote > 0 && frees(plan.Changes) {
		p.kit.peers.capacityFreed(p.id)
	}
	return p.next(&plan, wrote, alerted), nil
}

// read reads the snapshot, and in the same request the reservations of the nodes that the plan may need.
func (p *pass) read(ctx context.Context) (err error) {
	if p.head, p.snapshot, err = p.reader.open(); err != nil {
		return err
	}
	p.mem.last = evidenceOf(p.head.RC.Index, p.head.Placements)
	if err := p.search.Guess(ctx, p.snapshot); err != nil {
		return err
	}
	got, err := p.reader.read(ctx, p.snapshot, p.search.Guessed())
	p.snapshot, p.traces.reports = got.snapshot, got.reports
	p.search.Read(got.details)
	repair := func(r store.Rec[store.Request]) bool { return r.Value.Kind == store.RepairReservation }
	if err == nil && slices.ContainsFunc(p.head.Requests, repair) {
		p.shared.askResync() // the next pass also looks for missing shares
	}
	return err
}

// addsForOthers is how many pods one pass places at most while other units wait. It does not bound a pass for which no
// unit waits: in parts, 5,000 pods on 1,000 nodes take five times as long, because each look reads the unit and writes
// almost every reservation again.
const addsForOthers = 1000

func (p *pass) maxAdds() int {
	if p.kit.peers.waiting() > 0 {
		return addsForOthers
	}
	return math.MaxInt
}

// next returns the result of a pass, of which wrote changes landed.
func (p *pass) next(plan *reconcile.Plan, wrote int, alerted bool) passed {
	asked := wrote > 0 && wrote == len(plan.Changes) && onlyAsks(plan.Changes)
	next := passed{again: plan.Again, waits: asked && p.unhampered(plan), awaits: plan.Status.Is(rc.WaitsForService)}
	switch {
	case asked && !alerted:
		next.again = soonest(plan.Again, askedLook)
	case wrote > 0 || alerted || len(plan.Answered) > 0:
		next.more = true // there may also be more requests than one pass answers
	}
	return next
}

// askedLook is the pause after a plan that only placed, moved or stopped pods. Each report of a node ends it. Until
// then only the status may be out of date.
const askedLook = time.Second

func onlyAsks(changes []reconcile.Change) bool {
	return !slices.ContainsFunc(changes, func(ch reconcile.Change) bool {
		return !adds(&ch) && ch.Action != reconcile.Stop
	})
}

// soonest returns the shorter of two times; zero means none.
func soonest(a, b time.Duration) time.Duration {
	if a > 0 && b > 0 {
		return min(a, b)
	}
	return cmp.Or(a, b)
}

func frees(changes []reconcile.Change) bool {
	return slices.ContainsFunc(changes, func(ch reconcile.Change) bool { return len(freedBy(&ch)) > 0 })
}

// unhampered reports, for a plan that only writes intents, whether nothing is left to do until the nodes report.
func (p *pass) unhampered(plan *reconcile.Plan) bool {
	return plan.Unobstructed() && p.head.RC.Value.InPlace == nil && len(p.snapshot.Requests) == 0
}

// finish removes the last records of a deleted controller, and of its unit if it is the last one.
//
// Before that it lists the placements again. If the token may not read some of them, a list shows this; the transaction
// at the start of the pass does not. It moves the fence before it lists, because a restore of Consul's snapshot may
// bring a placement back without a change of the controller's record. Such a restore also changes the lock's index, so
// Consul refuses the transaction.
func (p *pass) finish(ctx context.Context) error {
	if err := p.unit.bump(ctx); err != nil {
		return err
	}
	switch left, corrupt, err := p.kit.lists.Placements(ctx, p.id, store.Consistent); {
	case err != nil:
		return err
	case len(left)+len(corrupt) > 0:
		return fmt.Errorf("controller %s has %d placements that its pass did not see", p.id, len(left)+len(corrupt))
	}
	p.mem.alertGone(ctx, p.kit.notifier, p.id, p.head.Status)
	a := store.NewAudit(p.kit.farm, "finish", p.id, []string{"removed " + p.head.RC.Value.Name + " after its last pod"})
	bell := uint64(0)
	if p.view.alone(p.id) {
		bell = p.BellIndex
	}
	if err := p.kit.lock.Finish(ctx, p.unit.fence, p.head.RC, bell, p.schema.Index, a); err != nil {
		return p.unit.afterFailure(ctx, err)
	}
	p.log.WithField(obs.RCName, p.head.RC.Value.Name).Info("deleted a controller")
	return errRecordGone
}

// keep keeps the results of the write for the look, the next pass and other goroutines.
func (p *pass) keep(plan *reconcile.Plan, done written, err error) {
	p.traces.landed, p.traces.stale = done.batches, done.sent && err != nil
	if !done.status.IsZero() {
		p.mem.reported = done.status
	}
	p.remember(plan, done.changes, err)
	if err == nil {
		p.mem.noteFound(plan.Status)
	}
	p.mem.noteConfirmed(p.snapshot.Pods, plan)
}

// remember stores what other goroutines read.
func (p *pass) remember(plan *reconcile.Plan, wrote int, err error) {
	nodes, placed := map[string]bool{}, 0
	for i := range p.snapshot.Pods {
		nodes[p.snapshot.Pods[i].Node] = true
	}
	for i := range plan.Changes {
		if placement := plan.Changes[i].Placement; placement != nil {
			nodes[placement.Node] = true
		}
		if plan.Changes[i].Action == reconcile.Place && err == nil && wrote == len(plan.Changes) {
			placed++
		}
	}
	wantsNodes := plan.Status.Placed+placed < plan.Status.Desired ||
		plan.Status.Is(rc.InsufficientNodes) || plan.Status.Is(rc.SchedulerFailing) || // a move, too
		plan.Facts().WantsSecondNode()
	p.shared.ended(nodes, wantsNodes, plan.Facts().EachNodeSelector())
	if p.reader.resync && err == nil && wrote == 0 && p.snapshot.Hold == "" && p.snapshot.Breaker == "" {
		p.shared.resynced()
	}
	p.kit.stops.SetPods(p.id, p.staying(plan))
}

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
