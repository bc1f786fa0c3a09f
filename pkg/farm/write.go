package farm

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/rcfarm/rcfarm/pkg/farm/reconcile"
	"github.com/rcfarm/rcfarm/pkg/internal/contain"
	"github.com/rcfarm/rcfarm/pkg/obs"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// writer writes the batches of a pass. It decides only whether a batch still keeps the minimum.
type writer struct {
	kit     *kit
	unit    string   // id of the controller's unit
	minimum *minimum // nil: no batch needs it
	pusher  pusher
}

func (p *pass) writer(m *minimum) *writer {
	return &writer{kit: p.kit, unit: p.unit.id, minimum: m, pusher: p.pusher()}
}

type written struct {
	changes int       // how many changes of the plan
	batches []*batch  // all batches of the pass; nil if some batch may not have landed
	sent    bool      // some batch was sent
	status  time.Time // when the status landed; zero: it has not
}

// write packs the plan's changes and the status into batches, and writes them. After an error some batches may have
// landed.
func (p *pass) write(ctx context.Context, plan *reconcile.Plan, m *minimum) (written, error) {
	reserved, unreadable, err := p.reader.readReservations(ctx, plan.Changes, p.search.Reserved())
	if err != nil {
		return written{}, err
	}
	packer := p.packer(m)
	batches := packer.pack(plan, reserved, unreadable)
	p.completeStatus(plan, changesIn(batches))
	batches, last := p.addStatus(plan, packer, batches)
	if len(batches) == 0 {
		return written{}, nil
	}
	p.auditVoid(batches[0], plan)
	return p.writer(m).write(ctx, batches, last)
}

func (p *pass) completeStatus(plan *reconcile.Plan, packed int) {
	if packed < len(plan.Changes) {
		plan.SetPartial(p.snapshot.Now, packed)
	}
	plan.Status.CarrySince(p.head.Status)
	p.track(plan)
}

// addStatus adds the plan's status to the batches, if it must be written now. last may be sent only after all other
// batches have landed; nil: there is none.
func (p *pass) addStatus(plan *reconcile.Plan, packer *packer, batches []*batch) (all []*batch, last *batch) {
	differs := statusDiffers(p.head.Status, &plan.Status) && !p.mem.recordless
	if len(batches) == 0 && len(plan.Answered) == 0 && differs {
		wait := statusMayWait(p.head.Status, plan, p.mem.reported)
		plan.Again = soonest(plan.Again, wait)
		differs = wait == 0
	}
	if len(batches) == 0 && (differs || len(plan.Answered) > 0) {
		batches = append(batches, packer.firstBatch(plan))
	}
	switch {
	case !differs:
	case len(batches) > 1 && forgets(plan.Changes):
		last = packer.nextBatch() // the status is only true once all other batches have landed
		last.Status = &plan.Status
	default:
		batches[0].Status = &plan.Status
	}
	return batches, last
}

// write returns ErrUnknown if one of several errors is ErrUnknown, because the fence must be bumped then.
func (w *writer) write(ctx context.Context, batches []*batch, last *batch) (done written, err error) {
	done.sent = true
	if done.changes, done.status, err = w.send(ctx, batches); err != nil {
		return done, err
	}
	if last != nil {
		if err := w.commitAboveMinimum(ctx, last); err != nil {
			return done, err
		}
		batches, done.status = append(batches, last), time.Now()
	}
	done.batches = batches
	return done, nil
}

// send returns how many changes landed, and when the status landed. The first batch has the audit record, so without it
// send writes no other batch.
func (w *writer) send(ctx context.Context, batches []*batch) (wrote int, status time.Time, err error) {
	if err := w.commitAboveMinimum(ctx, batches[0]); err != nil {
		return 0, status, err
	}
	wrote = batches[0].changes
	if batches[0].Status != nil {
		status = time.Now()
	}
	errs := make([]error, len(batches))
	var group errgroup.Group
	group.SetLimit(inFlight)
	for i, b := range batches[1:] {
		group.Go(func() error {
			errs[i] = contain.Do(func() error { return w.commitAboveMinimum(ctx, b) })
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
			return wrote, status, e
		}
	}
	return wrote, status, joined(errs)
}

const inFlight = 8

func forgets(changes []reconcile.Change) bool {
	return slices.ContainsFunc(changes, func(ch reconcile.Change) bool { return ch.Placement == nil })
}

func changesIn(batches []*batch) (n int) {
	for _, b := range batches {
		n += b.changes
	}
	return n
}

// auditVoid adds the requests that a batch answers without a change to its audit record.
func (p *pass) auditVoid(b *batch, plan *reconcile.Plan) {
	var lines, nodes []string
	for _, void := range plan.Void {
		if slices.Contains(b.Answered, void.Request) {
			lines, nodes = append(lines, void.Reason), append(nodes, void.Node)
			p.log.WithFields(obs.Fields{obs.Node: void.Node, obs.Reason: void.Reason}).
				Warn("a request of an operator is void")
		}
	}
	if len(lines) == 0 {
		return
	}
	if b.Audit != nil {
		lines, nodes = append(lines, b.Audit.Changes...), append(nodes, b.Audit.Nodes...)
	}
	a := store.NewAudit(p.kit.farm, "reconcile", p.id, lines).OnNodes(nodes...)
	b.Audit = &a
}

func statusDiffers(before, after *rc.Status) bool {
	return before == nil || !reflect.DeepEqual(*before, *after)
}

// countsEvery is the least time between two writes of a status if only its numbers of pods change, because the status
// with all pods often follows at once.
const countsEvery = 200 * time.Millisecond

// statusMayWait returns how long the plan's status may stay unwritten; zero: it must be written now.
func statusMayWait(last *rc.Status, plan *reconcile.Plan, written time.Time) time.Duration {
	if !onlyCounts(last, plan) {
		return 0
	}
	return max(0, countsEvery-time.Since(written))
}

// onlyCounts reports whether a status differs from the last one only in its numbers of pods. It returns false if the
// controller was or is converged, or if something obstructs the plan.
func onlyCounts(before *rc.Status, plan *reconcile.Plan) bool {
	after := &plan.Status
	if before == nil || before.Is(rc.Converged) || after.Is(rc.Converged) || !plan.Unobstructed() {
		return false
	}
	was, is := *before, *after
	for _, st := range []*rc.Status{&was, &is} {
		st.Placed, st.Available, st.Updated, st.UpdatedAvailable, st.Stopping, st.StandingBy = 0, 0, 0, 0, 0, 0
	}
	was.Conditions, is.Conditions = flags(before), flags(after)
	return reflect.DeepEqual(was, is)
}

func flags(st *rc.Status) []rc.Condition {
	flags := make([]rc.Condition, len(st.Conditions))
	for i, cond := range st.Conditions {
		flags[i] = rc.Condition{Type: cond.Type, True: cond.True}
	}
	return flags
}
