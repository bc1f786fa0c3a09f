package farm

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/rcfarm/rcfarm/pkg/farm/reconcile"
	"github.com/rcfarm/rcfarm/pkg/internal/contain"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/obs"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/scheduler"
	"github.com/rcfarm/rcfarm/pkg/store"
)

type batch struct {
	store.Batch
	changes int
	actions []reconcile.Action // of the changes
	freed   []string           // nodes whose capacity the changes free
	load    store.Load
	relies  bool           // some change of the batch needs the minimum
	takes   []pod.Identity // see Change.TakesAvailable
}

// basis has the indices of the records from which a plan was computed. The batches depend on them.
type basis struct {
	rc      uint64
	beside  map[string]uint64 // records of the service's other revisions; see pass.beside
	rollout *uint64           // see store.Batch
	schema  uint64
	breaker uint64
	drops   uint64
	reports map[store.At]store.Report
}

// packer makes the batches of one pass. It reads and writes nothing.
type packer struct {
	id    string // of the controller
	farm  string // id
	log   obs.Logger
	loads interface {
		HeadLoad(b *store.Batch, reports bool) store.Load
		LoadOf(rcID string, p *store.Part) store.PartLoad
	}
	fence  store.Fence
	basis  basis
	newest *store.Reported // a report on which each batch depends; commitAboveMinimum may replace it; nil: none
	nodes  map[string]*node.View
	now    time.Time
	// describe returns a change in words, for the audit record.
	describe func(ch *reconcile.Change) string
}

// packer returns the packer for a plan. m is nil if the plan does not depend on the minimum.
func (p *pass) packer(m *minimum) *packer {
	k := &packer{
		id: p.id, farm: p.kit.farm, log: p.log, loads: p.kit.writes, fence: p.unit.fence,
		basis: basis{
			rc: p.head.RC.Index, beside: p.beside(), schema: p.schema.Index, breaker: p.breaker.Index,
			drops: p.Drops.Index, reports: p.traces.reports.copies,
		},
		nodes: p.snapshot.Nodes, now: p.snapshot.Now, describe: (*reconcile.Change).String,
	}
	if p.head.RC.Value.Service != nil || rc.IsPreDeploy(p.id) {
		index := p.Rollout.Index
		k.basis.rollout = &index
	}
	if m != nil {
		k.newest = m.newest()
	}
	return k
}

// pack groups the plan's changes into transactions. Each node's reservation is in one batch only, so that batches can
// be in flight together. A change that needs a node of an earlier, full batch waits for the next pass.
func (k *packer) pack(
	plan *reconcile.Plan, reserved map[string]store.Rec[node.Reservation], unreadable map[string]error,
) []*batch {
	if len(plan.Changes) == 0 {
		return nil
	}
	p := &packing{
		packer: k, plan: plan, reserved: maps.Clone(reserved), unreadable: unreadable, debug: obs.Debugs(k.log),
		home: map[string]*batch{}, none: k.nextBatch().load,
	}
	for rest := plan.Changes; len(rest) > 0; {
		run := rest[:sharing(rest)]
		p.add(run)
		rest = rest[len(run):]
	}
	if len(p.out) > 0 {
		a := store.NewAudit(k.farm, "reconcile", k.id, p.lines).AndMore(p.more).OnNodes(p.concerned...)
		p.out[0].Audit = &a
	}
	return p.out
}

// sharing returns how many of the first changes concern the same node, and only this node.
func sharing(changes []reconcile.Change) int {
	n := 1
	for n < len(changes) && len(changes[0].Reserve) == 1 && len(changes[n].Reserve) == 1 &&
		changes[n].Reserve[0].Node == changes[0].Reserve[0].Node {
		n++
	}
	return n
}

// maxAnswered bounds the requests that one pass answers without a change.
const maxAnswered = 32

// firstBatch returns a batch with the plan's answers, and with load for an audit record and a status.
func (k *packer) firstBatch(plan *reconcile.Plan) *batch {
	b := k.emptyBatch()
	b.load = k.loads.HeadLoad(&b.Batch, true)
	if len(plan.Answered) > 0 {
		answers := store.Part{Answered: plan.Answered[:min(len(plan.Answered), maxAnswered)]}
		b.load.Add(k.loads.LoadOf(k.id, &answers))
		b.Add(&answers)
	}
	return b
}

// nextBatch returns a batch with conditions only.
func (k *packer) nextBatch() *batch {
	b := k.emptyBatch()
	b.load = k.loads.HeadLoad(&b.Batch, false)
	return b
}

// emptyBatch is for firstBatch and nextBatch, which set the load.
func (k *packer) emptyBatch() *batch {
	return &batch{Batch: store.Batch{
		Fence: k.fence, RCID: k.id, RCIndex: k.basis.rc, Beside: k.basis.beside, Rollout: k.basis.rollout,
		Newest: k.newest,
	}}
}

// beside returns the indices of the records of the service's other revisions. A change of another revision may change
// the minimum and the bound. A new revision comes with a rollout, whose index is a condition too.
func (p *pass) beside() map[string]uint64 {
	if len(p.snapshot.Companions) == 0 {
		return nil
	}
	beside := make(map[string]uint64, len(p.snapshot.Companions))
	for i := range p.snapshot.Companions {
		id := p.snapshot.Companions[i].RCID
		beside[id] = p.Heads[id].RC.Index
	}
	return beside
}

type packing struct {
	*packer
	plan       *reconcile.Plan
	reserved   map[string]store.Rec[node.Reservation] // by node, with the changes that were packed so far
	unreadable map[string]error
	debug      bool
	garbled    bool // it is in the log that some change cannot be described
	out        []*batch
	home       map[string]*batch // by node: the batch that writes its reservation
	none       store.Load        // load of a batch without changes
	// For the audit record.
	lines     []string // the first changes
	more      int      // number of further changes
	concerned []string // nodes
}

func (p *packing) add(run []reconcile.Change) {
	if len(run) > 1 && p.together(run) {
		return
	}
	for i := range run {
		p.one(&run[i], len(run)-i)
	}
}

// together packs changes on one node as one part, because this copies the reservation once. It does nothing if some
// change does not fit, or no batch can take all of them.
func (p *packing) together(run []reconcile.Change) bool {
	on := run[0].Reserve[0].Node
	if p.unreadable[on] != nil {
		return false
	}
	rec := p.reserved[on]
	next := nextOf(p.nodes, rec, on)
	part := store.Part{Pods: make([]store.PodWrite, 0, len(run)), Intents: make([]store.IntentWrite, 0, len(run))}
	for i := range run {
		if reserveOn(p.nodes, next, &run[i], &run[i].Reserve[0]) != "" {
			return false
		}
		if !p.addTo(&part, &run[i]) {
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

// one packs one change. some is how many changes on the same node are left, including this one.
func (p *packing) one(ch *reconcile.Change, some int) {
	// A write over an unreadable reservation would lose the shares in it.
	unreadable := func(r reconcile.ReserveChange) bool { return p.unreadable[r.Node] != nil }
	if at := slices.IndexFunc(ch.Reserve, unreadable); at >= 0 {
		p.plan.Fail(fmt.Sprintf("%s: %v", ch, p.unreadable[ch.Reserve[at].Node]))
		return
	}
	writes, reason := reserve(p.nodes, p.reserved, ch)
	if reason != "" {
		p.plan.Block(p.now,
			fmt.Sprintf("%s: %s has no room: %s", ch, ch.Placement.Node, p.lacking(ch, reason)))
		return
	}
	part := store.Part{Reservations: writes}
	p.addTo(&part, ch)
	switch b, load := p.put(&part, some); {
	case b != nil:
		p.note(b, ch)
	case load != nil: // only this change is not made
		p.plan.Block(p.now,
			fmt.Sprintf("%s takes %d operations, which is more than one transaction takes", ch, load.Ops()))
	}
}

// lacking returns why a node cannot take a change. If a port is taken, the text names the pod or program that has it.
func (p *packing) lacking(ch *reconcile.Change, reason scheduler.Reason) string {
	at := slices.IndexFunc(ch.Reserve, func(r reconcile.ReserveChange) bool {
		return r.Node == ch.Placement.Node && r.Claim != nil
	})
	on := p.nodes[ch.Placement.Node]
	if reason != scheduler.Ports || at < 0 || on == nil {
		return string(reason)
	}
	clash := scheduler.ClashOf(on, p.reserved[on.Name].Value, *ch.Reserve[at].Claim)
	return fmt.Sprintf("%s: %s", reason, clash)
}

// batchFor returns the batch for a part; nil: it needs a new batch. If wait is true, the part waits for the next pass.
// some is how many changes on the node are left: they should all be in one batch, because those that do not fit have to
// wait.
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

// put adds a part to the batch that can take it, or to a new batch. If the part must wait, put returns no batch. If no
// transaction can take the part, put also returns the part's load.
func (p *packing) put(part *store.Part, some int) (b *batch, tooMuch *store.PartLoad) {
	load := p.loads.LoadOf(p.id, part)
	b, wait := p.batchFor(part, load, some)
	if wait {
		return nil, nil
	}
	if b == nil {
		if len(p.out) == 0 {
			b = p.firstBatch(p.plan)
		} else {
			b = p.nextBatch()
		}
		if !b.load.Takes(load, 1) {
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

func (p *packing) note(b *batch, ch *reconcile.Change) {
	b.changes++
	b.actions = append(b.actions, ch.Action)
	b.freed = append(b.freed, freedBy(ch)...)
	b.relies = b.relies || ch.NeedsMinimum
	if ch.TakesAvailable {
		b.takes = append(b.takes, ch.Identity)
	}
	if p.debug {
		p.log.WithFields(obs.Fields{obs.Action: string(ch.Action), obs.Pod: ch.Identity.String()}).Debug("planned")
	}
	p.audit(ch)
}

// audit adds a change to the audit record. If its text cannot be built, the change lands with a short one. Otherwise
// each pass would panic at this change, and no pod of the controller would be placed.
func (p *packing) audit(ch *reconcile.Change) {
	if len(p.lines) == store.MaxAuditChanges {
		p.more++
	} else {
		line := ""
		if !p.contained(ch, func() { line = p.describe(ch) }) {
			line = fmt.Sprintf("%s %s (not described: see the log of the farm)", ch.Action, ch.Identity)
		}
		p.lines = append(p.lines, line)
	}
	p.contained(ch, func() { p.concern(ch) })
}

// contained returns false if f panics. It logs the first panic of the pass.
func (p *packing) contained(ch *reconcile.Change, f func()) bool {
	panicked := contain.Is(contain.Do(func() error { f(); return nil }))
	if panicked != nil && !p.garbled {
		p.garbled = true
		p.log.WithField(obs.Stack, panicked.Stack).WithField(obs.Pod, ch.Identity.String()).WithError(panicked).
			Error("a change cannot be described in the audit record")
	}
	return panicked == nil
}

func (p *packing) concern(ch *reconcile.Change) {
	for _, name := range ch.Nodes() {
		if len(p.concerned) == 0 || p.concerned[len(p.concerned)-1] != name {
			p.concerned = append(p.concerned, name)
		}
	}
}

// addTo adds the conditions and writes of a change to a part, without its reservations. If change and part have
// different conditions for one node, addTo returns false, and the part is useless.
func (k *packer) addTo(part *store.Part, ch *reconcile.Change) bool {
	part.Pods = append(part.Pods, store.PodWrite{Identity: ch.Identity, Index: ch.Index, Placement: ch.Placement})
	for _, in := range ch.Intents {
		part.Intents = append(part.Intents, store.IntentWrite{Node: in.Node, Identity: ch.Identity, Intent: in.Intent})
	}
	part.Answered = append(part.Answered, ch.Answers...)
	if ch.NeedsSchema {
		part.SchemaIndex = k.basis.schema
	}
	if ch.NeedsBreaker {
		part.BreakerIndex = k.basis.breaker
	}
	if ch.NeedsMinimum {
		part.DropsIndex = k.basis.drops
	}
	for _, name := range ch.NeedsReports {
		if part.Reported == nil {
			part.Reported = map[store.At]uint64{}
		}
		at := store.At{Node: name, Identity: ch.Identity}
		part.Reported[at] = k.basis.reports[at].Index
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
