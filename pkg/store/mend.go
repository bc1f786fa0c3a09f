package store

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/node"
)

// MendClosed makes a node's reservation say whether the node is drained, which follows from what operators said (R13). It
// reports whether there was something to mend. It returns ErrRefused when one of the two records changed meanwhile, and
// *CorruptError when one cannot be read.
// It bears no fence: whoever writes it, and however late, closed follows from the operators' record alone, and both records must be
// those that it was computed from.
func (t *FarmTenure) MendClosed(ctx context.Context, name string) (mended bool, err error) {
	opsKey, resKey := t.keys.NodeOps(name), t.keys.Reservation(name)
	found, err := t.c.GetMany(ctx, []string{opsKey, resKey}, consul.Consistent)
	if err != nil {
		return false, err
	}
	said, drained := consul.CheckMissing(opsKey), false
	if pair, ok := found[opsKey]; ok {
		ops, err := decode[node.Ops](t.keys, pair)
		if err != nil {
			return false, err
		}
		said, drained = consul.CheckIndex(opsKey, ops.Index), ops.Value.Drain != nil
	}
	var res node.Reservation
	if pair, ok := found[resKey]; ok {
		if err := json.Unmarshal(pair.Value, &res); err != nil {
			return false, &CorruptError{Key: resKey, Err: err}
		}
	}
	if res.Closed == drained {
		return false, nil
	}
	line := fmt.Sprintf("reservation.closed: %t -> %t, as the node's drain says", res.Closed, drained)
	res = res.Clone()
	res.Closed = drained
	_, err = t.c.Commit(ctx, []consul.Op{
		said, consul.CAS(resKey, encode(res), found[resKey].ModifyIndex), t.audit(NewAudit(t.farmID, "mend", "", []string{line}).OnNodes(name)),
	})
	return err == nil, err
}
