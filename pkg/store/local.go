package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/node"
)

// reservationTries bounds how often a node's reservation is read again because others have changed it meanwhile.
const reservationTries = 20

// ChangeReservation replaces what is reserved on the node by what change makes of it, under the node's lock and by cas; exists is false where there is no record.
// change may be called several times, and its error is returned as it is. What stays as it was is not written. It returns ErrLost when the lock is not held, ErrConflict
// when others changed the record each time, *CorruptError when it cannot be read, or ErrUnknown; see
// Denied and ErrFiltered, too.
func (t *NodeSession) ChangeReservation(ctx context.Context, change func(res node.Reservation, exists bool) (node.Reservation, error)) error {
	key := t.keys.Reservations.Key(t.name)
	var err error
	for range reservationTries {
		var pair consul.Pair
		if pair, err = t.c.Get(ctx, key, consul.Consistent); err != nil && !errors.Is(err, ErrNotFound) {
			return fmt.Errorf("read what is reserved on the node: %w", err)
		}
		var before node.Reservation
		if err == nil {
			rec, err := t.Reservations.decode(pair)
			if err != nil {
				return err
			}
			before = rec.Value
		}
		next, refused := change(before.Clone(), err == nil)
		if refused != nil {
			return refused
		}
		if err == nil && bytes.Equal(before.AppendJSON(nil), next.AppendJSON(nil)) {
			return nil
		}
		if _, err = t.commit(ctx, cas(key, next, pair.ModifyIndex)); !errors.Is(err, ErrConflict) {
			break
		}
	}
	if err != nil {
		return fmt.Errorf("reserve room on the node: %w", err)
	}
	return nil
}
