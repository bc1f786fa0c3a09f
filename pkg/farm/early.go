package farm

import (
	"context"
	"maps"
	"slices"

	"github.com/rcfarm/rcfarm/pkg/farm/reconcile"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// expects is what the last look of a controller tells of what the next one reads: a guess, which costs a round trip where it is wrong.
type expects struct {
	service string     // whose rollout was in charge
	at      []store.At // where pods are, those of companions that it read among them
	stops   []string   // nodes that give room back once they confirm a stop
	nodes   bool       // it waits for reports of its own nodes, whatever companions do
}

// readEarly reads what the last look of the controller tells that this one will need. While nodes have still to say what they run it
// reads nothing: then realities must be newer than the end of the hold.
func (ps *reader) readEarly(ctx context.Context) {
	if ps.mem.claimed != nil || ps.mem.consistent || ps.mem.recordless || ps.kit.nodeSync.hold(ps.schema.Value.Epoch) != "" {
		return
	}
	ps.nodesBefore, ps.room.version = ps.kit.cache.nodesAt()
	was := ps.mem.expects
	e := store.Expected{RCID: ps.id, CountDrops: ps.mem.relied, Service: was.service, NodesFreed: was.stops}
	if !was.nodes {
		e.Companions = ps.kit.companionIndex.companions(ps.id)
		was.at = slices.Clip(was.at)
		was.add(ps.kit.companionIndex.placesOf(e.Companions)...)
	}
	e.Realities = was.at
	ps.early = ps.kit.early.ReadEarly(ctx, e)
}

// asked reports whether a plan did all that it should by asking nodes: until they report nothing follows, whatever companions do.
func (ps *reading) asked(plan *reconcile.Plan, wrote int) bool {
	return wrote > 0 && wrote == len(plan.Changes) && onlyAsks(plan.Changes) && plan.Unhampered() && ps.head.RC.Value.InPlace == nil && len(ps.snapshot.Requests) == 0
}

// mostExpected is how many places a pass notes for the next one: with more than one transaction reads, ReadEarly leaves them all to later reads.
const mostExpected = store.MaxExpected + 1

// expect notes what a pass tells of what the next one will need.
func (ps *pass) expect(plan *reconcile.Plan, wrote int) {
	ps.mem.expects = expects{
		service: ps.head.RC.Value.Rollout(),
		nodes:   plan.Unaided && !plan.Alone || ps.asked(plan, wrote),
	}
	e := &ps.mem.expects
	note := func(pods []reconcile.Pod) {
		for i := range pods {
			e.add(at(&pods[i])...)
		}
	}
	note(ps.snapshot.Pods)
	for i := range plan.Changes {
		if p := plan.Changes[i].Placement; p != nil {
			e.add(store.At{Node: p.Node, Identity: p.Identity})
		}
	}
	e.stops = freeing(ps.snapshot.Pods, plan.Changes, wrote == len(plan.Changes))
	ps.kit.companionIndex.leaves(ps.id, slices.Clip(e.at))
	if !e.nodes {
		for i := range ps.snapshot.Companions {
			note(ps.snapshot.Companions[i].Pods)
		}
	}
}

// freeing returns the nodes that give room back once they confirm a stop: those of pods that were asked to stop before, and of those that a plan
// asks now. Pods that it forgets are not among them where it has landed.
func freeing(pods []reconcile.Pod, changes []reconcile.Change, landed bool) (nodes []string) {
	changed := map[pod.Identity]bool{}
	note := func(p *pod.Placement) {
		if p.RunState == pod.Stopped && len(nodes) < mostExpected && !slices.Contains(nodes, p.Node) {
			nodes = append(nodes, p.Node)
		}
	}
	for i := range changes {
		ch := &changes[i]
		changed[ch.Identity] = ch.Placement != nil || landed
		if ch.Placement != nil {
			note(ch.Placement)
		}
	}
	for i := range pods {
		if !changed[pods[i].Identity] {
			note(&pods[i].Placement)
		}
	}
	return nodes
}

// add notes where pods are, each place once.
func (e *expects) add(places ...store.At) {
	for _, where := range places {
		if len(e.at) < mostExpected && !slices.Contains(e.at, where) {
			e.at = append(e.at, where)
		}
	}
}

// readDrops counts the drops of a controller without companions, where the last pass needed the minimum and so this one may.
func (ps *reader) readDrops(ctx context.Context) (err error) {
	switch {
	case !ps.mem.relied || len(ps.companions) > 0 || ps.snapshot.CompanionsUnread:
	case ps.early != nil && (ps.early.CountDrops || len(ps.early.Expected.Companions) > 0):
		ps.drops = store.DropsBy{ps.id: ps.early.Drops}
	default:
		ps.early = nil
		ps.drops, err = ps.kit.reads.DropsOf(ctx, []string{ps.id})
	}
	return err
}

// detailsOf reads what is wanted, as far as it was not read early.
func (ps *reader) detailsOf(ctx context.Context, w store.Wanted) (store.Details, error) {
	if ps.early == nil {
		return ps.kit.reads.ReadDetails(ctx, w, ps.mem.consistent)
	}
	var early store.Details
	if early, w.Realities = ps.early.RealitiesOf(w.Realities); w.Empty() {
		return early, nil
	}
	d, err := ps.kit.reads.ReadDetails(ctx, w, ps.mem.consistent)
	if err != nil {
		return d, err
	}
	maps.Copy(early.Reservations, d.Reservations)
	maps.Copy(early.Unreadable, d.Unreadable)
	d.Reservations, d.Unreadable = early.Reservations, early.Unreadable
	maps.Copy(d.Realities, early.Realities)
	maps.Copy(d.Reported, early.Reported)
	d.Corrupt = append(d.Corrupt, early.Corrupt...)
	return d, nil
}
