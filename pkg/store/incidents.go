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
func (s *Store) ReadIncidents(ctx context.Context) (Rec[Incidents], error) {
	rec, err := get[Incidents](ctx, s, s.keys.Incidents(), consul.Consistent)
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
func (t *FarmTenure) WriteIncidents(ctx context.Context, rec Rec[Incidents]) error {
	next := &rec.Value
	if len(next.Records) == 0 {
		next = nil
	}
	_, err := t.c.Commit(ctx, []consul.Op{replaceOp(t.keys.Incidents(), next, rec.Index)})
	return conflictOn(err, t.keys.Incidents())
}
