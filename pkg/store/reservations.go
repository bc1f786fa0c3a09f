package store

import (
	"cmp"
	"context"
	"fmt"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/node"
)

// ReservationsOf reads the reservations of nodes. Index zero: there is none. For an unreadable one there is an error,
// by node, and an ineligible reservation, so that no pod is placed there.
func (v *Views) ReservationsOf(ctx context.Context,
	nodes []string,
) (map[string]Rec[node.Reservation], map[string]error, error) {
	found, err := v.c.GetMany(ctx, v.keys.Reservations.Keys(nodes), consul.Default)
	if err != nil {
		return nil, nil, err
	}
	out, corrupt := v.taken(found, nodes)
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

// listsReservations reports whether at least half of all reservations are wanted, in more than one transaction. Then a
// list costs Consul less than a search for each name.
func (w *Wanted) listsReservations() bool {
	return len(w.Reservations) > consul.MaxTxnOps && 2*len(w.Reservations) >= w.Nodes && w.Nodes > 0
}

// listTaken is ReservationsOf with a list.
func (s *db) listTaken(ctx context.Context, nodes []string,
	level consul.Consistency,
) (map[string]Rec[node.Reservation], map[string]error, error) {
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

// MendReservation corrects the parts of a reservation that come from other records: the drain (R13), and the label
// version (ADR 12). It returns ErrRefused if one of the records changed, and *CorruptError if one is unreadable. It
// needs no fence: its result follows from these records alone, and the write lands only if all are unchanged.
func (d *ClusterWrites) MendReservation(ctx context.Context, name string) (mended bool, err error) {
	return d.mendReservation(ctx, name, d.farmID, d.c.Commit)
}

func (s *db) mendReservation(ctx context.Context, name, farmID string,
	commit func(context.Context, []consul.Op) (map[string]uint64, error),
) (mended bool, err error) {
	opsKey, nodeKey, resKey := s.keys.NodeOps.Key(name), s.keys.Nodes.Key(name), s.keys.Reservations.Key(name)
	found, err := s.c.GetMany(ctx, []string{opsKey, nodeKey, resKey}, consul.Consistent)
	if err != nil {
		return false, err
	}
	ops, errOps := s.NodeOps.decodeIn(found, opsKey)
	record, errNode := s.Nodes.decodeIn(found, nodeKey)
	res, errRes := s.Reservations.decodeIn(found, resKey)
	if err := cmp.Or(errOps, errNode, errRes); err != nil {
		return false, err
	}
	versions := node.NewView(record.Value, ops.Value, true).LabelVersions
	next := res.Value.WithOps(ops.Value)
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

func mendLines(before, after node.Reservation) (lines []string) {
	if before.Ineligible != after.Ineligible {
		lines = append(lines,
			fmt.Sprintf("reservation.closed: %t -> %t, as the node's drain says", before.Ineligible, after.Ineligible))
	}
	if !before.Labels.Accepts(after.Labels) {
		lines = append(lines, "reservation.labels: those of the node, instead of others")
	}
	return lines
}
