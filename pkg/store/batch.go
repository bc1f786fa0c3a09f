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
	Audit                                *Audit
	Status                               *rc.Status
	Pods                                 []PodWrite
	Intents                              []IntentWrite
	Reservations                         []ReservationWrite
	Answered                             []string // ids of requests that this batch deals with
}

// PodWrite replaces, creates (index zero) or removes (nil) a placement.
type PodWrite struct {
	Identity  pod.Identity
	Index     uint64
	Placement *pod.Placement

	encoded []byte // the placement, once its cost was asked for
}

// IntentWrite sets or removes (nil) an intent.
type IntentWrite struct {
	Node     string
	Identity pod.Identity
	Intent   *pod.Intent

	encoded []byte // the intent, once its cost was asked for
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
func (t *FarmTenure) sameRC(id string, index uint64) consul.Op {
	if index == 0 {
		return consul.CheckMissing(t.keys.RC(id))
	}
	return consul.CheckIndex(t.keys.RC(id), index)
}

// What a transaction takes; see consul.MaxTxnOps.
const (
	MaxBatchOps   = consul.MaxTxnOps
	MaxBatchBytes = consul.MaxTxnBytes
	// MaxAnswered is how many requests one batch may deal with.
	MaxAnswered = 8
	// BatchHead is how many operations a batch may need besides its pods, intents and reservations.
	BatchHead = 8 + MaxAnswered
)

// Cost is what a change adds to a batch.
type Cost struct{ Ops, Bytes int }

// CostOf returns an upper bound of what these writes add to a batch; the first may be nil. The
// placement and the intents must not change any more: their encoding is kept for the commit, because encoding thousands of
// pods twice would be a good part of placing them.
func (t *FarmTenure) CostOf(p *PodWrite, intents []IntentWrite, reservations []ReservationWrite) Cost {
	var cost Cost
	count := func(op consul.Op) {
		cost.Ops++
		cost.Bytes += op.Bytes()
	}
	if p != nil {
		count(t.podOp(p))
	}
	for i := range intents {
		count(t.intentOp(&intents[i]))
	}
	for _, r := range reservations {
		cost.Ops++
		cost.Bytes += consul.OpBytes(t.keys.Reservation(r.Node), r.Value.Bytes())
	}
	return cost
}

func (t *FarmTenure) podOp(p *PodWrite) consul.Op {
	key := t.keys.Pod(p.Identity)
	if p.Placement == nil {
		return consul.DeleteCAS(key, p.Index)
	}
	if p.encoded == nil {
		p.encoded = encode(p.Placement)
	}
	return consul.CAS(key, p.encoded, p.Index)
}

func (t *FarmTenure) intentOp(in *IntentWrite) consul.Op {
	key := t.keys.Intent(in.Node, in.Identity)
	if in.Intent == nil {
		return consul.Delete(key)
	}
	if in.encoded == nil {
		in.encoded = encode(in.Intent)
	}
	return consul.Set(key, in.encoded)
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
