package store

import (
	"context"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/rc"
)

// Incidents is the record at incidents: alerts that no controller's status can have.
type Incidents struct {
	Records map[string][]rc.Incident `json:"records,omitempty"` // about unreadable records, by the record's key
}

// ReadIncidents returns an empty record if it is missing or cannot be read.
func (v *Views) ReadIncidents(ctx context.Context) (Rec[Incidents], error) {
	return v.Incidents.present(ctx)
}

// WriteIncidents returns ErrConflict if the record has changed. Without incidents it deletes the key.
func (l *Leader) WriteIncidents(ctx context.Context, rec Rec[Incidents]) error {
	next := &rec.Value
	if len(next.Records) == 0 {
		next = nil
	}
	return l.write(ctx, l.keys.Incidents.Key(), replaceOp(l.keys.Incidents.Key(), next, rec.Index))
}

// Unowned is a controller without an owner, with the conditions of a report about it.
type Unowned struct {
	RC                       Rec[rc.RC]
	Status                   *rc.Status // nil: there is none, or it cannot be read
	statusIndex, lockedIndex uint64
}

// ReadUnowned reads a controller. ok is false if it has an owner or does not exist.
func (l *Leader) ReadUnowned(ctx context.Context, rcID string) (u Unowned, ok bool, err error) {
	rcKey, statusKey, lockKey := l.keys.RCs.Key(rcID), l.keys.Statuses.Key(rcID), l.keys.Locks.Key(rcID)
	found, err := l.c.GetMany(ctx, []string{lockKey, rcKey, statusKey}, consul.Consistent)
	if err != nil {
		return u, false, err
	}
	u.RC, err = l.RCs.decodeIn(found, rcKey)
	if u.RC.Index == 0 || found[lockKey].Session != "" {
		return u, false, nil
	}
	u.Status, u.statusIndex, u.lockedIndex = l.statusOf(found,
		rcID), found[statusKey].ModifyIndex, found[lockKey].ModifyIndex
	return u, err == nil, err
}

// ReportUnowned writes the status of a controller without an owner. The leader's fence does not protect the controller.
// So the transaction requires that lock, controller and status are unchanged, else it returns ErrRefused.
func (l *Leader) ReportUnowned(ctx context.Context, u Unowned, st rc.Status) error {
	id := u.RC.Value.ID
	_, err := l.fenced(ctx, []consul.Op{
		sameRecord(l.keys.Locks.Key(id), u.lockedIndex), // a claim changes this index
		consul.CheckIndex(l.keys.RCs.Key(id), u.RC.Index), cas(l.keys.Statuses.Key(id), st, u.statusIndex),
	})
	return err
}
