package store

import (
	"context"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/rc"
)

// RolloutTrouble is the record at rollouts/<service>/trouble: what somebody is, or has to be, alerted to about a service's rollout.
type RolloutTrouble struct {
	rc.Incident
	Rollout string `json:"rollout,omitempty"` // id; empty: the record of the rollout could not be read
	// Ended: the rollout has ended and left this behind. It lasts until another rollout of the service begins.
	Ended bool `json:"ended,omitempty"`
}

// RolloutTrouble is the key of what is wrong with a service's rollout.
func (k Keys) RolloutTrouble(service string) string { return k.Rollout(service) + "/trouble" }

// WriteTrouble writes, or removes (nil), what is wrong with a service's rollout, if it is as it was read; index zero: there is none. It
// returns ErrConflict when somebody else was first. It bears no fence: it says what has been told, and nothing is decided by it.
func (t *FarmTenure) WriteTrouble(ctx context.Context, service string, index uint64, trouble *RolloutTrouble) error {
	key := t.keys.RolloutTrouble(service)
	_, err := t.c.Commit(ctx, []consul.Op{replaceOp(key, trouble, index)})
	return conflictOn(err, key)
}
