package farm

import (
	"context"
	"errors"
	"fmt"

	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/reconcile"
	"github.com/rcfarm/rcfarm/pkg/rollout"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// RolloutReads are how an owner learns of the rollout in charge of its controller (ADR 16).
type RolloutReads interface {
	RolloutInCharge(ctx context.Context, service string, consistent bool) (store.InCharge, error)
}

// readRollout reads the rollout in charge, where there is one.
func (c *ReplicationController) readRollout(ctx context.Context, v *view) (err error) {
	service := v.head.RC.Value.Rollout()
	if service == "" || c.phantom {
		return nil
	}
	if v.early != nil && v.early.Service == service {
		v.rollout = v.early.Rollout
	} else if v.rollout, err = c.farm.cfg.Store.RolloutInCharge(ctx, service, c.consistent); err != nil {
		return err
	}
	if v.rollout.Term == v.head.RC.Value.Mutator {
		v.snapshot.RolloutRests = rollout.State(v.rollout.State).Rests()
	}
	return nil
}

// forsaken reports whether the rollout that a record names is not in charge of it any more. One that cannot be read may be.
func forsaken(r *rc.RC, now store.InCharge) bool {
	return r.Mutator != "" && (now.Index == 0 || now.Term != "" && now.Term != r.Mutator)
}

// releaseMutator takes the controller away from a rollout that is gone, or that another one has replaced, unless the nodes have still to
// say what they run. That it is so is read again from the leader, and a condition of the transaction.
func (c *ReplicationController) releaseMutator(ctx context.Context, v *view) (released bool, err error) {
	r := &v.head.RC.Value
	if c.phantom || v.snapshot.Hold != "" || !forsaken(r, v.rollout) {
		return false, nil
	}
	service := r.Rollout()
	now, err := c.farm.cfg.Store.RolloutInCharge(ctx, service, true)
	if err != nil || !forsaken(r, now) {
		return false, err
	}
	why := "there is none any more"
	if now.Index != 0 {
		why = now.Term + " is in charge"
	}
	a := store.NewAudit(c.farm.cfg.ID, "release", c.ID, []string{fmt.Sprintf("mutator: %s -> none: %s", r.Mutator, why)})
	if err := c.farm.cfg.Store.ReleaseMutator(ctx, c.fence, v.head.RC, service, now, v.schema.Index, a); err != nil {
		return false, c.afterFailure(ctx, err)
	}
	c.log.WithField("rollout", r.Mutator).Warn("took a controller away from a rollout that is gone")
	return true, nil
}

// maxOthers is how many manifests besides the controller's own a pass looks at.
const maxOthers = 16

// otherManifests takes the manifests that pods keep from the cache, and returns the digests of those that must be read.
func (c *ReplicationController) otherManifests(s *reconcile.Snapshot) (unknown []string) {
	s.Manifests = map[string]*manifest.Manifest{}
	for _, digest := range s.OtherDigests(maxOthers) {
		if m := c.farm.manifests.get(digest); m != nil {
			s.Manifests[digest] = m
		} else {
			unknown = append(unknown, digest)
		}
	}
	return unknown
}

// useOthers takes in manifests that were read. Pods of those that cannot be stay where they are.
func (c *ReplicationController) useOthers(s *reconcile.Snapshot, d store.Details) error {
	for digest, m := range d.Others {
		s.Manifests[digest] = m
		c.farm.manifests.put(digest, m)
	}
	var corrupt *store.CorruptError
	for digest, err := range d.OthersErrs {
		if !errors.Is(err, store.ErrNotFound) && !errors.As(err, &corrupt) {
			return err
		}
		s.Errors = append(s.Errors, fmt.Sprintf("manifest %.8s, which pods have: %v", digest, err))
	}
	return nil
}
