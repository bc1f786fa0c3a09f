package farm

import (
	"sync"
	"time"

	"github.com/rcfarm/rcfarm/pkg/store"
)

// looks tells whether another look at a controller can find anything that the last one has not: whoever changes something about it rings
// its bell in the same transaction, and each look reads the bell first.
type looks struct {
	mu    sync.Mutex
	asked bool              // for another reason than a bell, since the last look began
	bells map[string]uint64 // as the last look read them, the controller's own and those of companions that matter; nil: it did not go well
	due   time.Time         // when the last look asked for another one; zero: it did not
	alone bool              // whatever companions do, nothing follows
	until time.Time         // when a look begins that waits for more of the reports that it is about
	own   uint64            // the controller's bell as somebody of this program rang it
}

// ask says that somebody wants a look who rings no bell.
func (l *looks) ask() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.asked = true
}

// heard says that the controller's bell has rung before the watch does.
func (l *looks) heard(index uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.own = max(l.own, index)
}

// begin is for the beginning of a look, before anything is read.
func (l *looks) begin() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.asked, l.bells, l.due, l.until, l.alone = false, nil, time.Time{}, time.Time{}, false
}

// ended notes what a look has read that went well, and whether nothing follows whatever companions do.
func (l *looks) ended(own string, head *store.Head, companions []store.Companion, alone bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.bells, l.alone = map[string]uint64{own: head.BellIndex}, alone
	for i := range companions {
		l.bells[companions[i].RCID] = companions[i].Marks.Bell
	}
}

// again notes when a look that went well asked for another one; zero: not at all.
func (l *looks) again(after time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if after > 0 {
		l.due = time.Now().Add(after)
	}
}

// idle reports whether a look now would find nothing, and then when one is due, zero for never: rung are the bells of the controller and of
// its companions, as heard last. The queue keeps the first of several times only, so that whoever spares a look must ask for the next one.
func (l *looks) idle(own string, rung map[string]uint64) (idle bool, left time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.due.IsZero() {
		left = time.Until(l.due)
	}
	if l.asked || l.bells == nil || l.own > l.bells[own] || !l.due.IsZero() && left <= 0 {
		return false, 0
	}
	for id, index := range rung {
		if index > l.bells[id] && (id == own || !l.alone) {
			return false, 0
		}
	}
	return rung[own] != 0, left // a bell that is gone must be made, or the record went with it
}

// Reports of several nodes about what they were asked for together come one after the other: a look waits a little for the others, the
// longer the more passes are under way.
const (
	gatherLeast = 5 * time.Millisecond
	gatherEach  = time.Millisecond
	gatherMost  = 50 * time.Millisecond
)

// gather returns how long a look should wait that a bell has asked for, zero for no longer.
func (l *looks) gather(busy int64) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	switch {
	case l.asked || !l.due.IsZero() && !now.Before(l.due):
		return 0
	case l.until.IsZero():
		l.until = now.Add(min(gatherLeast+time.Duration(busy)*gatherEach, gatherMost))
	}
	return max(0, l.until.Sub(now))
}

// rungFor returns the bells, as heard last, of a controller and of its companions.
func (f *Farm) rungFor(id string) map[string]uint64 {
	return f.world.rung(append(f.kit.kin.companions(id), id))
}
