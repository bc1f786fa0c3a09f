package farm

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/rcfarm/rcfarm/pkg/placement"
)

// event is what the world says: something that the farm's watches have seen.
type event any

type (
	bellRang struct{ rcID string }
	bellGone struct{ rcID string }
	// nodesMoved: the nodes whose use for pods may have changed, and the controllers of orphans that came or went.
	nodesMoved   struct{ changed, orphaned map[string]bool }
	membersMoved struct{}
	nonceMoved   struct{}
	breakerMoved struct{}
	// recordsMissing: something vanished that should be there.
	recordsMissing struct{}
	// unreadableFound: all that one watch cannot read now.
	unreadableFound struct {
		where string
		found []error
	}
)

// route turns what the world says into looks at controllers, and tells whoever else must know. Nobody waits for anything here.
func (f *Farm) route(e event) {
	switch e := e.(type) {
	case bellRang:
		f.queue.Add(e.rcID)
		for _, other := range f.kit.kin.besides(e.rcID) {
			f.queue.Add(other)
		}
	case bellGone: // probably deleted
		if f.roster.forget(e.rcID) {
			f.queue.Add(e.rcID)
		}
	case nodesMoved:
		for id := range e.orphaned {
			f.enqueue(id)
		}
		if len(e.changed) > 0 {
			f.kit.scarcity.changed(slices.Collect(maps.Keys(e.changed)))
			f.enqueueOwned(func(c *ReplicationController) bool { return c.standing.now().concernedBy(e.changed) })
		}
	case membersMoved:
		f.roster.membersChanged()
		f.preferNodes()
		wake(f.moved)
		if f.cfg.OnMembers != nil {
			f.cfg.OnMembers()
		}
	case nonceMoved: // nodes that have not said what they run have no room, and those that have may
		f.kit.scarcity.with((*placement.Scarcity).Reset)
	case breakerMoved:
		f.enqueueOwned(func(*ReplicationController) bool { return true })
	case recordsMissing:
		wake(f.sweepNow)
	case unreadableFound:
		f.cfg.Metrics.unreadable(e.where, len(e.found))
		f.unreadable.say(e.where, corruptKeys(e.found))
	}
}

// wake sends to a channel of capacity 1: one wake-up is enough.
func wake(sleeper chan<- struct{}) {
	select {
	case sleeper <- struct{}{}:
	default:
	}
}

// enqueue asks for a look at a controller soon, for another reason than its bell.
func (f *Farm) enqueue(id string) {
	if c, _ := f.roster.get(id); c != nil {
		c.standing.looks.Ask()
	}
	f.queue.Add(id)
}

func (f *Farm) enqueueOwned(which func(*ReplicationController) bool) {
	for _, c := range f.roster.all() {
		if which(c) {
			c.standing.looks.Ask()
			f.queue.Add(c.ID)
		}
	}
}

// roomFreed asks for a look at each controller that more room would help, but for the one that gave it back.
func (f *Farm) roomFreed(rcID string) {
	f.enqueueOwned(func(c *ReplicationController) bool { return c.ID != rcID && c.standing.now().wantsNodes })
}

// pause waits, or until somebody wakes the sleeper. It returns why ctx has ended, if it has.
func pause(ctx context.Context, d time.Duration, woken <-chan struct{}) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-woken:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return nil
}
