package farm

import (
	"context"
	"maps"
	"time"
)

// The pace at which failed agents are asked for while a node has no preparer: often at first, rarely when nothing changes.
const (
	failedMin = 250 * time.Millisecond
	failedMax = 10 * time.Second
)

// watchFailed tells nodes that are gone from nodes that have only lost their preparer (R10). It asks while a node's lock is
// free, and not at all otherwise. An answer is about the deaths that were known when it was asked for: Consul may have meant
// an earlier one, of a machine that has come back since.
func (w *world) watchFailed(ctx context.Context) error {
	pace := failedMin
	last := map[string]uint64{} // nodes without a preparer
	for {
		free := w.free()
		if !maps.Equal(free, last) {
			last, pace = free, failedMin
		}
		if len(free) > 0 {
			failed, err := w.store.FailedAgents(ctx)
			if err != nil && ctx.Err() == nil {
				w.log.WithError(err).Warn("cannot tell lost nodes from nodes without a preparer; none counts as lost anew")
			}
			if err == nil {
				w.failedSeen(free, failed)
			}
			pace = min(pace*5/4, failedMax)
		}
		if err := pause(ctx, pace, w.nodeDied); err != nil {
			return err
		}
	}
}

// free returns the nodes whose preparers do not hold their records, with the indices that these have since.
func (w *world) free() map[string]uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	free := map[string]uint64{}
	for name, v := range w.views {
		if !v.Alive {
			free[name] = v.FreeIndex
		}
	}
	return free
}

// failedSeen uses an answer: which of the nodes that were free when it was asked for are on machines that have failed. One whose
// agent nobody knows is not among them (R10).
func (w *world) failedSeen(asked map[string]uint64, failed map[string]bool) {
	w.mu.Lock()
	gone := map[string]uint64{}
	for name, index := range asked {
		if v := w.views[name]; v != nil && failed[v.ConsulNode] {
			gone[name] = index
		}
	}
	if maps.Equal(gone, w.gone) {
		w.mu.Unlock()
		return
	}
	w.gone, w.sources = gone, nil
	changed, orphaned := w.publish()
	w.mu.Unlock()
	w.nodesChanged(changed, orphaned)
}
