package store

import (
	"context"
	"errors"
	"time"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/pod"
)

// RequestKind is an act that only a controller's owner may carry out.
type RequestKind string

// The kinds of requests.
const (
	// ForgetPod declares a pod's copy on a node that is not alive as gone for good: its stop counts as confirmed.
	ForgetPod RequestKind = "forget-pod"
	// SweepOrphan stops a pod that runs without a controller.
	SweepOrphan RequestKind = "sweep-orphan"
	// RepairReservation releases what a node has reserved for pods of the controller that are not there, and reserves what
	// it has not for those that are.
	RepairReservation RequestKind = "repair-reservation"
)

// Request is the record at requests/<rc-id>/<ulid>.
type Request struct {
	ID   string       `json:"id"`
	RCID string       `json:"rc_id"`
	Kind RequestKind  `json:"kind"`
	Node string       `json:"node"`
	Pod  pod.Identity `json:"pod,omitzero"` // not for RepairReservation
	By   string       `json:"by"`
	At   time.Time    `json:"at"`
}

// NodeHeld reports whether a node's preparer holds its record, which need not be readable, and the record's index: zero where
// there is none.
func (s *Store) NodeHeld(ctx context.Context, name string) (index uint64, held bool, err error) {
	pair, err := s.c.Get(ctx, s.keys.Node(name), consul.Consistent)
	if errors.Is(err, ErrNotFound) {
		return 0, false, nil
	}
	return pair.ModifyIndex, pair.Session != "", err
}

// Ask leaves a request for a controller's owner, with an audit record, and rings.
func (s *Store) Ask(ctx context.Context, r Request, a Audit) error {
	_, err := s.c.Commit(ctx, []consul.Op{
		consul.Set(s.keys.Request(r.RCID, r.ID), encode(r)), s.audit(a), s.ring(r.RCID),
	})
	return err
}
