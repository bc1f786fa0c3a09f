package store

import (
	"context"
	"fmt"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/node"
)

// ReservationsOf reads what is taken on nodes. A node without a record comes back with index zero; one that cannot be read
// comes back ineligible, so that nothing is placed there, and as an error under its name.
func (s *Views) ReservationsOf(ctx context.Context, nodes []string) (map[string]Rec[node.Reservation], map[string]error, error) {
	found, err := s.c.GetMany(ctx, s.keys.Reservations.Keys(nodes), consul.Default)
	if err != nil {
		return nil, nil, err
	}
	out, corrupt := s.taken(found, nodes)
	return out, corrupt, nil
}

func (s *db) taken(found map[string]consul.Pair, nodes []string) (map[string]Rec[node.Reservation], map[string]error) {
	out := make(map[string]Rec[node.Reservation], len(nodes))
	corrupt := map[string]error{}
	for _, name := range nodes {
		rec, err := s.Reservations.decodeIn(found, s.keys.Reservations.Key(name))
		if err != nil {
			corrupt[name], rec.Value = err, node.Reservation{Ineligible: true}
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
func (s *db) listTaken(ctx context.Context, nodes []string, level consul.Consistency) (map[string]Rec[node.Reservation], map[string]error, error) {
	pairs, err := s.c.List(ctx, s.keys.Reservations.Key(), level)
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

// MendReservation makes a node's reservation say what follows from other records: whether the node is drained (R13), and for which labels
// pods may be placed there (ADR 12). It reports whether there was something to mend. It returns ErrRefused when one of the records
// changed meanwhile, and *CorruptError when one cannot be read.
// It bears no fence: whoever writes it, and however late, what it writes follows from those records alone, and all must be as they were
// read.
func (t *Duties) MendReservation(ctx context.Context, name string) (mended bool, err error) {
	return t.mendReservation(ctx, name, t.farmID, t.c.Commit)
}

func (s *db) mendReservation(ctx context.Context, name, farmID string, commit func(context.Context, []consul.Op) (map[string]uint64, error)) (mended bool, err error) {
	opsKey, nodeKey, resKey := s.keys.NodeOps.Key(name), s.keys.Nodes.Key(name), s.keys.Reservations.Key(name)
	found, err := s.c.GetMany(ctx, []string{opsKey, nodeKey, resKey}, consul.Consistent)
	if err != nil {
		return false, err
	}
	ops, err := s.NodeOps.decodeIn(found, opsKey)
	if err != nil {
		return false, err
	}
	record, err := s.Nodes.decodeIn(found, nodeKey)
	if err != nil {
		return false, err
	}
	res, err := s.Reservations.decodeIn(found, resKey)
	if err != nil {
		return false, err
	}
	versions := node.NewView(record.Value, ops.Value, true).LabelVersions
	next := res.Value.AsOperatorsSay(ops.Value)
	next.Labels = versions
	if res.Value.Agrees(next.Ineligible, versions) {
		return false, nil
	}
	_, err = commit(ctx, []consul.Op{
		sameRecord(opsKey, ops.Index), sameRecord(nodeKey, record.Index), cas(resKey, next, res.Index),
		s.audit(NewAudit(farmID, "mend", "", mendLines(res.Value, next)).OnNodes(name)),
	})
	return err == nil, err
}

// mendLines says what a mended reservation says that it did not say before.
func mendLines(before, after node.Reservation) (lines []string) {
	if before.Ineligible != after.Ineligible {
		lines = append(lines, fmt.Sprintf("reservation.closed: %t -> %t, as the node's drain says", before.Ineligible, after.Ineligible))
	}
	if !before.Labels.Accepts(after.Labels) {
		lines = append(lines, "reservation.labels: those of the node, instead of others")
	}
	return lines
}
