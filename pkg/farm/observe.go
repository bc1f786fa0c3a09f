package farm

import (
	"context"
	"errors"
	"reflect"
	"time"

	"github.com/rcfarm/rcfarm/pkg/farm/reconcile"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/obs"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// errNotReady is what Ready returns until every standing query has answered once.
var errNotReady = errors.New("not every standing query has answered yet")

// Ready returns nil when the farm has seen the whole cluster, and so works on controllers.
func (f *Farm) Ready() error {
	select {
	case <-f.cache.ready:
		return nil
	default:
		return errNotReady
	}
}

// Joined is closed once the farm has its name to itself for as long as the session lasts. Nothing is done in its name
// before.
func (f *Farm) Joined() <-chan struct{} { return f.joined }

// Members returns the ids of the living farms, as last seen.
func (f *Farm) Members() []string { return f.members() }

// Nodes returns all nodes as last seen, which nobody may change, the cluster's epoch, and whether every node that lives has said what it runs in it.
func (f *Farm) Nodes() (nodes map[string]*node.View, epoch string, synced bool) {
	epoch = f.cache.now().schema.Value.Epoch
	nodes, _ = f.cache.nodesAt()
	return nodes, epoch, f.kit.nodeSync.synced(epoch)
}

// Synced reports whether the farm has seen all nodes, and every one that lives has said what it runs in this world.
func (f *Farm) Synced() bool {
	_, _, synced := f.Nodes()
	return synced && f.Ready() == nil
}

// WentBack has the whole cluster start over after somebody beside the farm, under the same session, has seen the store go back in
// time. It returns why the farm must, too.
func (f *Farm) WentBack(ctx context.Context) error { return f.cache.wentBack(ctx) }

// Told has a controller looked at because somebody was told about it, which is to be stored.
func (f *Farm) Told(rcID string) {
	if u, _ := f.roster.get(rc.UnitOf(rcID)); u != nil {
		u.looks.Ask()
		f.queue.Add(u.id)
	}
}

// observe publishes where the farm stands.
func (f *Farm) observe() {
	breaker := f.cache.now().breaker
	f.cfg.Metrics.owned.Set(float64(f.roster.count()))
	f.cfg.Metrics.synced.Set(obs.Flag(f.kit.nodeSync.synced(f.cache.now().schema.Value.Epoch)))
	f.cfg.Metrics.tripped.Set(obs.Flag(breaker.Index == 0 || breaker.Value.Tripped))
}

// commit carries a batch out, counts it, and has the nodes told that do not watch: nothing else writes intents.
func (ps *writer) commit(ctx context.Context, b *batch) error {
	err := ps.kit.writes.Commit(ctx, &b.Batch)
	ps.kit.metrics.committed(b.actions, err)
	ps.kit.usage.wrote(b.Reservations, err == nil, time.Now())
	if err == nil {
		ps.tellNodes(b)
		if b.Status != nil {
			ps.mem.reported = time.Now()
		}
	}
	for i := range b.Reservations {
		if landed := err == nil || errors.Is(err, store.ErrUnknown); landed && b.Reservations[i].Index == 0 {
			ps.kit.fresh.add(b.Reservations[i].Node)
		}
	}
	if err == nil || errors.Is(err, store.ErrUnknown) {
		ps.kit.scarcity.changed(b.freed)
	}
	return err
}

// countsEvery is how often a status is written that only counts how many pods have come or gone. Such a
// write is not urgent: most often the status that says that all pods have come follows at once.
const countsEvery = 200 * time.Millisecond

// statusMayWait returns how long a status may stay unwritten, zero for not at all: it says nothing but how many of the pods that nodes
// were asked for are there, and the one before it has just been written.
func (ps *writer) statusMayWait(plan *reconcile.Plan) time.Duration {
	if !onlyCounts(ps.head.Status, plan) {
		return 0
	}
	return max(0, countsEvery-time.Since(ps.mem.reported))
}

// onlyCounts reports whether a status says no more than the one before it but how many pods there are.
func onlyCounts(before *rc.Status, plan *reconcile.Plan) bool {
	after := &plan.Status
	if before == nil || before.Is(rc.Converged) || after.Is(rc.Converged) || !plan.Unhampered() {
		return false
	}
	was, is := *before, *after
	for _, st := range []*rc.Status{&was, &is} {
		st.Placed, st.Available, st.Updated, st.UpdatedAvailable, st.Stopping, st.StandingBy = 0, 0, 0, 0, 0, 0
	}
	was.Conditions, is.Conditions = flags(before), flags(after)
	return reflect.DeepEqual(was, is)
}

// flags returns what conditions say, without their reasons.
func flags(st *rc.Status) []rc.Condition {
	flags := make([]rc.Condition, len(st.Conditions))
	for i, cond := range st.Conditions {
		flags[i] = rc.Condition{Type: cond.Type, True: cond.True}
	}
	return flags
}
