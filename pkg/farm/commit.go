package farm

import (
	"context"
	"errors"
	"time"

	"github.com/rcfarm/rcfarm/pkg/store"
)

// commit writes a batch, counts it, and pushes. No other function writes intents.
func (w *writer) commit(ctx context.Context, b *batch) error {
	err := w.kit.writes.Commit(ctx, &b.Batch)
	w.kit.metrics.committed(b.actions, err)
	w.kit.places.Wrote(b.Reservations, err == nil, time.Now())
	if err == nil {
		w.pusher.pushIntents(b)
	}
	for i := range b.Reservations {
		if landed := err == nil || errors.Is(err, store.ErrUnknown); landed && b.Reservations[i].Index == 0 {
			w.kit.fresh.add(b.Reservations[i].Node)
		}
	}
	if err == nil || errors.Is(err, store.ErrUnknown) {
		w.kit.places.Changed(b.freed)
	}
	return err
}
