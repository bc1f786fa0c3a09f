// Package looks tells whether another look at a unit can find anything that the last one has not: each change of it
// rings the unit's bell, and a look reads the bell with all else.
package looks

import (
	"sync"
	"time"
)

// Looks remembers the last look at one unit, and what asks for the next one. The zero value remembers none.
type Looks struct {
	mu    sync.Mutex
	asked bool      // for another reason than the bell, since the last look began
	seen  uint64    // index of the bell, as the last look read it; zero: that did not go well
	due   time.Time // when the last look asked for another one; zero: it did not
	until time.Time // when a look begins that waits for more of what it is about
	rest  time.Time // no look begins before that
}

// Ask says that somebody wants a look who rings no bell.
func (l *Looks) Ask() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.asked = true
}

// Begin is for the beginning of a look, before anything is read.
func (l *Looks) Begin() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.asked, l.seen, l.due, l.until = false, 0, time.Time{}, time.Time{}
}

// Ended notes the index of the bell that a look has read which went well.
func (l *Looks) Ended(seen uint64) {
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

// Idle reports whether a look now would find nothing, and then when one is due, zero for never: bell is its index as
// watched last. A queue keeps the first of several times only, so that the farm must ask for the next look where it
// spares one.
func (l *Looks) Idle(bell uint64) (idle bool, left time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.due.IsZero() {
		left = time.Until(l.due)
	}
	if l.asked || l.seen == 0 || !l.due.IsZero() && left <= 0 || bell > l.seen {
		return false, 0
	}
	return true, left
}

// A unit whose looks take long leaves as much time to the others as it takes. A process that was paused does not rest
// for long.
const (
	RestFrom = 250 * time.Millisecond
	RestMost = 2 * time.Second
)

// Took notes how long a look has taken, whatever came of it.
func (l *Looks) Took(d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if d >= RestFrom {
		l.rest = time.Now().Add(min(d, RestMost))
	}
}

// Rest returns how long the next look has to wait because the last one took long, zero for not at all.
func (l *Looks) Rest() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return max(0, time.Until(l.rest))
}

// Reports of several nodes about what they were asked for together come one after the other: a look waits a little for the others, the
// longer the more is under way.
const (
	GatherLeast = 5 * time.Millisecond
	GatherEach  = time.Millisecond
	GatherMost  = 50 * time.Millisecond
)

// Gather returns how long a look should wait that the bell has asked for, zero for no longer; busy is how many looks
// are under way.
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
