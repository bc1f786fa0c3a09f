package farm

import (
	"maps"
	"slices"

	"github.com/rcfarm/rcfarm/pkg/farm/placement"
	"github.com/rcfarm/rcfarm/pkg/rc"
)

// event is something that the watches have seen.
type event any

type (
	bellRang struct{ unit string }
	bellGone struct{ unit string }
	// nodesMoved has the nodes whose use for pods may have changed, and the controllers whose orphans have changed.
	nodesMoved     struct{ changed, orphaned map[string]bool }
	membersMoved   struct{}
	epochMoved     struct{}
	witnessFound   struct{}             // a node reports that it saw the store go back in time
	breakerMoved   struct{ reset bool } // reset: an operator has reset the breaker
	recordsMissing struct{}
	// unreadableFound has all records that one watch cannot read now.
	unreadableFound struct {
		where string
		found []error
	}
)

// route turns events into looks at controllers, and informs the other parts of the farm. It never blocks.
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
			f.kit.places.Changed(slices.Collect(maps.Keys(e.changed)))
			views, _ := f.cache.nodesAt()
			f.enqueueOwned(func(c *controller) bool { return c.shared.now().concernedBy(e.changed, views) })
		}
	case membersMoved:
		f.roster.membersChanged()
		f.preferNodes()
		f.moved.Raise()
	case epochMoved: // only nodes that have spoken in the new epoch may have capacity
		f.kit.places.Reset()
	case witnessFound:
		f.witness.Raise()
	case breakerMoved:
		if e.reset {
			f.kit.stops.Reset()
		}
		f.enqueueOwned(all)
	case recordsMissing:
		f.sweepNow.Raise()
	case unreadableFound:
		f.cfg.Metrics.unreadable(e.where, len(e.found))
		f.leaderReporter.unreadable.set(e.where, corruptKeys(e.found))
	}
}

// preferNodes divides the nodes among the living farms, so that farms that place pods at the same time rarely collide.
func (f *Farm) preferNodes() {
	members := f.Members()
	f.kit.places.Prefer(func(name string) bool { return placement.Preferred(name, members) == f.cfg.ID })
}

func (c *core) enqueue(rcID string) {
	id := rc.UnitOf(rcID)
	if u, _ := c.roster.get(id); u != nil {
		u.looks.Ask()
	}
	c.queue.Add(id)
}

func (c *core) enqueueOwned(which func(*controller) bool) {
	for _, one := range c.roster.all() {
		if which(one) {
			one.shared.looks.Ask()
			c.queue.Add(one.unit.id)
		}
	}
}

func all(*controller) bool { return true }

func (c *core) capacityFreed(rcID string) {
	c.enqueueOwned(func(one *controller) bool { return one.ID != rcID && one.shared.now().wantsNodes })
}
