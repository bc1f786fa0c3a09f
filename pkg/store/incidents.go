package store

import (
	"context"
	"errors"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/rc"
)

// Incidents is the record at incidents: what somebody is, or has to be, alerted to and no controller's status can hold.
type Incidents struct {
	Records map[string][]rc.Incident `json:"records,omitempty"` // that cannot be read, by key
}

// ReadIncidents reads the incidents that belong to no controller. A record that is missing or cannot be read is an empty one.
func (s *Views) ReadIncidents(ctx context.Context) (Rec[Incidents], error) {
	rec, err := s.Incidents.Get(ctx, consul.Consistent)
	switch {
	case IsCorrupt(err):
		return Rec[Incidents]{Index: rec.Index}, nil
	case errors.Is(err, ErrNotFound):
		return rec, nil
	default:
		return rec, err
	}
}

// WriteIncidents writes them, if they are as they were read; the key goes where there are none. It returns ErrConflict when
// somebody else was first.
func (s *Leader) WriteIncidents(ctx context.Context, rec Rec[Incidents]) error {
	next := &rec.Value
	if len(next.Records) == 0 {
		next = nil
	}
	_, err := s.fenced(ctx, []consul.Op{replaceOp(s.keys.Incidents.Key(), next, rec.Index)})
	return conflictOn(err, s.keys.Incidents.Key())
}

// Unowned is a controller that no farm owned when it was read, with what a report about it depends on.
type Unowned struct {
	RC                       Rec[rc.RC]
	Status                   *rc.Status // nil: there is none, or it cannot be read
	statusIndex, lockedIndex uint64
}

// ReadUnowned reads a controller without an owner. ok is false when it has one, or is gone.
func (s *Leader) ReadUnowned(ctx context.Context, rcID string) (u Unowned, ok bool, err error) {
	rcKey, statusKey, lockKey := s.keys.RCs.Key(rcID), s.keys.Statuses.Key(rcID), s.keys.Locks.Key(rcID)
	found, err := s.c.GetMany(ctx, []string{lockKey, rcKey, statusKey}, consul.Consistent)
	if err != nil {
		return u, false, err
	}
	u.RC, err = s.RCs.decodeIn(found, rcKey)
	if u.RC.Index == 0 || found[lockKey].Session != "" {
		return u, false, nil
	}
	u.Status, u.statusIndex, u.lockedIndex = s.statusOf(found, rcID), found[statusKey].ModifyIndex, found[lockKey].ModifyIndex
	return u, err == nil, err
}

// ReportUnowned writes the status of a controller that still has no owner: the fence is not that of the controller's lock, so that
// every condition for being allowed to is checked. It returns ErrRefused when the controller was claimed or changed.
func (s *Leader) ReportUnowned(ctx context.Context, u Unowned, st rc.Status) error {
	id := u.RC.Value.ID
	_, err := s.fenced(ctx, []consul.Op{
		sameRecord(s.keys.Locks.Key(id), u.lockedIndex), // claiming moves it
		consul.CheckIndex(s.keys.RCs.Key(id), u.RC.Index), cas(s.keys.Statuses.Key(id), st, u.statusIndex),
	})
	return err
}
