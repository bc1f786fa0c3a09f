package farm

import (
	"fmt"
	"slices"

	"github.com/rcfarm/rcfarm/pkg/farm/reconcile"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/obs"
	"github.com/rcfarm/rcfarm/pkg/scheduler"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// packing puts the changes of one pass into batches.
type packing struct {
	ps         *writer
	plan       *reconcile.Plan
	reserved   map[string]store.Rec[node.Reservation] // by node, with what the changes so far make of it
	unreadable map[string]error
	debug      bool
	out        []*batch
	home       map[string]*batch // of each node's reservation
	none       store.Load        // of a batch without changes
	// For the audit record: the first lines, how many there are besides, and the nodes.
	lines     []string
	more      int
	concerned []string
}

func (ps *writer) newPacking(plan *reconcile.Plan, reserved map[string]store.Rec[node.Reservation], unreadable map[string]error) *packing {
	return &packing{
		ps: ps, plan: plan, reserved: reserved, unreadable: unreadable, debug: obs.Debugs(ps.log),
		home: map[string]*batch{}, none: ps.newBatch(nil).load,
	}
}

// add packs changes that share one node, or a single one: together if they all have room, each by itself otherwise.
func (p *packing) add(run []reconcile.Change) {
	if len(run) > 1 && p.together(run) {
		return
	}
	for i := range run {
		p.one(&run[i], len(run)-i)
	}
}

// together packs changes on one node as if they were one: its reservation is copied, and they are counted, once for all of them. It
// does nothing where one of them has no room, or a batch has none for all.
func (p *packing) together(run []reconcile.Change) bool {
	on := run[0].Reserve[0].Node
	if p.unreadable[on] != nil {
		return false
	}
	rec := p.reserved[on]
	next := nextOf(p.ps.snapshot.Nodes, rec, on)
	part := store.Part{Pods: make([]store.PodWrite, 0, len(run)), Intents: make([]store.IntentWrite, 0, len(run))}
	for i := range run {
		if reserveOn(p.ps.snapshot.Nodes, next, &run[i], &run[i].Reserve[0]) != "" {
			return false
		}
		if !p.ps.addTo(&part, &run[i]) {
			return false
		}
	}
	part.Reservations = []store.ReservationWrite{{Node: on, Index: rec.Index, Value: next}}
	b, _ := p.put(&part, 1)
	if b == nil {
		return false
	}
	for i := range run {
		p.note(b, &run[i])
	}
	return true
}

// one packs one change, the first of some on its node.
func (p *packing) one(ch *reconcile.Change, some int) {
	// Writing over an unreadable reservation would forget who holds what.
	if at := slices.IndexFunc(ch.Reserve, func(r reconcile.ReserveChange) bool { return p.unreadable[r.Node] != nil }); at >= 0 {
		p.plan.Fail(fmt.Sprintf("%s: %v", ch, p.unreadable[ch.Reserve[at].Node]))
		return
	}
	writes, reason := reserve(p.ps.snapshot.Nodes, p.reserved, ch)
	if reason != "" {
		p.plan.Block(p.ps.snapshot.Now, fmt.Sprintf("%s: %s has no room: %s", ch, ch.Placement.Node, p.lacking(ch, reason)))
		return
	}
	part := store.Part{Reservations: writes}
	p.ps.addTo(&part, ch)
	switch b, load := p.put(&part, some); {
	case b != nil:
		p.note(b, ch)
	case load != nil: // a change that no transaction takes is not made, and everything else is
		p.plan.Block(p.ps.snapshot.Now, fmt.Sprintf("%s takes %d operations, which is more than one transaction takes", ch, load.Ops()))
	}
}

// lacking says why a change is refused, and by what where that are ports.
func (p *packing) lacking(ch *reconcile.Change, reason scheduler.Reason) string {
	at := slices.IndexFunc(ch.Reserve, func(r reconcile.ReserveChange) bool { return r.Node == ch.Placement.Node && r.Claim != nil })
	on := p.ps.snapshot.Nodes[ch.Placement.Node]
	if reason != scheduler.Ports || at < 0 || on == nil {
		return string(reason)
	}
	clash := scheduler.ClashOf(on, p.reserved[on.Name].Value, *ch.Reserve[at].Claim)
	return fmt.Sprintf("%s: %s", reason, clash)
}

// batchFor returns the batch that a part, which is one change or several on one node, belongs into: nil for another one. Or it must wait
// for the next pass. It is the first of some on the same node, which go into the same batch if one can take them all: those
// left over would wait.
func (p *packing) batchFor(part *store.Part, load store.PartLoad, some int) (bound *batch, wait bool) {
	for _, w := range part.Reservations {
		b := p.home[w.Node]
		if b != nil && bound != nil && b != bound {
			return nil, true
		}
		if b != nil {
			bound = b
		}
	}
	if bound != nil {
		return bound, !bound.load.Takes(load, 1) || !bound.Joins(part)
	}
	if len(p.out) == 0 {
		return nil, false
	}
	last := p.out[len(p.out)-1]
	if !last.load.Takes(load, 1) || !last.Joins(part) || !last.load.Takes(load, some) && p.none.Takes(load, some) {
		return nil, false
	}
	return last, false
}

// put puts a part, the first of some on its nodes, into the batch that takes it, which is another one where need be; the first one
// reports and answers besides. It returns no batch where the part must wait, and what it takes where no transaction would take it.
func (p *packing) put(part *store.Part, some int) (b *batch, tooMuch *store.PartLoad) {
	load := p.ps.kit.writes.LoadOf(p.ps.id, part)
	b, wait := p.batchFor(part, load, some)
	if wait {
		return nil, nil
	}
	if b == nil {
		var reports *reconcile.Plan
		if len(p.out) == 0 {
			reports = p.plan
		}
		if b = p.ps.newBatch(reports); !b.load.Takes(load, 1) {
			return nil, &load
		}
		p.out = append(p.out, b)
	}
	b.load.Add(load)
	b.Add(part)
	for _, w := range part.Reservations {
		p.home[w.Node] = b
		p.reserved[w.Node] = store.Rec[node.Reservation]{Value: w.Value, Index: w.Index}
	}
	return b, nil
}

// note notes what a batch does by carrying out a change.
func (p *packing) note(b *batch, ch *reconcile.Change) {
	b.changes++
	b.actions = append(b.actions, ch.Action)
	b.freed = append(b.freed, freedBy(ch)...)
	b.relies = b.relies || ch.NeedsMinimum
	if ch.Takes {
		b.takes = append(b.takes, ch.Identity)
	}
	if p.debug {
		p.ps.log.WithFields(obs.Fields{obs.Action: string(ch.Action), obs.Pod: ch.Identity.String()}).Debug("planned")
	}
	if len(p.lines) < store.MaxAuditChanges {
		p.lines = append(p.lines, ch.String())
	} else {
		p.more++
	}
	p.concern(ch)
}

// concern notes the nodes of a change. Many changes in a row may be about one.
func (p *packing) concern(ch *reconcile.Change) {
	for _, name := range ch.Nodes() {
		if len(p.concerned) == 0 || p.concerned[len(p.concerned)-1] != name {
			p.concerned = append(p.concerned, name)
		}
	}
}

// addTo adds to a part what a change depends on and what it writes, but for reservations. It reports false, and leaves the part useless,
// where the two do not agree on what the world is like.
func (ps *writer) addTo(part *store.Part, ch *reconcile.Change) bool {
	part.Pods = append(part.Pods, store.PodWrite{Identity: ch.Identity, Index: ch.Index, Placement: ch.Placement})
	for _, in := range ch.Intents {
		part.Intents = append(part.Intents, store.IntentWrite{Node: in.Node, Identity: ch.Identity, Intent: in.Intent})
	}
	part.Answered = append(part.Answered, ch.Answers...)
	if ch.NeedsSchema {
		part.SchemaIndex = ps.schema.Index
	}
	if ch.NeedsBreaker {
		part.BreakerIndex = ps.breaker.Index
	}
	if ch.NeedsMinimum {
		part.DropsIndex = ps.Drops.Index
	}
	for _, name := range ch.NeedsReports {
		if part.Reported == nil {
			part.Reported = map[store.At]uint64{}
		}
		at := store.At{Node: name, Identity: ch.Identity}
		part.Reported[at] = ps.reports[at].Index
	}
	for _, dead := range ch.NeedsDead {
		if part.Dead == nil {
			part.Dead = map[string]uint64{}
		}
		if known, both := part.Dead[dead.Name]; both && known != dead.Index {
			return false
		}
		part.Dead[dead.Name] = dead.Index
	}
	return true
}

// reserve returns the new reservations that a change needs, or why a node cannot take it. It fills in the numbers of the
// change's dynamic ports: nobody else gets one of them, since it lands only if these reservations do (P3).
func reserve(nodes map[string]*node.View, reserved map[string]store.Rec[node.Reservation], ch *reconcile.Change) ([]store.ReservationWrite, scheduler.Reason) {
	var writes []store.ReservationWrite
	for i := range ch.Reserve {
		r := &ch.Reserve[i]
		rec := reserved[r.Node]
		next := nextOf(nodes, rec, r.Node)
		if reason := reserveOn(nodes, next, ch, r); reason != "" {
			return nil, reason
		}
		writes = append(writes, store.ReservationWrite{Node: r.Node, Index: rec.Index, Value: next})
	}
	return writes, ""
}

// nextOf returns a copy of a node's reservation for a change to write to.
func nextOf(nodes map[string]*node.View, rec store.Rec[node.Reservation], nodeName string) node.Reservation {
	next := rec.Value.Clone()
	if n := nodes[nodeName]; rec.Index == 0 && n != nil && n.MustLeave() {
		next.Ineligible = true // the record was lost (R13); whoever ends the drain writes it
	}
	return next
}

// reserveOn is reserve on one node. With a reason the reservation is as it was.
func reserveOn(nodes map[string]*node.View, next node.Reservation, ch *reconcile.Change, r *reconcile.ReserveChange) scheduler.Reason {
	key := ch.Identity.String()
	if r.Claim == nil {
		delete(next.Claims, key)
		return ""
	}
	n := nodes[r.Node]
	if adds(ch) && r.Node == ch.Placement.Node && n != nil && scheduler.Outdated(n, next) {
		return scheduler.Relabelled
	}
	taken, ports, reason := claimOn(nodes[r.Node], next, r)
	if reason == "" {
		ch.AssignPorts(r.Node, ports)
		next.Claims[key] = taken
	}
	return reason
}

// adds reports whether a change brings a pod to a node, which must match then. What is there already has its claim whatever the
// node's labels are.
func adds(ch *reconcile.Change) bool {
	return ch.Action == reconcile.Place || ch.Action == reconcile.Move
}

// claimOn returns what a change takes of a node besides what is reserved there, with the numbers of dynamic ports.
func claimOn(n *node.View, res node.Reservation, r *reconcile.ReserveChange) (node.Claim, map[string]int, scheduler.Reason) {
	taken := *r.Claim
	var ports map[string]int
	var reason scheduler.Reason
	switch {
	case n == nil && len(r.Dynamic) > 0:
		return taken, nil, scheduler.NotAlive // whatever its range was
	case n != nil && len(r.Dynamic) > 0:
		taken, ports, reason = scheduler.ClaimOn(n, res, taken, r.Dynamic, r.KeepPorts)
	}
	if r.Keep {
		taken = taken.With(res.Claims[taken.Pod.String()])
	}
	if reason == "" && n != nil && !r.Force {
		reason = scheduler.Fits(n, res, taken.Pod, taken)
	}
	return taken, ports, reason
}
