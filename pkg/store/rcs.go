package store

import (
	"context"
	"errors"
	"fmt"
	"path"

	"github.com/cenkalti/backoff/v5"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
)

// RC reads one controller. The first read after a claim is consistent.
func (s *Store) RC(ctx context.Context, id string, consistent bool) (Rec[rc.RC], error) {
	return get[rc.RC](ctx, s, s.keys.RCs.Key(id), levelOf(consistent))
}

// RCIDByName returns the id of the controller with a name, or ErrNotFound.
func (s *Store) RCIDByName(ctx context.Context, name string) (string, error) {
	pair, err := s.c.Get(ctx, s.keys.Names.Key(name), consul.Consistent)
	return string(pair.Value), err
}

// ListRCs reads every controller, and one *CorruptError for each that cannot be read.
func (s *Store) ListRCs(ctx context.Context) ([]Rec[rc.RC], []error, error) {
	return list[rc.RC](ctx, s, s.keys.RCs.Key(), consul.Default)
}

// ListRCIDs returns the ids of all controllers, readable or not.
func (s *Store) ListRCIDs(ctx context.Context) ([]string, error) { return s.ids(ctx, s.keys.RCs.Key()) }

// ListPlacedRCIDs returns the ids of all controllers that have placements, with or without a record of their own.
func (s *Store) ListPlacedRCIDs(ctx context.Context) ([]string, error) {
	keys, err := s.c.Children(ctx, s.keys.Pods.Key())
	return idsOf(keys, s.keys.Pods.Key()), err
}

// ListReservedNodes returns the names of all nodes that have a reservation, readable or not.
func (s *Store) ListReservedNodes(ctx context.Context) ([]string, error) {
	return s.ids(ctx, s.keys.Reservations.Key())
}

func (s *Store) ids(ctx context.Context, prefix string) ([]string, error) {
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

// RCChange is one operator act on one controller.
type RCChange struct {
	RC        rc.RC  // as it shall be; its Generation must be one more than before
	Index     uint64 // of the record that it was computed from; zero creates the controller and its name
	Manifest  []byte // canonical JSON to store under RC.ManifestDigest; nil when the manifest does not change
	Signature string // of Manifest; empty: the one that is stored with it stays
	Audit     Audit
}

// ChangeRC writes a change with its manifest, bell and audit record, and for a new one the key of its drops, in one transaction. It returns ErrConflict when the
// record, or on creation the name, was changed by somebody else. An unknown outcome is found out before it returns: the
// audit record tells whether the change landed, and the index check keeps a second landing out.
func (s *Store) ChangeRC(ctx context.Context, c RCChange) error {
	ops := append(s.rcOps(&c.RC, c.Index), s.audit(c.Audit))
	what := "rc " + c.RC.Name
	if c.Manifest == nil {
		return s.commitDefinitely(ctx, what, c.Audit.ID, ops)
	}
	return s.withManifest(ctx, what, c.Audit.ID, DeployManifest{Digest: c.RC.ManifestDigest, Canonical: c.Manifest, Signature: c.Signature}, ops)
}

// rcOps lists what makes (index zero) or changes a controller.
func (s *Store) rcOps(r *rc.RC, index uint64) []consul.Op {
	ops := []consul.Op{consul.CAS(s.keys.RCs.Key(r.ID), encode(r), index), s.ring(r.ID)}
	if index == 0 {
		ops = append(ops, consul.CAS(s.keys.Names.Key(r.Name), []byte(r.ID), 0), consul.Set(s.keys.Drops.Key(r.ID), []byte(NewID())))
		if r.Service != nil {
			ops = append(ops, consul.Set(s.keys.Stops.Key(r.ID), []byte(NewID())))
		}
	}
	return ops
}

// commitDefinitely commits a change that carries an audit record until its outcome is known. The change must hold a condition that
// its own landing breaks, so that it cannot land twice. It returns ErrConflict when the change was refused, and ErrUnknown when
// the context ended before the outcome was known. Any other error says that nothing was written.
func (s *Store) commitDefinitely(ctx context.Context, what, auditID string, ops []consul.Op) error {
	open := false // some try may have landed, or may yet
	_, err := backoff.Retry(ctx, func() (struct{}, error) {
		_, err := s.c.Commit(ctx, ops)
		open = open || errors.Is(err, ErrUnknown) && !errors.Is(err, consul.ErrUnsent)
		if err == nil || !errors.Is(err, ErrRefused) && !errors.Is(err, ErrUnknown) || Denied(err) {
			return struct{}{}, permanent(err)
		}
		landed, readErr := s.exists(ctx, s.keys.Audits.Key(auditID))
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

func (s *Store) exists(ctx context.Context, key string) (bool, error) {
	_, err := s.c.Get(ctx, key, consul.Consistent)
	if errors.Is(err, ErrNotFound) {
		return false, nil
	}
	return err == nil, err
}

// Placements reads the placements of one controller.
func (s *Store) Placements(ctx context.Context, rcID string, consistent bool) ([]Rec[pod.Placement], []error, error) {
	return list[pod.Placement](ctx, s, s.keys.Pods.Below(rcID), levelOf(consistent))
}

// AllPlacements reads the placements of all controllers.
func (s *Store) AllPlacements(ctx context.Context) ([]Rec[pod.Placement], []error, error) {
	return list[pod.Placement](ctx, s, s.keys.Pods.Key(), consul.Default)
}

// AllRealities reads what all nodes did.
func (s *Store) AllRealities(ctx context.Context) ([]Rec[pod.Reality], []error, error) {
	return list[pod.Reality](ctx, s, s.keys.Realities.Key(), consul.Default)
}

// ListNodes reads all node records. A record's Session is empty while no preparer holds it.
func (s *Store) ListNodes(ctx context.Context) ([]Rec[node.Node], []error, error) {
	return list[node.Node](ctx, s, s.keys.Nodes.Key(), consul.Default)
}

// ListNodeOps reads the operators' side of all nodes.
func (s *Store) ListNodeOps(ctx context.Context) ([]Rec[node.Ops], []error, error) {
	return list[node.Ops](ctx, s, s.keys.NodeOps.Key(), consul.Default)
}

// ListStatus reads the statuses of all controllers.
func (s *Store) ListStatus(ctx context.Context) ([]Rec[rc.Status], []error, error) {
	return list[rc.Status](ctx, s, s.keys.Statuses.Key(), consul.Default)
}

// Status reads the status of one controller, or ErrNotFound.
func (s *Store) Status(ctx context.Context, rcID string) (Rec[rc.Status], error) {
	return get[rc.Status](ctx, s, s.keys.Statuses.Key(rcID), consul.Default)
}
