package farm

import (
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/reconcile"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// memory is what the owner last read of its controller: evidence of the store's time, nothing else.
type memory struct {
	rc         uint64 // index of the record
	placements map[pod.Identity]uint64
}

func remember(rc uint64, placements []store.Rec[pod.Placement]) memory {
	m := memory{rc: rc, placements: make(map[pod.Identity]uint64, len(placements))}
	for _, p := range placements {
		m.placements[p.Value.Identity] = p.Index
	}
	return m
}

// after reports whether the memory is of a later time than what was read now.
func (m memory) after(rc uint64, placements []store.Rec[pod.Placement]) bool {
	if rc < m.rc {
		return true
	}
	found := 0
	for _, p := range placements {
		if index, known := m.placements[p.Value.Identity]; known {
			found++
			if p.Index < index {
				return true
			}
		}
	}
	return found < len(m.placements)
}

// forget drops what the owner is about to remove itself, whether or not that lands.
func (m memory) forget(changes []reconcile.Change) {
	for i := range changes {
		if changes[i].Placement == nil {
			delete(m.placements, changes[i].Identity)
		}
	}
}
