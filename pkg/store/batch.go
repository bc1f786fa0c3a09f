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

// Batches are the writes of passes over controllers.
type Batches struct{ *underLock }

// Batch is one write transaction of a controller's owner. It lands whole or not at all, and only while the fence holds and
// the controller's record is the one that the batch was computed from.
type Batch struct {
	Fence   Fence
	RCID    string
	RCIndex uint64 // zero: there must be no record, as when orphans without a controller are swept
	// Beside are the indices of the records of the unit's other controllers, by id: operators change them, too.
	Beside map[string]uint64
	// Rollout is the index of the record of the unit's rollout, zero for none; nil: the controller is of no service,
	// and runs before no revision of one.
	Rollout *uint64
	// Newest is the last reported of the realities that are relied on besides; nil: none is.
	Newest *Reported
	Part
	Audit  *Audit
	Status *rc.Status
	// Landed is Consul's index at which the batch has landed; Commit fills it in, and that of each placement.
	Landed uint64
}

// Reported is a reality with the index at which it was read.
type Reported struct {
	At
	Index uint64
}

// ops lists the operations: conditions first, so that a refusal names the condition.
func (t *Batches) ops(b *Batch) []consul.Op {
	const besides = 2 // audit record and status
	head, own := t.head(b), t.operations(b.RCID, &b.Part)
	ops := append(make([]consul.Op, 0, len(head)+len(own)+besides), head...)
	for i := range own {
		ops = append(ops, own[i].op())
	}
	if b.Audit != nil {
		ops = append(ops, t.audit(*b.Audit))
	}
	if b.Status != nil {
		ops = append(ops, set(t.keys.Statuses.Key(b.RCID), b.Status))
	}
	return ops
}

// head is what every batch depends on.
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

// sameRC is the condition that a controller's record is the one that was read (P2).
func (t *underLock) sameRC(id string, index uint64) consul.Op {
	return sameRecord(t.keys.RCs.Key(id), index)
}

// ErrDropped and ErrReported say that a batch was refused only because pods have dropped, or because its Newest is not as it was
// read.
var (
	ErrDropped  = errors.New("pods have stopped being available meanwhile")
	ErrReported = errors.New("a pod that is relied on was reported again")
)

// Commit carries a batch out. It returns nil, or an error that matches ErrRefused (with LockRefused, ErrDropped and ErrReported to
// tell why) or ErrUnknown.
func (t *Batches) Commit(ctx context.Context, b *Batch) error {
	written, err := t.fencedIndices(ctx, t.ops(b))
	for _, index := range written { // what was written as it is already has an earlier one
		b.Landed = max(b.Landed, index)
	}
	for i := range b.Pods {
		b.Pods[i].Landed = written[b.Pods[i].keyIn(t.keys)]
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

func (t *underLock) fenced(ctx context.Context, ops []consul.Op) error {
	return t.sess.Answered(time.Now(), t.merged.CommitBlind(ctx, ops))
}

// fencedIndices is fenced, and returns the indices of the keys that it wrote, too.
func (t *underLock) fencedIndices(ctx context.Context, ops []consul.Op) (map[string]uint64, error) {
	sent := time.Now()
	written, err := t.merged.Commit(ctx, ops)
	return written, t.sess.Answered(sent, err)
}

// LockRefused reports whether a transaction was refused because its fence does not hold.
func LockRefused(err error, f Fence) bool { return consul.RefusedOn(err, f.Key) }

// Finish removes what is left of a deleted controller: record, name, requests and status. With the last one of its unit
// go the unit's bell, drops, lock and rollout, if the bell has not rung since it was read at last, which is its index:
// zero for a controller that is not the last. It returns like Commit. schemaIndex is a condition too: nothing is
// forgotten in a world that has become another one (R1). An error that matches neither ErrRefused nor ErrUnknown says
// that the name could not be read, and nothing was sent.
func (t *Owners) Finish(ctx context.Context, f Fence, rec Rec[rc.RC], last uint64, schemaIndex uint64, a Audit) error {
	id := rec.Value.ID
	ops := append(f.Ops(), consul.CheckIndex(t.keys.Schema.Key(), schemaIndex), t.sameRC(id, rec.Index))
	if rec.Index != 0 {
		ops = append(ops, consul.DeleteCAS(t.keys.RCs.Key(id), rec.Index))
	}
	ops = append(ops,
		consul.Delete(t.keys.Statuses.Key(id)),
		consul.DeleteTree(t.keys.Requests.Below(id)),
		t.audit(a),
	)
	if last != 0 { // a controller that is made rings
		bell := t.keys.Bells.Key(id)
		ops = append(append(ops, consul.DeleteCAS(bell, last), consul.Delete(f.Key)), t.forgetDrops(id)...)
		ops = append(ops, consul.Delete(t.keys.Rollouts.Key(id)), consul.Delete(t.keys.RolloutTroubles.Key(id)))
	}
	// The name may have been given to another controller by hand, after a wipe for instance.
	name, err := t.c.Get(ctx, t.keys.Names.Key(rec.Value.Name), consul.Consistent)
	if err != nil && !errors.Is(err, ErrNotFound) {
		return err // a name that leads nowhere could not be given again
	}
	if err == nil && string(name.Value) == id {
		ops = append(ops, consul.DeleteCAS(name.Key, name.ModifyIndex))
	}
	return t.fenced(ctx, ops)
}

// RestoreBreaker creates the breaker record where it is missing: without it nothing may be stopped.
func (t *Duties) RestoreBreaker(ctx context.Context) error {
	return t.create(ctx, cas(t.keys.Breaker.Key(), Breaker{}, 0))
}

// Abandon removes the statuses of controllers that have no record. With a unit, which has no controller left, the
// unit's lock goes too, and its rollout if it is as it was read.
func (t *Owners) Abandon(ctx context.Context, f Fence, gone []string, left *Unit) error {
	ops := f.Ops()
	for _, id := range gone {
		ops = append(ops, consul.CheckMissing(t.keys.RCs.Key(id)), consul.Delete(t.keys.Statuses.Key(id)))
	}
	if left != nil {
		ops = append(ops, consul.Delete(f.Key), consul.Delete(t.keys.RolloutTroubles.Key(left.ID)))
		if index := left.Rollout.Index; index != 0 {
			ops = append(ops, consul.DeleteCAS(t.keys.Rollouts.Key(left.ID), index))
		}
	}
	return t.fenced(ctx, ops)
}
