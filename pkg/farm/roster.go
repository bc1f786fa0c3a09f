package farm

import (
	"maps"
	"slices"
	"sync"
	"time"
)

// roster is which controllers this farm owns, and what it knows of the owners of others.
type roster struct {
	mu             sync.Mutex
	owned          map[string]*ReplicationController
	ownedElsewhere map[string]bool      // known to be owned by another farm, until the members change or a sweep
	freed          map[string]time.Time // first seen then, another farm's to claim, and not known to be owned
}

func newRoster() *roster {
	return &roster{owned: map[string]*ReplicationController{}, ownedElsewhere: map[string]bool{}, freed: map[string]time.Time{}}
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
	delete(r.freed, id)
}

// forget drops what is known of a controller that is not ours, and reports whether it is.
func (r *roster) forget(id string) (ours bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if ours = r.owned[id] != nil; !ours {
		delete(r.ownedElsewhere, id)
		delete(r.freed, id)
	}
	return ours
}

// heard notes whether another farm has a controller. The time that it lacks an owner begins anew.
func (r *roster) heard(id string, another bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ownedElsewhere[id] = another
	delete(r.freed, id)
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
		delete(r.freed, id)
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

// graceLeft returns how long the preferred farm still has to claim a controller.
func (r *roster) graceLeft(id string) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	since, seen := r.freed[id]
	if !seen {
		since = time.Now()
		r.freed[id] = since
	}
	return unownedGrace - time.Since(since)
}
