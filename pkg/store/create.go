package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/rollout"
)

// Deploy is the transaction that begins a rollout, or that replaces one under way.
type Deploy struct {
	Rollout Rec[rollout.Record] // index zero: there must be none; else that of the one that is replaced
	// RCs are the controllers that are made (index zero) or changed, each as it shall be.
	RCs []Rec[rc.RC]
	// Unchanged are the indices of other controllers that the plan relies on, by id.
	Unchanged map[string]uint64
	// SchemaIndex is that of the schema whose nonce the rollout bears.
	SchemaIndex uint64
	Manifests   []DeployManifest
	// Besides writes what else belongs to it, each by cas: the service's document and its history.
	Besides []consul.Op
	Audit   Audit
}

// DeployManifest is a manifest to store.
type DeployManifest struct {
	Digest    string
	Canonical []byte // JSON
	Signature string // empty: the stored one stays
}

// RunningError says that a farm holds the lock of a service's rollout, and no rollout can begin meanwhile.
type RunningError struct{ Service, Farm string }

// Error names the farm.
func (e *RunningError) Error() string {
	return fmt.Sprintf("farm %s holds the lock of a rollout of %s", e.Farm, e.Service)
}

// Deploy begins a rollout in one transaction: its record, controllers with what new ones have besides, bells, manifests, and all that
// is given besides. It returns ErrConflict when anything is not as it was read, with the keys in the text; *RunningError when a farm
// holds the lock of a rollout of the service and keeps it for longer than one that finds no rollout does; ErrTooLarge; ErrUnknown when
// the context ended before the outcome was known. A landing is told by its audit record.
func (s *Store) Deploy(ctx context.Context, d Deploy) error {
	service := d.Rollout.Value.Service
	free, err := s.freeOfRunners(ctx, service, d.Rollout.Index != 0)
	if err != nil {
		return err
	}
	ops := append(free, sameRecord(s.keys.Schema(), d.SchemaIndex))
	ops = append(ops, consul.CAS(s.keys.Rollout(service), encode(d.Rollout.Value), d.Rollout.Index), s.ringRollout(service))
	for id, index := range d.Unchanged {
		ops = append(ops, sameRecord(s.keys.RC(id), index))
	}
	return s.deploy(ctx, "deployment of "+service, append(ops, d.Besides...), d.Manifests, d.RCs, d.Audit)
}

// deploy commits operations together with manifests and with controllers that are made or changed.
func (s *Store) deploy(ctx context.Context, what string, ops []consul.Op, manifests []DeployManifest, rcs []Rec[rc.RC], a Audit) error {
	stored := map[string]bool{}
	for _, m := range manifests {
		if stored[m.Digest] {
			continue // one transaction writes a key once
		}
		stored[m.Digest] = true
		some, err := s.storeManifest(ctx, m)
		if err != nil {
			return err
		}
		ops = append(ops, some...)
	}
	for i := range rcs {
		ops = append(ops, s.rcOps(&rcs[i].Value, rcs[i].Index)...)
	}
	return s.settled(ctx, what, a.ID, append(ops, s.audit(a)))
}

// lockPatience is how long a deployment waits for a farm that holds the lock of a rollout that has ended: it has seen an old record,
// and gives up what it has taken as soon as it has read the present one.
const lockPatience = 5 * time.Second

// freeOfRunners returns the condition that nobody carries out a rollout of a service. The runner of one that is replaced keeps its
// lock: it finds the new record there.
func (s *Store) freeOfRunners(ctx context.Context, service string, replaces bool) ([]consul.Op, error) {
	if replaces {
		return nil, nil
	}
	key := s.keys.RolloutLock(service)
	for deadline := time.Now().Add(lockPatience); ; {
		lock, err := s.c.Get(ctx, key, consul.Consistent)
		switch {
		case errors.Is(err, ErrNotFound):
			return []consul.Op{consul.CheckMissing(key)}, nil
		case err != nil:
			return nil, err
		case lock.Session == "":
			return []consul.Op{consul.CheckIndex(key, lock.ModifyIndex)}, nil
		case time.Now().After(deadline):
			return nil, &RunningError{Service: service, Farm: holderOf(lock)}
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-time.After(lockPatience / 50):
		}
	}
}
