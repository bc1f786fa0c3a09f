package store

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"time"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/rc"
)

// Owners claims and releases units, and finds units without an owner.
type Owners struct{ *underLock }

// RCExists reports whether there is a record of a controller, readable or not.
func (o *Owners) RCExists(ctx context.Context, rcID string) (bool, error) {
	return o.RCs.Exists(ctx, rcID)
}

// ListReservedNodes returns the nodes with a reservation, readable or not.
func (o *Owners) ListReservedNodes(ctx context.Context) ([]string, error) {
	return o.Reservations.IDs(ctx)
}

// Ask is Operator.Ask.
func (o *Owners) Ask(ctx context.Context, r Request, a Audit) error {
	return (&Operator{o.db}).Ask(ctx, r, a)
}

// lockValue is the value of a farm's lock. Unique differs each time, because writing the same value again does not move
// the lock's index.
type lockValue struct {
	Farm        string `json:"farm"`
	Incarnation string `json:"incarnation"`
	Unique      string `json:"stamp"`
}

// ownerOf returns the farm that holds a lock; "" if none does, or if the value cannot be read.
func ownerOf(lock consul.Pair) string {
	var v lockValue
	if lock.Session == "" || json.Unmarshal(lock.Value, &v) != nil {
		return ""
	}
	return v.Farm
}

func (t *underLock) lockValue() []byte {
	b, _ := json.Marshal(lockValue{Farm: t.farmID, Incarnation: t.sess.Incarnation, Unique: NewID()})
	return b
}

// Join writes the member record, with this program's emulated version. The record vanishes with the session.
func (o *Owners) Join(ctx context.Context, m Member) error {
	m.ID, m.Incarnation, m.EmulationVersion = o.farmID, o.sess.Incarnation, o.guard.own()
	record, err := encode(m)
	if err != nil {
		return err
	}
	_, err = o.c.Locks.Acquire(ctx, o.keys.Farms.Key(o.farmID), o.sess.Deleting, func() []byte { return record })
	return err
}

// Claimed is a lock that was taken, with the result of ReadUnit.
type Claimed struct {
	Fence   Fence
	Unit    Unit
	UnitErr error
}

// Claim takes a unit's lock. It reads the unit in the same request, because a farm that takes over claims thousands of
// units. It returns *consul.LockedError (see LockedBy) if another farm holds the lock, and ErrLost if the session is
// dead.
func (o *Owners) Claim(ctx context.Context, unit string) (Claimed, error) {
	sent := time.Now()
	f, found, below, err := o.merged.AcquireReading(ctx, o.keys.Locks.Key(unit), o.sess.Releasing,
		o.lockValue, o.unitKeys(unit))
	got := Claimed{Fence: f}
	switch {
	case err == nil:
		got.Unit = o.unitOf(unit, found, below)
	case f.Key != "": // the lock was taken, but the token may not read all of the unit
		got.UnitErr = err
	default:
		return got, err
	}
	o.sess.Confirm(sent)
	return got, nil
}

// ClaimAll takes several units' locks and reads nothing. It returns the fences of the locks that it certainly took, and
// an error if it did not take all. The caller can try the others with Claim.
func (o *Owners) ClaimAll(ctx context.Context, units []string) (map[string]Fence, error) {
	keys := o.keys.Locks.Keys(units)
	sent := time.Now()
	byKey, err := o.c.Locks.AcquireAll(ctx, keys, o.sess.Releasing, o.lockValue)
	_ = o.sess.Answered(sent, err)
	got := make(map[string]Fence, len(byKey))
	for i, id := range units {
		if f, ok := byKey[keys[i]]; ok {
			got[id] = f
		}
	}
	return got, err
}

// Bump moves the fence. After that, no transaction with the old fence can land. It returns the errors of Claim, and
// ErrLost if another farm holds the lock.
func (o *Owners) Bump(ctx context.Context, f Fence) (Fence, error) {
	return o.c.Locks.Bump(ctx, f, o.lockValue)
}

// Release releases a unit's lock, and rings its bell, because other farms wait for the lock. The same session may take
// the lock again before a late release lands. So the whole fence is a condition.
func (o *Owners) Release(ctx context.Context, unit string, f Fence) error {
	return o.send(ctx, append(f.Ops(), consul.Unlock(f.Key, o.lockValue(), f.Session), o.ring(unit))...)
}

// LockState has the units that other sessions own.
type LockState map[string]bool

// Locks reads which units other sessions own.
func (o *Owners) Locks(ctx context.Context) (LockState, error) {
	pairs, err := o.c.List(ctx, o.keys.Locks.Key(), consul.Default)
	if err != nil {
		return nil, err
	}
	state := LockState{}
	for _, p := range pairs {
		if p.Session != "" && p.Session != o.sess.Releasing {
			state[strings.TrimPrefix(p.Key, o.keys.Locks.Key())] = true
		}
	}
	return state, nil
}

// IsLocked reports whether another session owns a unit.
func (o *Owners) IsLocked(ctx context.Context, unit string) (bool, error) {
	return o.lockedElsewhere(ctx, o.keys.Locks.Key(unit))
}

func (t *underLock) lockedElsewhere(ctx context.Context, lock string) (bool, error) {
	found, _, err := t.merged.Read(ctx, consul.Reading{Keys: []string{lock}}, consul.Default)
	owner := found[lock].Session
	return owner != "" && owner != t.sess.Releasing, err
}

// LockRefused reports whether a transaction was refused because its fence does not hold.
func LockRefused(err error, f Fence) bool { return consul.RefusedOn(err, f.Key) }

// Finish removes the remaining records of a deleted controller. For the last one of its unit, bell is the index of the
// unit's bell at the last read, else zero. Then Finish also removes the unit's bell, drops, lock and rollout, if the
// bell has not rung since. schemaIndex is a condition, because nothing may be removed under another epoch (R1). Finish
// returns ErrRefused or ErrUnknown for the transaction. Any other error means that nothing was sent.
func (o *Owners) Finish(ctx context.Context, f Fence, rec Rec[rc.RC], bell, schemaIndex uint64, a Audit) error {
	id := rec.Value.ID
	ops := append(f.Ops(), consul.CheckIndex(o.keys.Schema.Key(), schemaIndex), o.sameRC(id, rec.Index))
	if rec.Index != 0 {
		ops = append(ops, consul.DeleteCAS(o.keys.RCs.Key(id), rec.Index))
	}
	ops = append(ops,
		consul.Delete(o.keys.Statuses.Key(id)),
		consul.DeleteTree(o.keys.Requests.Below(id)),
		o.audit(a),
	)
	if bell != 0 { // a new controller of the unit has rung the bell
		ops = append(ops, consul.DeleteCAS(o.keys.Bells.Key(id), bell), consul.Delete(f.Key))
		ops = append(ops, o.forgetDrops(id)...)
		ops = append(ops, consul.Delete(o.keys.Rollouts.Key(id)), consul.Delete(o.keys.RolloutTroubles.Key(id)))
	}
	// An operator may have given the name to another controller, for example after a wipe.
	name, err := o.c.Get(ctx, o.keys.Names.Key(rec.Value.Name), consul.Consistent)
	if err != nil && !errors.Is(err, ErrNotFound) {
		return err // if the name remained without a controller, it could not be used again
	}
	if err == nil && string(name.Value) == id {
		ops = append(ops, consul.DeleteCAS(name.Key, name.ModifyIndex))
	}
	_, err = o.fenced(ctx, ops)
	return err
}

// Abandon removes the statuses of controllers without a record. empty is the unit if it has no controller any more,
// else nil. Then Abandon also removes its lock and alerts, and its rollout if it is unchanged.
func (o *Owners) Abandon(ctx context.Context, f Fence, gone []string, empty *Unit) error {
	ops := f.Ops()
	for _, id := range gone {
		ops = append(ops, consul.CheckMissing(o.keys.RCs.Key(id)), consul.Delete(o.keys.Statuses.Key(id)))
	}
	if empty != nil {
		ops = append(ops, consul.Delete(f.Key), consul.Delete(o.keys.RolloutTroubles.Key(empty.ID)))
		if index := empty.Rollout.Index; index != 0 {
			ops = append(ops, consul.DeleteCAS(o.keys.Rollouts.Key(empty.ID), index))
		}
	}
	_, err := o.fenced(ctx, ops)
	return err
}
