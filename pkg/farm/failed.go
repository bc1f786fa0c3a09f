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
// free, and not at all otherwise.
func (w *world) watchFailed(ctx context.Context) error {
	pace := failedMin
	last := map[string]bool{} // nodes without a preparer
	for {
		dead := w.dead()
		if !maps.Equal(dead, last) {
			last, pace = dead, failedMin
		}
		if len(dead) > 0 {
			failed, err := w.farm.cfg.Store.FailedAgents(ctx)
			if err != nil && ctx.Err() == nil {
				w.log.WithError(err).Warn("cannot tell lost nodes from nodes without a preparer; none counts as lost anew")
			}
			if err == nil {
				w.failedSeen(failed)
			}
			pace = min(pace*5/4, failedMax)
		}
		timer := time.NewTimer(pace)
		select {
		case <-ctx.Done():
			timer.Stop()
			return context.Cause(ctx)
		case <-timer.C:
		case <-w.nodeDied:
			timer.Stop()
		}
	}
}

// dead returns the nodes whose preparers do not hold their records.
func (w *world) dead() map[string]bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	dead := map[string]bool{}
	for name, v := range w.views {
		if !v.Alive {
			dead[name] = true
		}
	}
	return dead
}

func (w *world) failedSeen(failed map[string]bool) {
	w.mu.Lock()
	w.failed, w.sources = failed, nil
	changed, orphaned := w.publish()
	w.mu.Unlock()
	w.nodesChanged(changed, orphaned)
}
