package election

import (
	"math/rand/v2"
	"sync"
	"time"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/wait"
)

// patience says when to look again without a cause.
type patience struct {
	at    time.Time // when, once; zero: no time is set
	since time.Time // when what is waited for began; zero: nothing is
	tries int
}

// idleLook bounds how long nothing is looked at.
const idleLook = time.Hour

func (p *patience) until(t time.Time) {
	if p.at.IsZero() || t.Before(p.at) {
		p.at = t
	}
}

// wake returns when to look again, and forgets it.
func (p *patience) wake() time.Time {
	at := p.at
	p.at = time.Time{}
	if at.IsZero() {
		return time.Now().Add(idleLook)
	}
	return at
}

// maxDoubling bounds how much longer each wait is than the first: 64 times.
const maxDoubling = 6

// over reports whether something has lasted for long enough, a little longer than the given time at first and twice as long each time.
func (p *patience) over(first time.Duration) bool {
	if p.since.IsZero() {
		p.since = time.Now().Add(rand.N(first / 4))
	}
	due := p.since.Add(first << min(p.tries, maxDoubling))
	if time.Now().Before(due) {
		p.until(due)
		return false
	}
	p.since = time.Time{}
	p.tries++
	return true
}

// rest says that nothing is waited for now.
func (p *patience) rest() { p.since = time.Time{} }

// reset begins anew: something has moved.
func (p *patience) reset() { p.since, p.tries = time.Time{}, 0 }

// mailbox holds the newest of what a watch delivers.
type mailbox struct {
	filled wait.Signal // raised while there is something

	mu   sync.Mutex
	snap *consul.Snapshot
	err  error
}

func newMailbox() *mailbox { return &mailbox{filled: wait.NewSignal()} }

// put replaces what has not been taken; that the store went back stays said.
func (m *mailbox) put(snap consul.Snapshot) {
	m.mu.Lock()
	defer m.mu.Unlock()
	snap.WentBack = snap.WentBack || m.snap != nil && m.snap.WentBack
	m.snap = &snap
	m.filled.Raise()
}

// fail tells of an error.
func (m *mailbox) fail(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.err = err
	m.filled.Raise()
}

// take empties the mailbox. There may be no snapshot, no error, or both.
func (m *mailbox) take() (snap *consul.Snapshot, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	snap, err = m.snap, m.err
	m.snap, m.err = nil, nil
	return snap, err
}
