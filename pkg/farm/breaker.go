package farm

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/rcfarm/rcfarm/pkg/farm/breaker"
	"github.com/rcfarm/rcfarm/pkg/farm/reconcile"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// While a farm takes over units, a plan with stops may have to wait.
const (
	claimsLook = 100 * time.Millisecond // time until the next look at the controller
	claimsWait = 30 * time.Second       // how long after the last change of the members a plan may have to wait
)

// admitStops counts the stops in a plan. If it does not admit them, the plan must not be carried out. If there are too
// many stops, it trips the mass-stop breaker. A farm that is still taking over units does not know how many pods it
// owns; if that number matters, it admits no stops.
func (p *pass) admitStops(ctx context.Context, plan *reconcile.Plan) (admitted bool, err error) {
	kit, record := p.kit, &p.head.RC.Value
	now := breaker.Moment{Wall: p.snapshot.Now, Steady: p.snapshot.SteadyNow()}
	planned := breaker.Planned(plan, now.Wall)
	left := p.staying(plan)
	if p.mayStopMany() {
		kit.stops.SetPods(p.id, left) // before the first stop is written
		return true, nil
	}
	kit.stops.Add(now, breaker.Remembered(p.head.Placements))
	if len(planned) == 0 {
		return true, nil
	}
	takingOver := time.Since(kit.cache.present().stable) < claimsWait
	if takingOver && kit.stops.HasUnread() {
		return false, nil // pods of units that were not read yet may be stopping
	}
	stops, owned, ok := kit.stops.Admit(now, p.id, left, planned)
	if ok {
		return true, nil
	}
	if takingOver {
		if more, err := kit.peers.claimsMore(ctx); more || err != nil {
			return false, err
		}
	}
	ask := "change it with --allow-mass-stop"
	if p.mem.recordless {
		ask = "ask for it with rcctl node sweep, as it has no record,"
	}
	reason := fmt.Sprintf("farm %s was about to have stopped %d of its %d pods within a minute, "+
		"the last for controller %s; if that is right, %s and run rcctl farm resume",
		kit.farm, stops, owned, record.Name, ask)
	p.log.WithField("reason", reason).Error("tripping the mass-stop breaker")
	audit := store.NewAudit(kit.farm, "trip", p.id, []string{"breaker: not tripped -> tripped (" + reason + ")"})
	tripped := store.Breaker{Tripped: true, Reason: reason, By: kit.farm, Since: now.Wall}
	err = kit.trip.TripBreaker(ctx, p.breaker.Index, tripped, audit)
	if err != nil && !errors.Is(err, store.ErrConflict) {
		return false, err
	}
	return false, errTripped
}

// errTripped ends a pass whose plan was computed before the breaker tripped. The watch of the breaker asks for another
// look.
var errTripped = errors.New("the mass-stop breaker has tripped")

// mayStopMany reports whether an operator asked for all stops of the controller: with --allow-mass-stop, or with a
// sweep of a controller without a record. A sweep of the leader counts as usual.
func (p *pass) mayStopMany() bool {
	swept := func(req store.Rec[store.Request]) bool {
		return req.Value.Kind == store.SweepOrphan && !req.Value.ByLeader()
	}
	return reconcile.AllowsMassStop(&p.head.RC.Value) || p.mem.recordless && slices.ContainsFunc(p.head.Requests, swept)
}

// staying returns how many pods of the controller remain after the plan; see reconcile.RemainingPods.
func (p *pass) staying(plan *reconcile.Plan) int {
	going := map[pod.Identity]bool{}
	for i := range plan.Changes {
		if plan.Changes[i].Action == reconcile.Stop {
			going[plan.Changes[i].Identity] = true
		}
	}
	placements := func(yield func(*pod.Placement) bool) {
		for i := range p.head.Placements {
			if !yield(&p.head.Placements[i].Value) {
				return
			}
		}
	}
	return reconcile.RemainingPods(&p.head.RC.Value, p.mayStopMany(), placements, going)
}

// learn adds the controller's earlier stops and its number of pods to the breaker's counts. The first plan needs both.
func (p *pass) learn() {
	if !p.mayStopMany() {
		p.kit.stops.Add(breaker.Now(), breaker.Remembered(p.head.Placements))
	}
	p.kit.stops.SetPods(p.id, p.staying(&reconcile.Plan{}))
}
