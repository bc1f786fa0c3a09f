package store

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path"
	"strings"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/rc"
)

// ListReservations reads all reservations, by node.
func (v *Views) ListReservations(ctx context.Context) (map[string]node.Reservation, []error, error) {
	recs, corrupt, err := v.Reservations.List(ctx, Default)
	taken := make(map[string]node.Reservation, len(recs))
	for i := range recs {
		taken[path.Base(recs[i].Key)] = recs[i].Value
	}
	return taken, corrupt, err
}

// Views has the reads that are more than a Get or a List of one kind.
type Views struct{ *db }

// UnnamedError means that a controller's name is not reserved, for example after a partial restore. If another
// controller got this name, every pod would run twice.
type UnnamedError struct{ RCID, Name, Key string }

// Error has the command that writes the key back.
func (u *UnnamedError) Error() string {
	return fmt.Sprintf("rc %s bears the name %s, but the key %s is missing; write it back: consul kv put %s %s",
		u.RCID, u.Name, u.Key, u.Key, u.RCID)
}

// FindRC reads a controller by name. It returns ErrNotFound, *CorruptError or *UnnamedError.
func (v *Views) FindRC(ctx context.Context, name string) (Rec[rc.RC], error) {
	id, err := v.RCIDByName(ctx, name)
	if errors.Is(err, ErrNotFound) {
		if err := v.checkUnnamed(ctx, name); err != nil {
			return Rec[rc.RC]{}, err
		}
		return Rec[rc.RC]{}, fmt.Errorf("rc %s: %w", name, ErrNotFound)
	}
	if err != nil {
		return Rec[rc.RC]{}, err
	}
	rec, err := v.RCs.Get(ctx, Consistent, id)
	if errors.Is(err, ErrNotFound) {
		return rec, &CorruptError{
			Key: v.keys.Names.Key(name),
			Err: fmt.Errorf("it names the controller %s, which has no record", id),
		}
	}
	return rec, err
}

// checkUnnamed looks for a controller whose name is not reserved. Names and records are made and removed together, so
// it reads the records only if their numbers differ.
func (v *Views) checkUnnamed(ctx context.Context, name string) error {
	names, err := v.ids(ctx, v.keys.Names.Key())
	if err != nil {
		return err
	}
	ids, err := v.RCs.IDs(ctx)
	if err != nil || len(ids) == len(names) {
		return err
	}
	recs, _, err := v.RCs.List(ctx, Default)
	if err != nil {
		return err
	}
	for i := range recs {
		if recs[i].Value.Name != name {
			continue
		}
		// Both may have been created after the name was read.
		if named, err := v.exists(ctx, v.keys.Names.Key(name)); named || err != nil {
			return err
		}
		return &UnnamedError{RCID: recs[i].Value.ID, Name: name, Key: v.keys.Names.Key(name)}
	}
	return nil
}

// LockOwners returns the farm that owns each unit; "" if the lock's value cannot be read.
func (v *Views) LockOwners(ctx context.Context) (map[string]string, error) {
	pairs, err := v.c.List(ctx, v.keys.Locks.Key(), consul.Default)
	if err != nil {
		return nil, err
	}
	owners := map[string]string{}
	for _, p := range pairs {
		if p.Session != "" {
			owners[strings.TrimPrefix(p.Key, v.keys.Locks.Key())] = ownerOf(p)
		}
	}
	return owners, nil
}

// Operated has the records that an operator's change of a node changes.
type Operated struct {
	Ops         Rec[node.Ops]
	Reservation Rec[node.Reservation]
}

// Operated reads a node's settings and reservation consistently. It returns *CorruptError, or ErrNotFound if neither a
// node nor an operator has written about the node.
func (v *Views) Operated(ctx context.Context, name string) (Operated, error) {
	var o Operated
	_, err := v.Nodes.Get(ctx, Consistent, name)
	known := err == nil || IsCorrupt(err)
	if !known && !errors.Is(err, ErrNotFound) {
		return o, fmt.Errorf("read node %s: %w", name, err)
	}
	o.Ops, err = v.NodeOps.Get(ctx, Consistent, name)
	switch {
	case errors.Is(err, ErrNotFound) && !known:
		return o, err
	case errors.Is(err, ErrNotFound):
		o.Ops.Value.Name = name
	case err != nil:
		return o, fmt.Errorf("read what operators said about node %s: %w", name, err)
	}
	found, bad, err := v.ReservationsOf(ctx, []string{name})
	if err = errors.Join(err, bad[name]); err != nil {
		return o, fmt.Errorf("read what is reserved on node %s: %w", name, err)
	}
	o.Reservation = found[name]
	return o, nil
}

// ReservationAfter returns the reservation to write after a change of the settings; nil: no change. A reservation
// without a label version allows all labels. So a change of labels always writes a version.
func (o *Operated) ReservationAfter(ops node.Ops) *Rec[node.Reservation] {
	next := o.Reservation
	next.Value = next.Value.WithOps(ops)
	relabelled := !maps.Equal(o.Ops.Value.Labels, ops.Labels)
	if !relabelled && o.Reservation.Value.Agrees(next.Value.Ineligible, next.Value.Labels) {
		return nil
	}
	return &next
}

// NodeChange is one operator act on one node.
type NodeChange struct {
	Ops   node.Ops // the new settings
	Index uint64   // of the settings that were read; zero: there were none
	// Reservation has the index of its read; nil: it does not change. A drain or a change of labels changes it in the
	// same transaction as the settings; see node.Reservation.WithOps.
	Reservation *Rec[node.Reservation]
	Audit       Audit
}

// ChangeNode writes a change of a node with its audit record. It returns ErrConflict if the settings or the reservation
// have changed, which is likely on a busy node. The caller then reads both again.
func (o *Operator) ChangeNode(ctx context.Context, c NodeChange) error {
	ops := []consul.Op{cas(o.keys.NodeOps.Key(c.Ops.Name), c.Ops, c.Index)}
	if c.Reservation != nil {
		ops = append(ops, cas(o.keys.Reservations.Key(c.Ops.Name), c.Reservation.Value, c.Reservation.Index))
	}
	return o.commitDefinitely(ctx, "node "+c.Ops.Name, c.Audit, ops...)
}

// ResetBreaker lets farms stop pods again. index is of the caller's read, also of an unreadable record. ErrConflict:
// the record has changed.
func (o *Operator) ResetBreaker(ctx context.Context, index uint64, a Audit) error {
	return o.commitDefinitely(ctx, "breaker", a, cas(o.keys.Breaker.Key(), Breaker{By: a.Who, Since: a.At}, index))
}
