package farm

import (
	"time"

	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/scheduler"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// memory is what a controller's owner knows of it from one pass to the next, and a pass takes and returns.
type memory struct {
	fence      store.Fence
	consistent bool // the next read must be: it is the first of this tenure
	unsure     bool // a write may linger: the fence must be bumped before anything is read
	relied     bool // the last pass needed the minimum
	last       evidence
	recordless bool           // there is no record: what it left behind is stopped, as somebody asked for
	claimed    *store.Claimed // what came with the lock, until the first read uses it

	confirmed map[store.At]int64 // revisions at which nodes confirmed stops, after which the placements went

	held     map[scheduler.Allocation]bool // by an outside scheduler's books, where they are known
	bookless bool                          // that scheduler could keep books and said that it keeps none

	told map[string]bool // what was told and is not stored yet, by alert.Tell.ID

	expects  expects
	reported time.Time // when a status was written last
}

// takenOver reports, once, that the controller was just claimed and had an owner before. What came with the lock is read
// again, because it may be old by the time of the pass.
func (m *memory) takenOver() bool {
	if m.claimed == nil || m.claimed.Head.Status == nil {
		return false
	}
	m.claimed = nil
	return true
}

// evidence is what the owner last read of its controller: evidence of the store's time, nothing else.
type evidence struct {
	rc         uint64 // index of the record
	placements map[pod.Identity]uint64
}

func evidenceOf(rc uint64, placements []store.Rec[pod.Placement]) evidence {
	e := evidence{rc: rc, placements: make(map[pod.Identity]uint64, len(placements))}
	for _, p := range placements {
		e.placements[p.Value.Identity] = p.Index
	}
	return e
}

// after reports whether the evidence is of a later time than what was read now: a record has an older version. One that is
// merely missing may have been removed by hand, which is how an operator gets rid of one that cannot be read.
func (e evidence) after(rc uint64, placements []store.Rec[pod.Placement]) bool {
	if rc < e.rc {
		return true
	}
	for _, p := range placements {
		if index, known := e.placements[p.Value.Identity]; known && p.Index < index {
			return true
		}
	}
	return false
}
