package farm

import (
	"maps"
	"slices"

	"github.com/rcfarm/rcfarm/pkg/farm/placement"
	"github.com/rcfarm/rcfarm/pkg/rc"
)

// event is what the cache says: something that the farm's watches have seen.
type event any

type (
	bellRang struct{ unit string }
	bellGone struct{ unit string }
	// nodesMoved: the nodes whose use for pods may have changed, and the controllers of orphans that came or went.
	nodesMoved   struct{ changed, orphaned map[string]bool }
	membersMoved struct{}
	epochMoved   struct{}
	witnessFound struct{}             // a node says that it saw the store go back in time
	breakerMoved struct{ reset bool } // an operator has reset it
	// recordsMissing: something vanished that should be there.
	recordsMissing struct{}
	// unreadableFound: all that one watch cannot read now.
	unreadableFound struct {
		where string
		found []error
	}
)

// route turns what the cache says into looks at controllers, and tells whoever else must know. Nobody waits for anything here.
func (f *Farm) route(e event) {
	switch e := e.(type) {
	case bellRang:
		f.queue.Add(e.unit)
	case bellGone: // probably deleted
		if f.roster.forget(e.unit) {
			f.queue.Add(e.unit)
		}
	case nodesMoved:
		for id := range e.orphaned {
			f.enqueue(id)
		}
		if len(e.changed) > 0 {
			f.kit.scarcity.changed(slices.Collect(maps.Keys(e.changed)))
			views, _ := f.cache.nodesAt()
			f.enqueueOwned(func(c *controller) bool { return c.shared.now().concernedBy(e.changed, views) })
		}
	case membersMoved:
		f.roster.membersChanged()
		f.preferNodes()
		f.moved.Raise()
	case epochMoved: // nodes that have not said what they run have no room, and those that have may
		f.kit.scarcity.with((*placement.Scarcity).Reset)
	case witnessFound:
		f.witness.Raise()
	case breakerMoved:
		if e.reset {
			f.kit.stops.reset()
		}
		f.enqueueOwned(func(*controller) bool { return true })
	case recordsMissing:
		f.sweepNow.Raise()
	case unreadableFound:
		f.cfg.Metrics.unreadable(e.where, len(e.found))
		f.speaker.unreadable.say(e.where, corruptKeys(e.found))
	}
}

// enqueue asks for a look at a controller's unit soon, for another reason than its bell.
func (f *core) enqueue(rcID string) {
	id := rc.UnitOf(rcID)
	if u, _ := f.roster.get(id); u != nil {
		u.looks.Ask()
	}
	f.queue.Add(id)
}

func (f *core) enqueueOwned(which func(*controller) bool) {
	for _, c := range f.roster.all() {
		if which(c) {
			c.shared.looks.Ask()
			f.queue.Add(c.unit.id)
		}
	}
}

// roomFreed asks for a look at each controller that more room would help, but for the one that gave it back.
func (f *core) roomFreed(rcID string) {
	f.enqueueOwned(func(c *controller) bool { return c.ID != rcID && c.shared.now().wantsNodes })
}
