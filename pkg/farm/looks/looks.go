// Package looks decides whether another look at a unit can find something new: whether its bell has rung since the last
// look read it.
package looks

import (
	"sync"
	"time"
)

// Looks remembers the last look at one unit, and why to look again. The zero value has no last look. It is safe for
// concurrent use.
type Looks struct {
	mu    sync.Mutex
	asked bool      // Ask was called since the last look began
	seen  uint64    // index of the bell that the last look has read; zero: the look failed or has not ended
	due   time.Time // time of the next look, if the last look asked for one; zero: it did not
	until time.Time // when a look that waits for more reports may begin; see Gather
	rest  time.Time // no look begins before this time
}

// Ask asks for a look although the bell has not rung.
func (l *Looks) Ask() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.asked = true
}

// Begin must be called before a look reads anything.
func (l *Looks) Begin() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.asked, l.seen, l.due, l.until = false, 0, time.Time{}, time.Time{}
}

// Ended notes a successful look, with the index of the bell that it has read.
func (l *Looks) Ended(seen uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.seen = seen
}

// Again notes after which time a successful look asked for another one; zero: it did not.
func (l *Looks) Again(after time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if after > 0 {
		l.due = time.Now().Add(after)
	}
}

// Idle reports whether a look now would find nothing new, so that the farm skips it. bell is the last index that the
// farm's watch has seen. left is the time until a look is due; zero: none is. The farm must then queue that look again,
// because the skipped one had replaced it in the queue.
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

// If other units wait, a unit's next look waits after a long look for as long as that took, at most RestMost.
const (
	RestFrom = 250 * time.Millisecond
	RestMost = 2 * time.Second
)

// Took notes how long a look has taken, also a failed one.
func (l *Looks) Took(d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if d >= RestFrom {
		l.rest = time.Now().Add(min(d, RestMost))
	}
}

// Rest returns how long the next look must wait because the last one took long.
func (l *Looks) Rest() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return max(0, time.Until(l.rest))
}

// Nodes that got intents at the same time report one after the other. So a look waits a little for more reports, longer
// if more looks are under way.
const (
	GatherLeast = 5 * time.Millisecond
	GatherEach  = time.Millisecond
	GatherMost  = 50 * time.Millisecond
)

// Gather returns how long a look that the bell asks for should wait. busy is how many looks are under way.
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
