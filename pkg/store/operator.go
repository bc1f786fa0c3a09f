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

// ListReservations reads what is taken on all nodes, by node name.
func (s *Views) ListReservations(ctx context.Context) (map[string]node.Reservation, []error, error) {
	pairs, err := s.c.List(ctx, s.keys.Reservations.Key(), consul.Default)
	if err != nil {
		return nil, nil, err
	}
	taken := make(map[string]node.Reservation, len(pairs))
	var corrupt []error
	for _, p := range pairs {
		rec, err := s.Reservations.decode(p)
		if err != nil {
			corrupt = append(corrupt, err)
			continue
		}
		taken[path.Base(p.Key)] = rec.Value
	}
	return taken, corrupt, nil
}

// Views are reads that take more than one record.
type Views struct{ *db }

// UnnamedError says that a controller bears a name in its record while the key that reserves the name is missing, as
// after a partial restore. Creating another controller of that name would run everything twice.
type UnnamedError struct{ RCID, Name, Key string }

// Error says how to mend it.
func (e *UnnamedError) Error() string {
	return fmt.Sprintf("rc %s bears the name %s, but the key %s is missing; write it back: consul kv put %s %s",
		e.RCID, e.Name, e.Key, e.Key, e.RCID)
}

// FindRC reads, consistently, the controller with a name. It returns ErrNotFound when there is none, *UnnamedError when
// there is one that the name does not lead to, or *CorruptError.
func (s *Views) FindRC(ctx context.Context, name string) (Rec[rc.RC], error) {
	id, err := s.RCIDByName(ctx, name)
	if errors.Is(err, ErrNotFound) {
		if err := s.checkUnnamed(ctx, name); err != nil {
			return Rec[rc.RC]{}, err
		}
		return Rec[rc.RC]{}, fmt.Errorf("rc %s: %w", name, ErrNotFound)
	}
	if err != nil {
		return Rec[rc.RC]{}, err
	}
	rec, err := s.RCs.Get(ctx, Consistent, id)
	if errors.Is(err, ErrNotFound) {
		return rec, &CorruptError{Key: s.keys.Names.Key(name), Err: fmt.Errorf("it names the controller %s, which has no record", id)}
	}
	return rec, err
}

// checkUnnamed looks for a controller whose name is not reserved. Names and records come and go together, so the
// records are read only when the counts differ.
func (s *Views) checkUnnamed(ctx context.Context, name string) error {
	names, err := s.ids(ctx, s.keys.Names.Key())
	if err != nil {
		return err
	}
	ids, err := s.RCs.IDs(ctx)
	if err != nil || len(ids) == len(names) {
		return err
	}
	recs, _, err := s.RCs.List(ctx, Default)
	if err != nil {
		return err
	}
	for i := range recs {
		if recs[i].Value.Name != name {
			continue
		}
		// It may have been created since the name was looked up.
		if named, err := s.exists(ctx, s.keys.Names.Key(name)); named || err != nil {
			return err
		}
		return &UnnamedError{RCID: recs[i].Value.ID, Name: name, Key: s.keys.Names.Key(name)}
	}
	return nil
}

// LockOwners reads which farm owns each unit that has an owner: farm ids by unit, see rc.UnitOf. A lock whose value cannot
// be read is owned by "".
func (s *Views) LockOwners(ctx context.Context) (map[string]string, error) {
	pairs, err := s.c.List(ctx, s.keys.Locks.Key(), consul.Default)
	if err != nil {
		return nil, err
	}
	owners := map[string]string{}
	for _, p := range pairs {
		if p.Session != "" {
			owners[strings.TrimPrefix(p.Key, s.keys.Locks.Key())] = ownerOf(p)
		}
	}
	return owners, nil
}

// Operated is one node as an operator's act finds it: what operators said about it, and what is reserved there.
type Operated struct {
	Ops         Rec[node.Ops]
	Reservation Rec[node.Reservation]
}

// Operated reads, consistently, what an act on a node depends on. It returns ErrNotFound where there is neither a
// record of the node nor of what operators said about it, or *CorruptError.
func (s *Views) Operated(ctx context.Context, name string) (Operated, error) {
	var o Operated
	_, err := s.Nodes.Get(ctx, Consistent, name)
	known := err == nil || IsCorrupt(err)
	if !known && !errors.Is(err, ErrNotFound) {
		return o, fmt.Errorf("read node %s: %w", name, err)
	}
	o.Ops, err = s.NodeOps.Get(ctx, Consistent, name)
	switch {
	case errors.Is(err, ErrNotFound) && !known:
		return o, err
	case errors.Is(err, ErrNotFound):
		o.Ops.Value.Name = name
	case err != nil:
		return o, fmt.Errorf("read what operators said about node %s: %w", name, err)
	}
	found, bad, err := s.ReservationsOf(ctx, []string{name})
	if err = errors.Join(err, bad[name]); err != nil {
		return o, fmt.Errorf("read what is reserved on node %s: %w", name, err)
	}
	o.Reservation = found[name]
	return o, nil
}

// ReservationAfter returns what is to be written about the node's reservation with what operators say by now; nil:
// nothing. A label version that is missing, which stands in nobody's way, is made when the labels change.
func (o *Operated) ReservationAfter(ops node.Ops) *Rec[node.Reservation] {
	next := o.Reservation
	next.Value = next.Value.AsOperatorsSay(ops)
	relabelled := !maps.Equal(o.Ops.Value.Labels, ops.Labels)
	if !relabelled && o.Reservation.Value.Agrees(next.Value.Ineligible, next.Value.Labels) {
		return nil
	}
	return &next
}

// NodeChange is one operator act on one node.
type NodeChange struct {
	Ops   node.Ops // as it shall be
	Index uint64   // of the record that it was computed from; zero creates it
	// Reservation is what is taken on the node, with the index that it was read at; nil when it does not change. Where a
	// drain begins or ends, or labels change, what it says of that changes in the same transaction; see node.Reservation.Told.
	Reservation *Rec[node.Reservation]
	Audit       Audit
}

// ChangeNode writes a change of a node with its audit record. It returns ErrConflict when either record was changed by
// somebody else, which for the reservation of a busy node is likely: read again, try again.
func (s *Operator) ChangeNode(ctx context.Context, c NodeChange) error {
	ops := []consul.Op{cas(s.keys.NodeOps.Key(c.Ops.Name), c.Ops, c.Index)}
	if c.Reservation != nil {
		ops = append(ops, cas(s.keys.Reservations.Key(c.Ops.Name), c.Reservation.Value, c.Reservation.Index))
	}
	return s.commitDefinitely(ctx, "node "+c.Ops.Name, c.Audit, ops...)
}

// ResetBreaker lets farms stop pods again. index is that of the record as read, which may be one that cannot be read;
// ErrConflict says that it changed meanwhile.
func (s *Operator) ResetBreaker(ctx context.Context, index uint64, a Audit) error {
	return s.commitDefinitely(ctx, "breaker", a, cas(s.keys.Breaker.Key(), Breaker{By: a.Who, Since: a.At}, index))
}
