package store

import (
	"context"
	"fmt"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/node"
)

// MendReservation makes a node's reservation say what follows from other records: whether the node is drained (R13), and for which labels
// pods may be placed there (ADR 12). It reports whether there was something to mend. It returns ErrRefused when one of the records
// changed meanwhile, and *CorruptError when one cannot be read.
// It bears no fence: whoever writes it, and however late, what it writes follows from those records alone, and all must be as they were
// read.
func (t *FarmTenure) MendReservation(ctx context.Context, name string) (mended bool, err error) {
	opsKey, nodeKey, resKey := t.keys.NodeOps(name), t.keys.Node(name), t.keys.Reservation(name)
	found, err := t.c.GetMany(ctx, []string{opsKey, nodeKey, resKey}, consul.Consistent)
	if err != nil {
		return false, err
	}
	ops, err := decodeFound[node.Ops](t.keys, found, opsKey)
	if err != nil {
		return false, err
	}
	record, err := decodeFound[node.Node](t.keys, found, nodeKey)
	if err != nil {
		return false, err
	}
	res, err := decodeFound[node.Reservation](t.keys, found, resKey)
	if err != nil {
		return false, err
	}
	stamps := node.NewView(record.Value, ops.Value, true).Stamps
	next := res.Value.Told(ops.Value)
	next.Labels = stamps
	if res.Value.Agrees(next.Closed, stamps) {
		return false, nil
	}
	_, err = t.c.Commit(ctx, []consul.Op{
		sameRecord(opsKey, ops.Index), sameRecord(nodeKey, record.Index), consul.CAS(resKey, encode(next), res.Index),
		t.audit(NewAudit(t.farmID, "mend", "", mendLines(res.Value, next)).OnNodes(name)),
	})
	return err == nil, err
}

// mendLines says what a mended reservation says that it did not say before.
func mendLines(before, after node.Reservation) (lines []string) {
	if before.Closed != after.Closed {
		lines = append(lines, fmt.Sprintf("reservation.closed: %t -> %t, as the node's drain says", before.Closed, after.Closed))
	}
	if !before.Labels.Accepts(after.Labels) {
		lines = append(lines, "reservation.labels: those of the node, instead of others")
	}
	return lines
}
