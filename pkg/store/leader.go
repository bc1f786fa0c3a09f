package store

import (
	"context"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/feature"
)

// FarmLease is what the farms below one prefix compete for in their election.
const FarmLease = "farm"

// Leader has what only the leader of the farms writes (ADR 27): what belongs to no controller, and so is under no controller's lock. All of
// it goes through one function, which bears the leader's fence.
type Leader struct {
	*db
	farmID string
	fenced func(ctx context.Context, ops []consul.Op) (map[string]uint64, error)
}

// Leader returns the writes of a leader. fenced carries a transaction out in the name of the leader whose context it gets, or refuses it:
// election.Commit. It must take some operations less than consul.MaxTxnOps, and settle what is unknown.
func (s *Store) Leader(farmID string, fenced func(ctx context.Context, ops []consul.Op) (map[string]uint64, error)) *Leader {
	return &Leader{db: s.db, farmID: farmID, fenced: fenced}
}

// MendReservation makes a node's reservation say what follows from other records, as Duties.MendReservation does.
func (s *Leader) MendReservation(ctx context.Context, name string) (mended bool, err error) {
	return s.mendReservation(ctx, name, s.farmID, s.fenced)
}

// PresentGate reads the gate, as Views.PresentGate does.
func (s *Leader) PresentGate(ctx context.Context) (Rec[Gate], error) {
	return (&Views{s.db}).PresentGate(ctx)
}

// Writers are the farms and nodes that live, as of Agents.Writers.
func (s *Leader) Writers(ctx context.Context) ([]feature.Writer, error) {
	return (&Agents{s.db}).Writers(ctx)
}

// RaiseGate makes the gate a version, if it is as it was read. It returns ErrConflict when it is not.
func (s *Leader) RaiseGate(ctx context.Context, rec Rec[Gate], to string) error {
	_, err := s.fenced(ctx, s.raiseGate(rec, to, s.farmID))
	return conflictOn(err, s.keys.Gate.Key())
}

// ReadIncidents reads the incidents that belong to no controller. A record that is missing or cannot be read is an empty one.
func (s *Leader) ReadIncidents(ctx context.Context) (Rec[Incidents], error) {
	return (&Views{s.db}).ReadIncidents(ctx)
}
