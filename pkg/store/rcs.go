package store

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"

	"github.com/cenkalti/backoff/v5"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/rc"
)

// RCIDByName returns the id of the controller with a name, or ErrNotFound.
func (s *Views) RCIDByName(ctx context.Context, name string) (string, error) {
	pair, err := s.c.Get(ctx, s.keys.Names.Key(name), consul.Consistent)
	return string(pair.Value), err
}

// ListRCNames reads the names of all controllers, by their ids.
func (s *Views) ListRCNames(ctx context.Context) (map[string]string, error) {
	pairs, err := s.c.List(ctx, s.keys.Names.Key(), consul.Default)
	names := make(map[string]string, len(pairs))
	for _, p := range pairs {
		names[string(p.Value)] = path.Base(p.Key)
	}
	return names, err
}

// ListPlacedRCIDs returns the ids of all controllers that have placements, with or without a record of their own.
func (s *Views) ListPlacedRCIDs(ctx context.Context) ([]string, error) {
	keys, err := s.c.Children(ctx, s.keys.Pods.Key())
	return idsOf(keys, s.keys.Pods.Key()), err
}

func (s *db) ids(ctx context.Context, prefix string) ([]string, error) {
	keys, err := s.c.Keys(ctx, prefix)
	return idsOf(keys, prefix), err
}

// idsOf returns the last parts of keys, without the marker of the prefix that they are below.
func idsOf(keys []string, prefix string) []string {
	ids := make([]string, 0, len(keys))
	for _, key := range keys {
		if key != prefix {
			ids = append(ids, path.Base(key))
		}
	}
	return ids
}

// Operator are the acts of operators, each with its audit record.
type Operator struct{ *db }

// RCChange is one operator act on one controller.
type RCChange struct {
	RC        rc.RC            // as it shall be; its Generation must be one more than before
	Index     uint64           // of the record that it was computed from; zero creates the controller and its name
	Manifests []DeployManifest // to store; none when no manifest changes
	Audit     Audit
}

// ChangeRC writes a change with its manifests, bell and audit record, and for a new one the key of its drops, in one transaction. It returns ErrConflict when the
// record, or on creation the name, was changed by somebody else, or where the service of the controller has a rollout. An unknown outcome is found out before it returns: the
// audit record tells whether the change landed, and the index check keeps a second landing out.
func (s *Operator) ChangeRC(ctx context.Context, c RCChange) error {
	var free []consul.Op
	if c.RC.Service != nil { // no rollout has begun meanwhile
		free = append(free, consul.CheckMissing(s.keys.Rollouts.Key(c.RC.ID)))
	}
	return s.change(ctx, "rc "+c.RC.Name, free, c.Manifests, []Rec[rc.RC]{{Value: c.RC, Index: c.Index}}, c.Audit)
}

// rcsOps lists what makes (index zero) or changes controllers. One that is made says in which epoch: no node that has been silent since that began
// can run its pods (ADR 23).
func (s *db) rcsOps(ctx context.Context, rcs []Rec[rc.RC]) ([]consul.Op, error) {
	var ops []consul.Op
	var schema Rec[Schema]
	if slices.ContainsFunc(rcs, func(r Rec[rc.RC]) bool { return r.Index == 0 }) {
		var err error
		schema, err = s.Schema.Get(ctx, consul.Consistent)
		if err != nil && !errors.Is(err, ErrNotFound) && !IsCorrupt(err) {
			return nil, fmt.Errorf("read schema: %w", err)
		}
		if schema.Value.Epoch != "" {
			ops = append(ops, consul.CheckIndex(s.keys.Schema.Key(), schema.Index))
		}
	}
	var all, made []string
	for i := range rcs {
		r := rcs[i].Value
		if all = append(all, r.ID); rcs[i].Index == 0 {
			if !schema.Value.WentBack || rc.UnitOf(r.ID) == r.ID { // else a revision that the restore has undone may have had this id
				r.MadeIn = schema.Value.Epoch
			}
			made = append(made, r.ID)
			ops = append(ops, consul.CAS(s.keys.Names.Key(r.Name), []byte(r.ID), 0))
		}
		ops = append(ops, s.casRC(ctx, r, rcs[i].Index))
	}
	for _, unit := range rc.UnitsOf(made) {
		ops = append(ops, consul.Set(s.keys.Drops.Key(unit), []byte(NewID())))
	}
	return append(ops, s.rings(all...)...), nil
}

// casRC writes a controller if it is as it was read. The epoch that it was made in is left out where the gate does not allow it: nobody has asked
// for that.
func (s *db) casRC(ctx context.Context, r rc.RC, index uint64) consul.Op {
	if s.guard.leavesOut(ctx, &rc.RC{MadeIn: r.MadeIn}) {
		r.MadeIn = ""
	}
	return cas(s.keys.RCs.Key(r.ID), &r, index)
}

// change commits operations together with manifests, with controllers that are made or changed, and with the audit record of it all. Somebody else may
// store a manifest meanwhile, for another controller and with another signature: then it is tried again.
func (s *db) change(ctx context.Context, what string, ops []consul.Op, manifests []DeployManifest, rcs []Rec[rc.RC], a Audit) error {
	made, err := s.rcsOps(ctx, rcs)
	if err != nil {
		return err
	}
	_, err = backoff.Retry(ctx, func() (struct{}, error) {
		store := s.storeManifests
		if len(ops)+len(made)+2*len(manifests)+1 > consul.MaxTxnOps { // with the audit record
			store = s.storeManifestsBefore
		}
		stored, keys, err := store(ctx, manifests)
		if again(err) {
			return struct{}{}, err
		}
		if err != nil {
			return struct{}{}, permanent(err)
		}
		err = s.commitDefinitely(ctx, what, a, slices.Concat(ops, stored, made)...)
		if errors.Is(err, ErrConflict) && consul.RefusedOnly(err, keys...) {
			return struct{}{}, err
		}
		return struct{}{}, permanent(err)
	}, tries()...)
	return err
}

// commitDefinitely commits a change with its audit record until its outcome is known. The change must hold a condition that
// its own landing breaks, so that it cannot land twice. It returns ErrConflict when the change was refused, and ErrUnknown when
// the context ended before the outcome was known. Any other error says that nothing was written.
func (s *db) commitDefinitely(ctx context.Context, what string, a Audit, ops ...consul.Op) error {
	ops = append(ops, s.audit(a))
	open := false // some try may have landed, or may yet
	_, err := backoff.Retry(ctx, func() (struct{}, error) {
		_, err := s.c.Commit(ctx, ops)
		open = open || errors.Is(err, ErrUnknown) && !errors.Is(err, consul.ErrUnsent)
		if err == nil || !errors.Is(err, ErrRefused) && !errors.Is(err, ErrUnknown) || Denied(err) {
			return struct{}{}, permanent(err)
		}
		landed, readErr := s.exists(ctx, s.keys.Audits.Key(a.ID))
		switch {
		case readErr == nil && landed:
			return struct{}{}, nil
		case errors.Is(err, ErrRefused) && readErr != nil:
			return struct{}{}, permanent(readErr)
		case errors.Is(err, ErrRefused):
			open = false
			return struct{}{}, permanent(fmt.Errorf("%s: %w: %w", what, ErrConflict, err))
		default:
			return struct{}{}, err
		}
	}, tries()...)
	if err != nil && open {
		return fmt.Errorf("change of %s: %w: %w", what, ErrUnknown, err)
	}
	return err
}

// Denied reports whether a refusal is about permission, which no other try mends.
func Denied(err error) bool {
	refused, is := errors.AsType[*consul.RefusedError](err)
	return is && refused.Denied()
}

func (s *db) exists(ctx context.Context, key string) (bool, error) {
	_, err := s.c.Get(ctx, key, consul.Consistent)
	if errors.Is(err, ErrNotFound) {
		return false, nil
	}
	return err == nil, err
}
