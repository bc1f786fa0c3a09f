package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/node"
)

const reservationTries = 20

// ChangeReservation replaces the node's reservation with the result of change, under the node's lock and by cas. It may
// call change several times. It returns change's error unchanged, and writes nothing if the reservation stays as it is.
// It returns ErrLost without the lock, ErrConflict after too many changes by others, *CorruptError for an unreadable
// record, or ErrUnknown. See also Denied and ErrFiltered.
func (t *NodeSession) ChangeReservation(ctx context.Context,
	change func(res node.Reservation, exists bool) (node.Reservation, error),
) error {
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
		was, errWas := encode(before)
		now, errNow := encode(next)
		if errors.Join(errWas, errNow) == nil && err == nil && bytes.Equal(was, now) {
			return nil
		}
		if _, err = t.commit(ctx, cas(key, next, pair.ModifyIndex)); !errors.Is(err, ErrConflict) {
			break
		}
	}
	if err != nil {
		return fmt.Errorf("reserve a share of the node: %w", err)
	}
	return nil
}
