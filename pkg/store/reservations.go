package store

import (
	"context"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/node"
)

// Reservations reads what is taken on nodes. A node without a record comes back with index zero; one that cannot be read
// comes back closed, so that nothing is placed there, and as an error under its name.
func (s *Store) Reservations(ctx context.Context, nodes []string) (map[string]Rec[node.Reservation], map[string]error, error) {
	found, err := s.c.GetMany(ctx, s.reservationKeys(nodes), consul.Default)
	if err != nil {
		return nil, nil, err
	}
	out, corrupt := s.taken(found, nodes)
	return out, corrupt, nil
}

func (s *Store) reservationKeys(nodes []string) []string {
	keys := make([]string, len(nodes))
	for i, name := range nodes {
		keys[i] = s.keys.Reservation(name)
	}
	return keys
}

func (s *Store) taken(found map[string]consul.Pair, nodes []string) (map[string]Rec[node.Reservation], map[string]error) {
	out := make(map[string]Rec[node.Reservation], len(nodes))
	corrupt := map[string]error{}
	for _, name := range nodes {
		rec, err := decodeFound[node.Reservation](s.keys, found, s.keys.Reservation(name))
		if err != nil {
			corrupt[name], rec.Value = err, node.Reservation{Closed: true}
		}
		out[name] = rec
	}
	return out, corrupt
}

// listsReservations reports whether most of all reservations are wanted, and more than one transaction reads. Then they are listed, with the
// others: that costs Consul less than to find each by its name, above all where many nodes have none.
func (w *Wanted) listsReservations() bool {
	return len(w.Reservations) > consul.MaxTxnOps && 2*len(w.Reservations) >= w.Nodes && w.Nodes > 0
}

// listTaken is Reservations by way of a list of all.
func (s *Store) listTaken(ctx context.Context, nodes []string, level consul.Consistency) (map[string]Rec[node.Reservation], map[string]error, error) {
	pairs, err := s.c.List(ctx, s.keys.Reservation(""), level)
	if err != nil {
		return nil, nil, err
	}
	found := make(map[string]consul.Pair, len(pairs))
	for _, p := range pairs {
		found[p.Key] = p
	}
	out, corrupt := s.taken(found, nodes)
	return out, corrupt, nil
}
