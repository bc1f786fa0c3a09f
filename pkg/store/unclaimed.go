package store

import (
	"context"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/rc"
)

// Unowned is a controller that no farm owned when it was read, with what a report about it depends on.
type Unowned struct {
	RC                       Rec[rc.RC]
	Status                   *rc.Status // nil: there is none, or it cannot be read
	statusIndex, lockedIndex uint64
}

// ReadUnowned reads a controller without an owner. ok is false when it has one, or is gone.
func (t *FarmTenure) ReadUnowned(ctx context.Context, rcID string) (u Unowned, ok bool, err error) {
	rcKey, statusKey, lockKey := t.keys.RC(rcID), t.keys.Status(rcID), t.keys.Lock(rcID)
	found, err := t.c.GetMany(ctx, []string{lockKey, rcKey, statusKey}, consul.Consistent)
	if err != nil {
		return u, false, err
	}
	u.RC, err = decodeFound[rc.RC](t.keys, found, rcKey)
	if u.RC.Index == 0 || found[lockKey].Session != "" {
		return u, false, nil
	}
	u.Status, u.statusIndex, u.lockedIndex = t.statusOf(found, rcID), found[statusKey].ModifyIndex, found[lockKey].ModifyIndex
	return u, err == nil, err
}

// ReportUnowned writes the status of a controller that still has no owner: there is no fence that could be held, so that
// every condition for being allowed to is checked. It returns ErrRefused when the controller was claimed or changed.
func (t *FarmTenure) ReportUnowned(ctx context.Context, u Unowned, st rc.Status) error {
	id := u.RC.Value.ID
	_, err := t.c.Commit(ctx, []consul.Op{
		sameRecord(t.keys.Lock(id), u.lockedIndex), // claiming moves it
		consul.CheckIndex(t.keys.RC(id), u.RC.Index), consul.CAS(t.keys.Status(id), encode(st), u.statusIndex),
	})
	return err
}
