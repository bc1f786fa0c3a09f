package store

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/rc"
)

// Batches has the writes of passes.
type Batches struct{ *underLock }

// Batch is one write transaction of a controller's owner. The package documentation says what it promises.
type Batch struct {
	Fence   Fence
	RCID    string
	RCIndex uint64 // zero: there must be no record, for example to stop orphans without a controller
	// Beside has, by id, the indices of the unit's other controllers, because operators change these records too.
	Beside map[string]uint64
	// Rollout is the index of the unit's rollout, zero: there is none. It is set for each controller of a service, also
	// for the controller of pre_deploy. For other controllers it is nil.
	Rollout *uint64
	// Newest is the last report on which the batch relies; nil: none.
	Newest *Reported
	Part
	Audit  *Audit
	Status *rc.Status
	// Landed is the index at which the batch landed. Commit sets it, and also PodWrite.Landed.
	Landed uint64
}

// Reported is a reality with the index at which it was read.
type Reported struct {
	At
	Index uint64
}

// ops has the conditions first, because a refusal must name a condition.
func (t *Batches) ops(b *Batch) []consul.Op {
	shared, own := t.operations(b.RCID, &b.Part)
	ops := slices.Concat(t.head(b), shared, own)
	if b.Audit != nil {
		ops = append(ops, t.audit(*b.Audit))
	}
	if b.Status != nil {
		ops = append(ops, set(t.keys.Statuses.Key(b.RCID), b.Status))
	}
	return ops
}

func (t *Batches) head(b *Batch) []consul.Op {
	ops := append(b.Fence.Ops(), t.sameRC(b.RCID, b.RCIndex))
	for _, id := range slices.Sorted(maps.Keys(b.Beside)) {
		ops = append(ops, t.sameRC(id, b.Beside[id]))
	}
	if b.Rollout != nil {
		ops = append(ops, sameRecord(t.keys.Rollouts.Key(b.RCID), *b.Rollout))
	}
	if n := b.Newest; n != nil {
		if _, twice := b.Reported[n.At]; !twice {
			ops = append(ops, consul.CheckIndex(t.keys.Realities.Key(n.Node, n.Identity.String()), n.Index))
		}
	}
	return ops
}

// sameRC is the condition that a controller is the one that was read (P2).
func (t *underLock) sameRC(id string, index uint64) consul.Op {
	return sameRecord(t.keys.RCs.Key(id), index)
}

// ErrDropped and ErrReported: a batch was refused only because pods have dropped, or because Newest has changed.
var (
	ErrDropped  = errors.New("pods have stopped being available meanwhile")
	ErrReported = errors.New("a pod that the batch relies on was reported again")
)

// Commit returns nil, ErrRefused or ErrUnknown. For ErrRefused, LockRefused, ErrDropped and ErrReported show the
// reason.
func (t *Batches) Commit(ctx context.Context, b *Batch) error {
	written, err := t.fenced(ctx, t.ops(b))
	for _, index := range written { // an unchanged record keeps its earlier index
		b.Landed = max(b.Landed, index)
	}
	for i := range b.Pods {
		b.Pods[i].Landed = written[b.Pods[i].made.Key()]
	}
	drops := t.keys.Drops.Key(b.RCID)
	if b.Newest != nil {
		newest := t.keys.Realities.Key(b.Newest.Node, b.Newest.Identity.String())
		if consul.RefusedOn(err, newest) && consul.RefusedOnly(err, drops, newest) {
			return errors.Join(ErrReported, err)
		}
	}
	if consul.RefusedOnly(err, drops) {
		return errors.Join(ErrDropped, err)
	}
	return err
}

// fenced returns the indices of the written keys. It may merge transactions of several controllers.
func (t *underLock) fenced(ctx context.Context, ops []consul.Op) (map[string]uint64, error) {
	sent := time.Now()
	written, err := t.merged.Commit(ctx, ops)
	return written, t.sess.Answered(sent, err)
}
