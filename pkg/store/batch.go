package store

import (
	"context"
	"errors"
	"time"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
)

// Batch is one write transaction of a controller's owner. It lands whole or not at all, and only while the fence holds and
// the controller's record is the one that the batch was computed from.
type Batch struct {
	Fence   Fence
	RCID    string
	RCIndex uint64 // zero: there must be no record, as when orphans without a controller are swept
	// Indices that must not have moved; zero means that the batch does not depend on them.
	SchemaIndex, BreakerIndex, BellIndex uint64
	// Dead are nodes whose records nobody may have come to hold, with the indices of those; zero: there was no record.
	Dead         map[string]uint64
	Audit        *Audit
	Status       *rc.Status
	Pods         []PodWrite
	Intents      []IntentWrite
	Reservations []ReservationWrite
	Answered     []string // ids of requests that this batch deals with
}

// PodWrite replaces, creates (index zero) or removes (nil) a placement.
type PodWrite struct {
	Identity  pod.Identity
	Index     uint64
	Placement *pod.Placement
}

// IntentWrite sets or removes (nil) an intent.
type IntentWrite struct {
	Node     string
	Identity pod.Identity
	Intent   *pod.Intent
}

// ReservationWrite replaces what is taken on a node, if nobody else did meanwhile.
type ReservationWrite struct {
	Node  string
	Index uint64
	Value node.Reservation
}

// ops lists the operations: conditions first, so that a refusal names the condition.
func (t *FarmTenure) ops(b *Batch) []consul.Op {
	ops := append(b.Fence.Ops(), t.sameRC(b.RCID, b.RCIndex))
	for _, cond := range []struct {
		key   string
		index uint64
	}{{t.keys.Schema(), b.SchemaIndex}, {t.keys.Breaker(), b.BreakerIndex}, {t.keys.Bell(b.RCID), b.BellIndex}} {
		if cond.index != 0 {
			ops = append(ops, consul.CheckIndex(cond.key, cond.index))
		}
	}
	for name, index := range b.Dead {
		ops = append(ops, t.same(t.keys.Node(name), index))
	}
	for _, r := range b.Reservations {
		ops = append(ops, t.reservationOp(r))
	}
	for i := range b.Pods {
		ops = append(ops, t.podOp(&b.Pods[i]))
	}
	for i := range b.Intents {
		ops = append(ops, t.intentOp(&b.Intents[i]))
	}
	for _, id := range b.Answered {
		ops = append(ops, consul.Delete(t.keys.Request(b.RCID, id)))
	}
	if b.Audit != nil {
		ops = append(ops, t.audit(*b.Audit))
	}
	if b.Status != nil {
		ops = append(ops, consul.Set(t.keys.Status(b.RCID), encode(b.Status)))
	}
	return ops
}

// sameRC is the condition that a controller's record is the one that was read (P2).
func (t *FarmTenure) sameRC(id string, index uint64) consul.Op { return t.same(t.keys.RC(id), index) }

// same is the condition that a key has an index, or with zero that there is none.
func (t *FarmTenure) same(key string, index uint64) consul.Op {
	if index == 0 {
		return consul.CheckMissing(key)
	}
	return consul.CheckIndex(key, index)
}

// What a transaction takes; see consul.MaxTxnOps.
const (
	MaxBatchOps   = consul.MaxTxnOps
	MaxBatchBytes = consul.MaxTxnBytes
	// MaxAnswered is how many requests one batch may deal with besides those that its pods answer.
	MaxAnswered = 8
	// BatchHead is how many operations a batch may need besides its pods, intents and reservations. A request takes its
	// removal, and that its node is dead.
	BatchHead = 8 + 2*MaxAnswered
)

// Cost is what a change adds to a batch.
type Cost struct{ Ops, Bytes int }

// CostOf returns an upper bound of what these writes add to a batch; the first may be nil. Nothing is encoded for it: that is
// left to the commits, which are carried out side by side.
func (t *FarmTenure) CostOf(p *PodWrite, intents []IntentWrite, reservations []ReservationWrite) Cost {
	var cost Cost
	count := func(key string, value int) {
		cost.Ops++
		cost.Bytes += consul.OpBytes(key, value)
	}
	switch {
	case p == nil:
	case p.Placement == nil:
		count(t.keys.Pod(p.Identity), 0)
	default:
		count(t.keys.Pod(p.Identity), p.Placement.Bytes())
	}
	for i := range intents {
		if in := &intents[i]; in.Intent != nil {
			count(t.keys.Intent(in.Node, in.Identity), in.Intent.Bytes())
		} else {
			count(t.keys.Intent(in.Node, in.Identity), 0)
		}
	}
	for _, r := range reservations {
		count(t.keys.Reservation(r.Node), r.Value.Bytes())
	}
	return cost
}

func (t *FarmTenure) podOp(p *PodWrite) consul.Op {
	key := t.keys.Pod(p.Identity)
	if p.Placement == nil {
		return consul.DeleteCAS(key, p.Index)
	}
	return consul.CAS(key, encode(p.Placement), p.Index)
}

func (t *FarmTenure) intentOp(in *IntentWrite) consul.Op {
	key := t.keys.Intent(in.Node, in.Identity)
	if in.Intent == nil {
		return consul.Delete(key)
	}
	return consul.Set(key, encode(in.Intent))
}

func (t *FarmTenure) reservationOp(r ReservationWrite) consul.Op {
	return consul.CAS(t.keys.Reservation(r.Node), encode(r.Value), r.Index)
}

// Commit carries a batch out. It returns nil, or an error that matches ErrRefused (with LockRefused and RCRefused to tell
// why) or ErrUnknown.
func (t *FarmTenure) Commit(ctx context.Context, b *Batch) error {
	return t.fenced(ctx, t.ops(b))
}

func (t *FarmTenure) fenced(ctx context.Context, ops []consul.Op) error {
	sent := time.Now()
	_, err := t.merged.Commit(ctx, ops)
	if err == nil {
		t.sess.Confirm(sent)
	}
	return err
}

// LockRefused reports whether a transaction was refused because its fence does not hold.
func LockRefused(err error, f Fence) bool { return consul.RefusedOn(err, f.Key) }

// Finish removes what is left of a deleted controller: record, name, bell, status and lock, in the last transaction under
// its lock. It returns like Commit.
// schemaIndex is a condition too: nothing is forgotten in a world that has become another one (R1). An error that matches
// neither ErrRefused nor ErrUnknown says that the name could not be read, and nothing was sent.
func (t *FarmTenure) Finish(ctx context.Context, f Fence, rec Rec[rc.RC], schemaIndex uint64, a Audit) error {
	id := rec.Value.ID
	ops := append(f.Ops(), consul.CheckIndex(t.keys.Schema(), schemaIndex), t.sameRC(id, rec.Index))
	if rec.Index != 0 {
		ops = append(ops, consul.DeleteCAS(t.keys.RC(id), rec.Index))
	}
	ops = append(ops,
		consul.Delete(t.keys.Status(id)),
		consul.Delete(t.keys.Bell(id)),
		consul.DeleteTree(t.keys.Requests(id)),
		t.audit(a),
	)
	// The name may have been given to another controller by hand, after a wipe for instance.
	name, err := t.c.Get(ctx, t.keys.Name(rec.Value.Name), consul.Consistent)
	if err != nil && !errors.Is(err, ErrNotFound) {
		return err // a name that leads nowhere could not be given again
	}
	if err == nil && string(name.Value) == id {
		ops = append(ops, consul.DeleteCAS(name.Key, name.ModifyIndex))
	}
	return t.fenced(ctx, append(ops, consul.Delete(f.Key)))
}

// RestoreBreaker creates the breaker record where it is missing: without it nothing may be stopped.
func (t *FarmTenure) RestoreBreaker(ctx context.Context) error {
	return t.create(ctx, t.keys.Breaker(), encode(Breaker{}))
}

// Abandon removes the lock and the status of a controller whose record is gone.
func (t *FarmTenure) Abandon(ctx context.Context, rcID string, f Fence) error {
	return t.fenced(ctx, append(f.Ops(), consul.CheckMissing(t.keys.RC(rcID)), consul.Delete(t.keys.Status(rcID)), consul.Delete(f.Key)))
}
