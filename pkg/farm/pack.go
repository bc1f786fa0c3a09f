package farm

import (
	"fmt"

	"github.com/rcfarm/rcfarm/pkg/reconcile"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// packing puts the changes of one pass into batches.
type packing struct {
	c    *ReplicationController
	v    *view
	plan *reconcile.Plan
	out  []*batch
	home map[string]*batch // of each node's reservation
	none store.Load        // of a batch without changes
}

func (c *ReplicationController) newPacking(v *view, plan *reconcile.Plan) *packing {
	return &packing{c: c, v: v, plan: plan, home: map[string]*batch{}, none: c.newBatch(v, nil).load}
}

// batchFor puts a part, which is one change, into the batch that it belongs into, and returns that: nil when the change must wait
// for the next pass. It is the first of some on the same node, which go into the same batch if one can take them all: those
// left over would wait.
func (p *packing) batchFor(ch *reconcile.Change, part *store.Part, some int) *batch {
	load := p.c.farm.cfg.Store.LoadOf(p.c.ID, part)
	var bound *batch
	for _, w := range part.Reservations {
		b := p.home[w.Node]
		if b != nil && bound != nil && b != bound {
			return nil
		}
		if b != nil {
			bound = b
		}
	}
	switch {
	case bound != nil && (!bound.load.Takes(load, 1) || !bound.Joins(part)):
		return nil
	case bound == nil && len(p.out) > 0:
		bound = p.out[len(p.out)-1]
		if !bound.load.Takes(load, 1) || !bound.Joins(part) || !bound.load.Takes(load, some) && p.none.Takes(load, some) {
			bound = nil
		}
	}
	if bound == nil {
		if bound = p.open(ch, load); bound == nil {
			return nil
		}
	}
	bound.load.Add(load)
	bound.Add(part)
	for _, w := range part.Reservations {
		p.home[w.Node] = bound
	}
	return bound
}

// open begins another batch, for a change that needs one. A change that no transaction takes is not made, and everything else is.
func (p *packing) open(ch *reconcile.Change, load store.PartLoad) *batch {
	b := p.c.newBatch(p.v, nil)
	if len(p.out) == 0 {
		b = p.c.newBatch(p.v, p.plan)
	}
	if !b.load.Takes(load, 1) {
		p.plan.Block(p.v.snapshot.Now, fmt.Sprintf("%s takes %d operations, which is more than one transaction takes", ch, len(load)))
		return nil
	}
	p.out = append(p.out, b)
	return b
}

// partOf translates a change into what it depends on and what it writes.
func partOf(v *view, ch *reconcile.Change, writes []store.ReservationWrite) store.Part {
	part := store.Part{
		Pods:         []store.PodWrite{{Identity: ch.Identity, Index: ch.Index, Placement: ch.Placement}},
		Reservations: writes, Answered: ch.Answers,
	}
	for _, in := range ch.Intents {
		part.Intents = append(part.Intents, store.IntentWrite{Node: in.Node, Identity: ch.Identity, Intent: in.Intent})
	}
	if ch.NeedsSchema {
		part.SchemaIndex = v.schema.Index
	}
	if ch.NeedsBreaker {
		part.BreakerIndex = v.breaker.Index
	}
	switch {
	case ch.NeedsMinimum && v.minimum.byBell:
		part.BellIndex = v.head.BellIndex
	case ch.NeedsMinimum:
		part.DropsIndex = v.drops[ch.Identity.RCID].Index
	}
	if ch.NeedsMinimum || ch.NeedsCompanions {
		dependOnCompanions(v, &part, ch.NeedsMinimum)
	}
	part.Stamp = ch.Stamps
	for _, name := range ch.NeedsReports {
		if part.Reported == nil {
			part.Reported = map[store.At]uint64{}
		}
		at := store.At{Node: name, Identity: ch.Identity}
		part.Reported[at] = v.reported[at]
	}
	if len(ch.NeedsDead) > 0 {
		part.Dead = make(map[string]uint64, len(ch.NeedsDead))
	}
	for _, dead := range ch.NeedsDead {
		part.Dead[dead.Name] = dead.Index
	}
	return part
}
