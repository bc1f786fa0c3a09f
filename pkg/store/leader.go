package store

import (
	"context"

	"github.com/rcfarm/rcfarm/pkg/consul"
)

// FarmLease is the lease for which the farms below one prefix compete.
const FarmLease = "farm"

// Leader has the writes of the farms' leader (ADR 27). No controller's lock protects them, so all go through fenced.
type Leader struct {
	*db
	*Views
	*Agents
	farmID string
	fenced func(ctx context.Context, ops []consul.Op) (map[string]uint64, error)
}

// Leader returns a leader's writes. fenced is election.Commit: it carries a transaction out only while this leader
// leads. It gets the context of the leader's tenure. It must accept nearly consul.MaxTxnOps operations. After an
// unknown outcome it must find out whether the transaction landed.
func (s *Store) Leader(farmID string,
	fenced func(ctx context.Context, ops []consul.Op) (map[string]uint64, error),
) *Leader {
	return &Leader{db: s.db, Views: s.Views, Agents: s.Agents, farmID: farmID, fenced: fenced}
}

// MendReservation is ClusterWrites.MendReservation for the leader.
func (l *Leader) MendReservation(ctx context.Context, name string) (mended bool, err error) {
	return l.mendReservation(ctx, name, l.farmID, l.fenced)
}

// RaiseGate sets the gate to a version, or returns ErrConflict if it has changed.
func (l *Leader) RaiseGate(ctx context.Context, rec Rec[Gate], to string) error {
	return l.write(ctx, l.keys.Gate.Key(), l.raiseGate(rec, to, l.farmID)...)
}

// write returns ErrConflict if the record at key has changed.
func (l *Leader) write(ctx context.Context, key string, ops ...consul.Op) error {
	_, err := l.fenced(ctx, ops)
	return conflictOn(err, key)
}
