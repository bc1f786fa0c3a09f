package store

import (
	"context"
	"strings"

	"github.com/rcfarm/rcfarm/pkg/consul"
)

// Rollouts is the prefix, and the marker key, of all rollouts.
func (k Keys) Rollouts() string { return k.prefix + "rollouts/" }

// Rollout is the key of a service's rollout.
func (k Keys) Rollout(service string) string { return k.Rollouts() + service }

// RolloutBell is the key that changes whenever something about a service's rollout may have: owners set it with each status of one of
// its revisions, operators with each request. A hint without authority.
func (k Keys) RolloutBell(service string) string { return k.Rollout(service) + "/bell" }

// rolloutLocks is the part of the locks that belongs to rollouts.
const rolloutLocks = "rollout/"

// RolloutLock is the lock of the farm that carries a service's rollout out.
func (k Keys) RolloutLock(service string) string { return k.Locks() + rolloutLocks + service }

// lockedRC returns the controller that a key below Locks is the lock of; ok is false for the lock of a rollout.
func (k Keys) lockedRC(key string) (rcID string, ok bool) {
	rcID = strings.TrimPrefix(key, k.Locks())
	return rcID, !strings.Contains(rcID, "/")
}

// RunnerOf returns the farm that carries a service's rollout out, "" when none does.
func (s *Store) RunnerOf(ctx context.Context, service string) (farmID string, err error) {
	found, err := s.c.GetMany(ctx, []string{s.keys.RolloutLock(service)}, consul.Default)
	if err != nil {
		return "", err
	}
	return holderOf(found[s.keys.RolloutLock(service)]), nil
}
