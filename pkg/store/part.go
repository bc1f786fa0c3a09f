package store

import (
	"maps"
	"slices"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
)

// Part is one or several changes of a controller's pods in a batch.
type Part struct {
	// Indices of records that must be unchanged; zero: no condition.
	SchemaIndex, BreakerIndex, DropsIndex uint64
	// Reported has the indices of realities that must be unchanged; zero: there must be none.
	Reported map[At]uint64
	// Dead has the records' indices of nodes that must still have no preparer; zero: there must be no record.
	Dead         map[string]uint64
	Pods         []PodWrite
	Intents      []IntentWrite
	Reservations []ReservationWrite // one per node
	Answered     []string           // ids of requests that this answers
}

// PodWrite replaces, creates (index zero) or removes (nil) a placement.
type PodWrite struct {
	Identity  pod.Identity
	Index     uint64
	Placement *pod.Placement
	// Landed is the placement's index after the batch has landed, also if it was unchanged.
	Landed uint64
	made   consul.Op // set when it was first asked for
}

// IntentWrite sets or removes (nil) an intent.
type IntentWrite struct {
	Node     string
	Identity pod.Identity
	Intent   *pod.Intent
	made     consul.Op // set when it was first asked for
}

// ReservationWrite replaces a node's reservation by cas.
type ReservationWrite struct {
	Node  string
	Index uint64
	Value node.Reservation
	made  consul.Op // set when it was first asked for
}

// once encodes a record only at the first call.
func once(made *consul.Op, make func() consul.Op) consul.Op {
	if made.Key() == "" {
		*made = make()
	}
	return *made
}

// Joins reports whether the conditions of two parts agree. A pass reads each condition once, except those in Dead. So
// only Dead can differ.
func (p *Part) Joins(other *Part) bool {
	for name, index := range other.Dead {
		if known, both := p.Dead[name]; both && known != index {
			return false
		}
	}
	return true
}

// Add adds a part that joins this one. Its write of a reservation replaces this part's, from which it was computed.
func (p *Part) Add(other *Part) {
	p.SchemaIndex = max(p.SchemaIndex, other.SchemaIndex)
	p.BreakerIndex = max(p.BreakerIndex, other.BreakerIndex)
	p.DropsIndex = max(p.DropsIndex, other.DropsIndex)
	if p.Reported == nil && len(other.Reported) > 0 {
		p.Reported = map[At]uint64{}
	}
	maps.Copy(p.Reported, other.Reported)
	if p.Dead == nil && len(other.Dead) > 0 {
		p.Dead = map[string]uint64{}
	}
	maps.Copy(p.Dead, other.Dead)
	p.Pods = append(p.Pods, other.Pods...)
	p.Intents = append(p.Intents, other.Intents...)
	p.Answered = append(p.Answered, other.Answered...)
	for _, w := range other.Reservations {
		if at := slices.IndexFunc(p.Reservations, func(r ReservationWrite) bool { return r.Node == w.Node }); at >= 0 {
			p.Reservations[at].Value, p.Reservations[at].made = w.Value, w.made
		} else {
			p.Reservations = append(p.Reservations, w)
		}
	}
}

// operations lists a part's operations, at most one for each key. shared are those that other parts may need too,
// conditions first.
func (t *Batches) operations(rcID string, p *Part) (shared, own []consul.Op) {
	check := func(key string, index uint64) { shared = append(shared, sameRecord(key, index)) }
	if p.SchemaIndex != 0 {
		check(t.keys.Schema.Key(), p.SchemaIndex)
	}
	if p.BreakerIndex != 0 {
		check(t.keys.Breaker.Key(), p.BreakerIndex)
	}
	if p.DropsIndex != 0 {
		check(t.keys.Drops.Key(rcID), p.DropsIndex)
	}
	for at, index := range p.Reported {
		check(t.keys.Realities.At(at), index)
	}
	for name, index := range p.Dead {
		check(t.keys.Nodes.Key(name), index)
	}
	for i := range p.Reservations {
		r := &p.Reservations[i]
		shared = append(shared,
			once(&r.made, func() consul.Op { return cas(t.keys.Reservations.Key(r.Node), &r.Value, r.Index) }))
	}
	for i := range p.Pods {
		w := &p.Pods[i]
		own = append(own, once(&w.made, func() consul.Op {
			return replaceOp(t.keys.Pods.Key(w.Identity.String()), allowed(t.guard, w.Placement), w.Index)
		}))
	}
	for i := range p.Intents {
		in := &p.Intents[i]
		own = append(own, once(&in.made, func() consul.Op {
			key := t.keys.Intents.Key(in.Node, in.Identity.String())
			if in.Intent == nil {
				return consul.Delete(key)
			}
			return set(key, allowed(t.guard, in.Intent))
		}))
	}
	for _, id := range p.Answered {
		own = append(own, consul.Delete(t.keys.Requests.Key(rcID, id)))
	}
	return shared, own
}

// PartLoad is how much of a transaction a part uses.
type PartLoad struct {
	ops, bytes int         // of the operations that only this part has
	shared     []consul.Op // operations that another part may have too
}

// LoadOf returns the load of a part.
func (t *Batches) LoadOf(rcID string, p *Part) (l PartLoad) {
	var own []consul.Op
	l.shared, own = t.operations(rcID, p)
	l.ops = len(own)
	for i := range own {
		l.bytes += own[i].Bytes()
	}
	return l
}

// Ops returns how many operations the part has by itself.
func (p PartLoad) Ops() int { return p.ops + len(p.shared) }

// Load is how much of a transaction a batch uses. Parts share an operation for the same condition or reservation, so
// these are counted by key.
type Load struct {
	shared     map[string]int // bytes by key
	ops, bytes int
}

// HeadLoad returns the load of b without parts; with reports, it includes an audit record and a status.
func (t *Batches) HeadLoad(b *Batch, reports bool) Load {
	head := t.head(b)
	l := Load{shared: map[string]int{}, ops: len(head), bytes: consul.TxnBytes(head)}
	if reports {
		l.ops += 2
		l.bytes += consul.OpBytes(t.keys.Audits.Key(NewID()),
			MaxAuditBytes) + consul.OpBytes(t.keys.Statuses.Key(b.RCID), rc.MaxStatusBytes)
	}
	return l
}

// Add counts a part.
func (l *Load) Add(part PartLoad) {
	ops, bytes := l.with(part)
	l.ops, l.bytes = l.ops+ops, l.bytes+bytes
	for i := range part.shared {
		l.shared[part.shared[i].Key()] = part.shared[i].Bytes()
	}
}

// Takes reports whether the transaction has space for many parts as large as this one.
func (l *Load) Takes(part PartLoad, many int) bool {
	ops, bytes := l.with(part)
	return l.ops+many*ops <= consul.MaxTxnOps && l.bytes+many*bytes <= consul.MaxTxnBytes
}

func (l *Load) with(part PartLoad) (ops, bytes int) {
	ops, bytes = part.ops, part.bytes
	for i := range part.shared {
		known, again := l.shared[part.shared[i].Key()]
		if !again {
			ops++
		}
		bytes += part.shared[i].Bytes() - known
	}
	return ops, bytes
}
