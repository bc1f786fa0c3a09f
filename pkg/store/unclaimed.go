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
	record, exists := found[rcKey]
	if !exists || found[lockKey].Session != "" {
		return u, false, nil
	}
	if u.RC, err = decode[rc.RC](t.keys, record); err != nil {
		return u, false, err
	}
	u.statusIndex, u.lockedIndex = found[statusKey].ModifyIndex, found[lockKey].ModifyIndex
	if st, err := decode[rc.Status](t.keys, found[statusKey]); u.statusIndex != 0 && err == nil {
		u.Status = &st.Value
	}
	return u, true, nil
}

// ReportUnowned writes the status of a controller that still has no owner: there is no fence that could be held, so that
// every condition for being allowed to is checked. It returns ErrRefused when the controller was claimed or changed.
func (t *FarmTenure) ReportUnowned(ctx context.Context, u Unowned, st rc.Status) error {
	id := u.RC.Value.ID
	free := consul.CheckMissing(t.keys.Lock(id))
	if u.lockedIndex != 0 {
		free = consul.CheckIndex(t.keys.Lock(id), u.lockedIndex) // claiming moves it
	}
	_, err := t.c.Commit(ctx, []consul.Op{
		free, consul.CheckIndex(t.keys.RC(id), u.RC.Index), consul.CAS(t.keys.Status(id), encode(st), u.statusIndex),
	})
	return err
}
