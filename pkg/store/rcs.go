package store

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/rc"
)

// RCIDByName returns the id of the controller with a name, or ErrNotFound.
func (v *Views) RCIDByName(ctx context.Context, name string) (string, error) {
	pair, err := v.c.Get(ctx, v.keys.Names.Key(name), consul.Consistent)
	return string(pair.Value), err
}

// ListRCNames reads the names of all controllers, by id.
func (v *Views) ListRCNames(ctx context.Context) (map[string]string, error) {
	pairs, err := v.c.List(ctx, v.keys.Names.Key(), consul.Default)
	names := make(map[string]string, len(pairs))
	for _, p := range pairs {
		names[string(p.Value)] = path.Base(p.Key)
	}
	return names, err
}

// ListPlacedRCIDs returns the controllers that have placements, with or without a record.
func (v *Views) ListPlacedRCIDs(ctx context.Context) ([]string, error) {
	keys, err := v.c.Children(ctx, v.keys.Pods.Key())
	return idsOf(keys, v.keys.Pods.Key()), err
}

func (s *db) ids(ctx context.Context, prefix string) ([]string, error) {
	keys, err := s.c.Keys(ctx, prefix)
	return idsOf(keys, prefix), err
}

func idsOf(keys []string, prefix string) []string {
	ids := make([]string, 0, len(keys))
	for _, key := range keys {
		if key != prefix {
			ids = append(ids, path.Base(key))
		}
	}
	return ids
}

// Operator has operators' writes. All but EnsureSchema also write an audit record.
type Operator struct{ *db }

// RCChange is one operator act on one controller.
type RCChange struct {
	RC        rc.RC            // the new controller; its Generation must be one more than before
	Index     uint64           // of the record from which RC was computed; zero creates the controller and its name
	Manifests []DeployManifest // to store; none if no manifest changes
	Audit     Audit
}

// ChangeRC writes a change with its manifests and bell in one transaction. It returns ErrConflict if the record has
// changed, if the name of a new controller is taken, or if its service has a rollout. It tries again until the outcome
// is known. The index keeps the change from landing twice.
func (o *Operator) ChangeRC(ctx context.Context, c RCChange) error {
	var free []consul.Op
	if c.RC.Service != nil { // a rollout that has begun meanwhile refuses the change
		free = append(free, consul.CheckMissing(o.keys.Rollouts.Key(c.RC.ID)))
	}
	return o.change(ctx, "rc "+c.RC.Name, free, c.Manifests, []Rec[rc.RC]{{Value: c.RC, Index: c.Index}}, c.Audit)
}

// rcsOps makes (index zero) or changes controllers. A new controller has the present epoch. A node that has been silent
// since before that epoch cannot run its pods (ADR 23).
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
			// After the store went back in time, a revision's id is perhaps not new: the restore may have undone a
			// revision with this id. So MadeIn stays empty.
			if !schema.Value.WentBack || rc.UnitOf(r.ID) == r.ID {
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

// casRC leaves out MadeIn if the gate forbids it, because no operator has asked for this field.
func (s *db) casRC(ctx context.Context, r rc.RC, index uint64) consul.Op {
	if s.guard.leavesOut(ctx, &rc.RC{MadeIn: r.MadeIn}) {
		r.MadeIn = ""
	}
	return cas(s.keys.RCs.Key(r.ID), &r, index)
}

// change commits ops with manifests and controllers. It tries again if another program stores one of the manifests.
func (s *db) change(ctx context.Context, what string, ops []consul.Op, manifests []DeployManifest, rcs []Rec[rc.RC],
	a Audit,
) error {
	made, err := s.rcsOps(ctx, rcs)
	if err != nil {
		return err
	}
	return retry(ctx, func() (bool, error) {
		store := s.storeManifests
		if len(ops)+len(made)+2*len(manifests)+1 > consul.MaxTxnOps { // with the audit record
			store = s.storeManifestsBefore
		}
		stored, keys, err := store(ctx, manifests)
		if err != nil {
			return again(err), err
		}
		err = s.commitDefinitely(ctx, what, a, slices.Concat(ops, stored, made)...)
		return errors.Is(err, ErrConflict) && consul.RefusedOnly(err, keys...), err
	})
}

// commitDefinitely commits a change until the outcome is known. The change must have a condition that is false after it
// has landed, because otherwise it could land twice. It returns ErrConflict for a refusal, and ErrUnknown if the
// context ended before the outcome was known. After any other error nothing was written.
func (s *db) commitDefinitely(ctx context.Context, what string, a Audit, ops ...consul.Op) error {
	ops = append(ops, s.audit(a))
	open := false // an attempt may have landed, or may still land
	err := retry(ctx, func() (bool, error) {
		err := s.send(ctx, ops...)
		open = open || errors.Is(err, ErrUnknown) && !errors.Is(err, consul.ErrUnsent)
		if err == nil || !errors.Is(err, ErrRefused) && !errors.Is(err, ErrUnknown) || Denied(err) {
			return false, err
		}
		landed, readErr := s.exists(ctx, s.keys.Audits.Key(a.ID))
		switch {
		case readErr == nil && landed:
			return false, nil
		case errors.Is(err, ErrRefused) && readErr != nil:
			return false, readErr
		case errors.Is(err, ErrRefused):
			open = false
			return false, fmt.Errorf("%s: %w: %w", what, ErrConflict, err)
		default:
			return true, err
		}
	})
	if err != nil && open {
		return fmt.Errorf("change of %s: %w: %w", what, ErrUnknown, err)
	}
	return err
}

// Denied reports whether the token lacks a permission. Another try does not help then.
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
