package farm

import (
	"maps"
	"slices"
	"sync"

	"github.com/rcfarm/rcfarm/pkg/farm/looks"
)

// roster is which controllers this farm owns, and what it knows of the owners of others.
type roster struct {
	mu             sync.Mutex
	owned          map[string]*ReplicationController
	ownedElsewhere map[string]bool // known to be owned by another farm, until the members change or a sweep
	grace          looks.Grace     // of those that are another farm's to claim, and not known to be owned
}

func newRoster() *roster {
	return &roster{owned: map[string]*ReplicationController{}, ownedElsewhere: map[string]bool{}}
}

// get returns a controller that this farm owns, nil for another one, and whether another farm is known to own it.
func (r *roster) get(id string) (c *ReplicationController, ownedElsewhere bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.owned[id], r.ownedElsewhere[id]
}

// all returns the controllers that this farm owns.
func (r *roster) all() []*ReplicationController {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Collect(maps.Values(r.owned))
}

// add takes in a controller that this farm owns now, in place of what it knew, or with fresh only where it knew none.
func (r *roster) add(c *ReplicationController, fresh bool) (added bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if fresh && r.owned[c.ID] != nil {
		return false
	}
	r.owned[c.ID] = c
	delete(r.ownedElsewhere, c.ID)
	return true
}

// drop forgets a controller that is not ours any more.
func (r *roster) drop(id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.owned, id)
	delete(r.ownedElsewhere, id)
	r.grace.Forget(id)
}

// forget drops what is known of a controller that is not ours, and reports whether it is.
func (r *roster) forget(id string) (ours bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if ours = r.owned[id] != nil; !ours {
		delete(r.ownedElsewhere, id)
		r.grace.Forget(id)
	}
	return ours
}

// heard notes whether another farm has a controller. The time that it lacks an owner begins anew.
func (r *roster) heard(id string, another bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ownedElsewhere[id] = another
	r.grace.Forget(id)
}

// listed notes whether another farm is listed as a controller's owner, and reports whether any farm is.
func (r *roster) listed(id string, another bool) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.owned[id] != nil:
		return true // if it is not any more the next write finds out, or a sweep
	case another:
		r.ownedElsewhere[id] = true
		r.grace.Forget(id)
	default:
		delete(r.ownedElsewhere, id)
	}
	return another
}

// markOwnedElsewhere notes that another farm has, or will have, a controller.
func (r *roster) markOwnedElsewhere(id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ownedElsewhere[id] = true
}

// membersChanged forgets what is known of other farms' controllers: their owners may be gone.
func (r *roster) membersChanged() {
	r.mu.Lock()
	defer r.mu.Unlock()
	clear(r.ownedElsewhere)
}
