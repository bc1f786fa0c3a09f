// Package looks tells whether another look at something can find anything that the last one has not: whoever changes something about it
// moves the index of a key, and each look reads those indices first.
package looks

import (
	"sync"
	"time"
)

// Looks is what is known of the looks at one thing. The zero value knows of none.
type Looks struct {
	mu    sync.Mutex
	asked bool              // for another reason than an index, since the last look began
	seen  map[string]uint64 // indices by key, as the last look read them; nil: it did not go well
	heard map[string]uint64 // indices by key that this program moved, before a watch tells
	due   time.Time         // when the last look asked for another one; zero: it did not
	until time.Time         // when a look begins that waits for more of what it is about
}

// Ask says that somebody wants a look who moves no index.
func (l *Looks) Ask() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.asked = true
}

// Heard says that an index has moved before a watch does.
func (l *Looks) Heard(key string, index uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.heard == nil {
		l.heard = map[string]uint64{}
	}
	l.heard[key] = max(l.heard[key], index)
}

// Begin is for the beginning of a look, before anything is read.
func (l *Looks) Begin() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.asked, l.seen, l.due, l.until = false, nil, time.Time{}, time.Time{}
}

// Ended notes the indices that a look has read which went well.
func (l *Looks) Ended(seen map[string]uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.seen = seen
}

// Again notes when a look that went well asked for another one; zero: not at all.
func (l *Looks) Again(after time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if after > 0 {
		l.due = time.Now().Add(after)
	}
}

// Idle reports whether a look now would find nothing, and then when one is due, zero for never: now are the indices as watched last. A queue
// keeps the first of several times only, so that whoever spares a look must ask for the next one.
func (l *Looks) Idle(now map[string]uint64) (idle bool, left time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.due.IsZero() {
		left = time.Until(l.due)
	}
	if l.asked || l.seen == nil || !l.due.IsZero() && left <= 0 || l.news(l.heard) || l.news(now) {
		return false, 0
	}
	return true, left
}

// Reports of several nodes about what they were asked for together come one after the other: a look waits a little for the others, the
// longer the more is under way.
const (
	GatherLeast = 5 * time.Millisecond
	GatherEach  = time.Millisecond
	GatherMost  = 50 * time.Millisecond
)

// Gather returns how long a look should wait that an index has asked for, zero for no longer; busy is how many looks are under way.
func (l *Looks) Gather(busy int64) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	switch {
	case l.asked || !l.due.IsZero() && !now.Before(l.due):
		return 0
	case l.until.IsZero():
		l.until = now.Add(min(GatherLeast+time.Duration(busy)*GatherEach, GatherMost))
	}
	return max(0, l.until.Sub(now))
}

// news reports whether one of some indices is later than what the last look read. The caller holds the mutex.
func (l *Looks) news(indices map[string]uint64) bool {
	for key, index := range indices {
		if index > l.seen[key] {
			return true
		}
	}
	return false
}
