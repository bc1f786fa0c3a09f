package farm

import (
	"github.com/rcfarm/rcfarm/pkg/pod"
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

// after reports whether the memory is of a later time than what was read now: a record has an older version. One that is
// merely missing may have been removed by hand, which is how an operator gets rid of one that cannot be read.
func (m memory) after(rc uint64, placements []store.Rec[pod.Placement]) bool {
	if rc < m.rc {
		return true
	}
	for _, p := range placements {
		if index, known := m.placements[p.Value.Identity]; known && p.Index < index {
			return true
		}
	}
	return false
}
