package store

import (
	"context"
	"encoding/json"
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
	var res node.Reservation
	if pair, ok := found[resKey]; ok {
		if err := json.Unmarshal(pair.Value, &res); err != nil {
			return false, &CorruptError{Key: resKey, Err: err}
		}
	}
	stamps := node.NewView(record.Value, ops.Value, true).Stamps
	next := res.Told(ops.Value)
	next.Labels = stamps
	if res.Agrees(next.Closed, stamps) {
		return false, nil
	}
	_, err = t.c.Commit(ctx, []consul.Op{
		sameRecord(opsKey, ops.Index), sameRecord(nodeKey, record.Index), consul.CAS(resKey, encode(next), found[resKey].ModifyIndex),
		t.audit(NewAudit(t.farmID, "mend", "", mendLines(res, next)).OnNodes(name)),
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

// decodeFound decodes one of the records that were found; a missing one has index zero.
func decodeFound[T any](keys Keys, found map[string]consul.Pair, key string) (Rec[T], error) {
	pair, ok := found[key]
	if !ok {
		return Rec[T]{}, nil
	}
	return decode[T](keys, pair)
}

// sameRecord is the condition that a record is as it was read; zero: that there is none.
func sameRecord(key string, index uint64) consul.Op {
	return operation{verb: checkIndex, key: key, index: index}.op()
}
