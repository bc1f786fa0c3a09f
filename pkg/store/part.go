package store

import (
	"maps"
	"slices"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
)

// Part is what one change of a controller's pods brings into a batch, or several of them together.
type Part struct {
	// Indices that must not have moved; zero means that the part does not depend on them.
	SchemaIndex, BreakerIndex, DropsIndex uint64
	// Reported are realities that must be as they were read, with the indices of those; zero: there was none.
	Reported map[At]uint64
	// Dead are nodes whose records nobody may have come to hold, with the indices of those; zero: there was no record.
	Dead         map[string]uint64
	Pods         []PodWrite
	Intents      []IntentWrite
	Reservations []ReservationWrite // one per node
	Answered     []string           // ids of requests that this deals with
}

// PodWrite replaces, creates (index zero) or removes (nil) a placement.
type PodWrite struct {
	Identity  pod.Identity
	Index     uint64
	Placement *pod.Placement
	// Landed is the index that the placement has since the batch has landed. One that is written as it is keeps its own.
	Landed uint64
	key    string // once it was asked for
}

func (w *PodWrite) keyIn(k *Keys) string {
	if w.key == "" {
		w.key = k.Pods.Key(w.Identity.String())
	}
	return w.key
}

// IntentWrite sets or removes (nil) an intent.
type IntentWrite struct {
	Node     string
	Identity pod.Identity
	Intent   *pod.Intent
	key      string // once it was asked for
}

func (w *IntentWrite) keyIn(k *Keys) string {
	if w.key == "" {
		w.key = k.Intents.Key(w.Node, w.Identity.String())
	}
	return w.key
}

// ReservationWrite replaces what is taken on a node, if nobody else did meanwhile.
type ReservationWrite struct {
	Node  string
	Index uint64
	Value node.Reservation
}

// Joins reports whether two parts can share a transaction: they must not disagree on what the world is like. They are of one
// pass, which reads the other conditions once.
func (p *Part) Joins(other *Part) bool {
	for name, index := range other.Dead {
		if known, both := p.Dead[name]; both && known != index {
			return false
		}
	}
	return true
}

// Add makes another part, which joins this one, a part of it. Of two writes of one reservation the other part's stays: it was
// computed from this one's.
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
			p.Reservations[at].Value = w.Value
		} else {
			p.Reservations = append(p.Reservations, w)
		}
	}
}

// operation is one of a part's operations before its value is encoded, which is left to the commits: they are carried out
// side by side. All that a part makes is counted and carried out from the same list.
type operation struct {
	verb  verb
	key   string
	index uint64
	value content // of what sets its key
	own   bool    // no other part of the batch has one on this key
}

type verb int

const (
	checkIndex verb = iota // zero: the key must be missing
	casRecord
	casDelete
	setRecord
	deleteKey
)

// content is what a part writes.
type content interface{ Bytes() int } // an upper bound of its length as JSON

func (o operation) op() consul.Op {
	switch {
	case o.verb == checkIndex && o.index == 0:
		return consul.CheckMissing(o.key)
	case o.verb == checkIndex:
		return consul.CheckIndex(o.key, o.index)
	case o.verb == casRecord:
		return cas(o.key, o.value, o.index)
	case o.verb == casDelete:
		return consul.DeleteCAS(o.key, o.index)
	case o.verb == setRecord:
		return set(o.key, o.value)
	default:
		return consul.Delete(o.key)
	}
}

// operations lists what a part of a controller's batch makes, conditions first: one operation for each key.
func (t *Batches) operations(rcID string, p *Part) []operation {
	ops := make([]operation, 0, 3+len(p.Reported)+len(p.Dead)+len(p.Reservations)+len(p.Pods)+len(p.Intents)+len(p.Answered))
	check := func(key string, index uint64) {
		ops = append(ops, operation{verb: checkIndex, key: key, index: index})
	}
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
		check(t.keys.Realities.Key(at.Node, at.Identity.String()), index)
	}
	for name, index := range p.Dead {
		check(t.keys.Nodes.Key(name), index)
	}
	for i := range p.Reservations {
		r := &p.Reservations[i]
		ops = append(ops, operation{verb: casRecord, key: t.keys.Reservations.Key(r.Node), index: r.Index, value: &r.Value})
	}
	for i := range p.Pods {
		w := &p.Pods[i]
		o := operation{verb: casDelete, key: w.keyIn(t.keys), index: w.Index, own: true}
		if w.Placement != nil {
			o.verb, o.value = casRecord, allowed(t.guard, w.Placement)
		}
		ops = append(ops, o)
	}
	for i := range p.Intents {
		in := &p.Intents[i]
		o := operation{verb: deleteKey, key: in.keyIn(t.keys), own: true}
		if in.Intent != nil {
			o.verb, o.value = setRecord, allowed(t.guard, in.Intent)
		}
		ops = append(ops, o)
	}
	for _, id := range p.Answered {
		ops = append(ops, operation{verb: deleteKey, key: t.keys.Requests.Key(rcID, id), own: true})
	}
	return ops
}

// PartLoad is what a part takes of a transaction. It is an upper bound of its bytes.
type PartLoad struct {
	ops, bytes int        // of operations that no other part has
	shared     []keyBytes // of those that another part may have, too
}

// keyBytes is what an operation on a key takes.
type keyBytes struct {
	key   string
	bytes int
}

// LoadOf returns what a part takes of a batch of a controller. Nothing is encoded for it: that is left to the commits, which
// are carried out side by side.
func (t *Batches) LoadOf(rcID string, p *Part) PartLoad {
	l := PartLoad{}
	for _, o := range t.operations(rcID, p) {
		size := 0
		if o.value != nil {
			size = o.value.Bytes()
		}
		bytes := consul.OpBytes(o.key, size)
		if o.own {
			l.ops, l.bytes = l.ops+1, l.bytes+bytes
		} else {
			l.shared = append(l.shared, keyBytes{o.key, bytes})
		}
	}
	return l
}

// Ops returns how many operations the part takes by itself.
func (l PartLoad) Ops() int { return l.ops + len(l.shared) }

// Load is what a batch takes of its transaction while parts are added to it. Parts that depend on the same thing, or write
// the same reservation, make one operation of it, so that those operations are counted by their keys.
type Load struct {
	shared     map[string]int // bytes by key
	ops, bytes int
}

// HeadLoad returns what a batch takes before it has any part: its conditions and, in the one that reports, an audit record and
// a status.
func (t *Batches) HeadLoad(b *Batch, reports bool) Load {
	head := t.head(b)
	l := Load{shared: map[string]int{}, ops: len(head), bytes: consul.TxnBytes(head)}
	if reports {
		l.ops += 2
		l.bytes += consul.OpBytes(t.keys.Audits.Key(NewID()), MaxAuditBytes) + consul.OpBytes(t.keys.Statuses.Key(b.RCID), rc.MaxStatusBytes)
	}
	return l
}

// Add counts a part.
func (l *Load) Add(part PartLoad) {
	ops, bytes := l.with(part)
	l.ops, l.bytes = l.ops+ops, l.bytes+bytes
	for _, s := range part.shared {
		l.shared[s.key] = s.bytes
	}
}

// Takes reports whether a part fits besides what is there, and as many more like it as make so many altogether.
func (l *Load) Takes(part PartLoad, many int) bool {
	ops, bytes := l.with(part)
	return l.ops+many*ops <= consul.MaxTxnOps && l.bytes+many*bytes <= consul.MaxTxnBytes
}

// with returns what a part adds.
func (l *Load) with(part PartLoad) (ops, bytes int) {
	ops, bytes = part.ops, part.bytes
	for _, s := range part.shared {
		known, again := l.shared[s.key]
		if !again {
			ops++
		}
		bytes += s.bytes - known
	}
	return ops, bytes
}
