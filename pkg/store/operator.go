package store

import (
	"context"
	"errors"
	"fmt"
	"path"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/rc"
)

// AllNames is the prefix of the keys that give names to controllers.
func (k Keys) AllNames() string { return k.prefix + "names/" }

// AllReservations is the prefix of what is taken on all nodes.
func (k Keys) AllReservations() string { return k.prefix + "reservations/" }

// Schema reads the schema record, or returns ErrNotFound where rcfarm has never written. Unlike a list, which Consul
// answers emptily to a request without a token, it fails when the key may not be read.
func (s *Store) Schema(ctx context.Context) (Rec[Schema], error) {
	return get[Schema](ctx, s, s.keys.Schema(), consul.Default)
}

// ListReservations reads what is taken on all nodes, by node name.
func (s *Store) ListReservations(ctx context.Context) (map[string]node.Reservation, []error, error) {
	pairs, err := s.c.List(ctx, s.keys.AllReservations(), consul.Default)
	if err != nil {
		return nil, nil, err
	}
	taken := make(map[string]node.Reservation, len(pairs))
	var corrupt []error
	for _, p := range pairs {
		rec, err := decode[node.Reservation](p)
		if err != nil {
			corrupt = append(corrupt, err)
			continue
		}
		taken[path.Base(p.Key)] = rec.Value
	}
	return taken, corrupt, nil
}

// ListFarms reads the member records: one for each living farm.
func (s *Store) ListFarms(ctx context.Context) ([]Rec[Member], []error, error) {
	return list[Member](ctx, s, s.keys.Farms(), consul.Default)
}

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
func (s *Store) FindRC(ctx context.Context, name string) (Rec[rc.RC], error) {
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
	rec, err := s.RC(ctx, id, true)
	if errors.Is(err, ErrNotFound) {
		return rec, &CorruptError{Key: s.keys.Name(name), Err: fmt.Errorf("it names the controller %s, which has no record", id)}
	}
	return rec, err
}

// checkUnnamed looks for a controller whose name is not reserved. Names and records come and go together, so the
// records are read only when the counts differ.
func (s *Store) checkUnnamed(ctx context.Context, name string) error {
	names, err := s.ids(ctx, s.keys.AllNames())
	if err != nil {
		return err
	}
	ids, err := s.ListRCIDs(ctx)
	if err != nil || len(ids) == len(names) {
		return err
	}
	recs, _, err := s.ListRCs(ctx)
	if err != nil {
		return err
	}
	for i := range recs {
		if recs[i].Value.Name != name {
			continue
		}
		// It may have been created since the name was looked up.
		if named, err := s.exists(ctx, s.keys.Name(name)); named || err != nil {
			return err
		}
		return &UnnamedError{RCID: recs[i].Value.ID, Name: name, Key: s.keys.Name(name)}
	}
	return nil
}
