package election

import (
	"math/rand/v2"
	"sync"
	"time"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/wait"
)

// patience decides when a participant acts without an event.
type patience struct {
	at    time.Time // time of the next step; zero: not set
	since time.Time // when the present wait began; zero: there is none
	tries int
}

const idleLook = time.Hour

func (p *patience) until(t time.Time) {
	if p.at.IsZero() || t.Before(p.at) {
		p.at = t
	}
}

// wake returns the time of the next step, and resets it.
func (p *patience) wake() time.Time {
	at := p.at
	p.at = time.Time{}
	if at.IsZero() {
		return time.Now().Add(idleLook)
	}
	return at
}

const maxDoubling = 6

// over reports whether the present wait is over. The first wait takes first, and each later wait twice as long as the
// one before, up to maxDoubling times. To each wait, over adds a random part of up to a quarter of first.
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

// rest ends the present wait.
func (p *patience) rest() { p.since = time.Time{} }

// reset makes the next wait as short as the first.
func (p *patience) reset() { p.since, p.tries = time.Time{}, 0 }

type mailbox struct {
	filled wait.Signal // raised while it is not empty

	mu   sync.Mutex
	snap *consul.Snapshot
	err  error
}

func newMailbox() *mailbox { return &mailbox{filled: wait.NewSignal()} }

// If the replaced delivery has WentBack, the new delivery gets it too.
func (m *mailbox) put(snap consul.Snapshot) {
	m.mu.Lock()
	defer m.mu.Unlock()
	snap.WentBack = snap.WentBack || m.snap != nil && m.snap.WentBack
	m.snap = &snap
	m.filled.Raise()
}

func (m *mailbox) fail(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.err = err
	m.filled.Raise()
}

// take may return a snapshot, an error, both or none.
func (m *mailbox) take() (snap *consul.Snapshot, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	snap, err = m.snap, m.err
	m.snap, m.err = nil, nil
	return snap, err
}
