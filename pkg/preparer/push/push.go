// Package push is what a node does about requests with an epoch, by which farms tell it that they have written intents for it (ADR 26). Such
// a request makes the node read what Consul says, unless it has read that already, and nothing else: what runs follows from the intents
// alone (P1, P4). The preparer's session reads, and tells the Inbox how far it has read; the node's API brings requests.
package push

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/scale"
	"github.com/rcfarm/rcfarm/pkg/wait"
)

// What bounds a request, and what requests can cost Consul.
const (
	pullWithin  = 5 * time.Second        // until a reading has ended that was asked for
	watchWithin = 2 * time.Second        // until a standing query has brought what a request speaks of
	readGap     = 100 * time.Millisecond // between the beginnings of two readings, and of two questions for the cluster's epoch
)

// Config is what New needs.
type Config struct {
	Dir string // the node's data directory
	// Pull: intents are read when Next returns. Otherwise a standing query brings them, and requests wait for that.
	Pull  bool
	Every time.Duration // between two readings that nobody asks for, give or take half
	// Epoch reads the cluster's epoch, consistently.
	Epoch func(ctx context.Context) (string, error)
}

// Inbox takes requests with an epoch.
type Inbox struct {
	cfg    Config
	wanted wait.Signal   // somebody waits for a reading
	turn   chan struct{} // holds a token for whoever asks for the cluster's epoch
	disk   file

	mu      sync.Mutex // guards what follows
	heard   heard
	renew   func(epoch string) // has the intents read under another epoch; nil without a session
	reading bool               // the intents are being read, under epoch
	epoch   string
	index   uint64        // of Consul: what was read under epoch includes it; zero: nothing was read
	begun   int           // readings, the last one
	ended   int           // the last reading that was decided upon
	fails   int           // of readings
	failed  error         // the last of them
	news    chan struct{} // closed when something of that has changed
	last    time.Time     // when the last reading began

	asked time.Time // when Consul was last asked for the epoch; of whoever has the turn
}

// New returns an inbox that knows what its predecessor had heard, and why it does not know that, if it does not.
func New(cfg Config) (*Inbox, error) {
	disk, heard, err := read(cfg.Dir)
	return &Inbox{
		cfg: cfg, wanted: wait.NewSignal(), turn: make(chan struct{}, 1), disk: disk, heard: heard, news: make(chan struct{}),
	}, err
}

// change changes what requests wait for.
func (b *Inbox) change(f func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	f()
	close(b.news)
	b.news = make(chan struct{})
}

// Open begins a session, which reads the intents anew when renew is called. Close ends it.
func (b *Inbox) Open(renew func(epoch string)) { b.change(func() { b.renew = renew }) }

// Close says that nothing is read any more, or that what is read does not count: the session or the node's lock is lost.
func (b *Inbox) Close() {
	b.change(func() { b.renew, b.reading, b.index = nil, false, 0 })
}

// Pause says that what is read does not count for now, as the node's lock is not held.
func (b *Inbox) Pause() { b.change(func() { b.reading, b.index = false, 0 }) }

// Begin says that the intents are read anew from now on, under an epoch.
func (b *Inbox) Begin(epoch string) {
	b.change(func() {
		b.reading, b.epoch, b.index = true, epoch, 0
		b.begin()
	})
}

func (b *Inbox) begin() {
	b.begun++
	b.last = time.Now()
}

// Read says that intents were read and decided upon, as they were at an index of Consul's or later. An index that went back says that
// Consul has forgotten a deletion.
func (b *Inbox) Read(index uint64) {
	b.change(func() {
		if b.reading {
			b.index, b.ended = max(b.index, index), b.begun
		}
	})
}

// Failed says that intents could not be read.
func (b *Inbox) Failed(err error) {
	b.change(func() { b.fails, b.failed = b.fails+1, err })
}

// Next waits until the intents are to be read again: a request asks for it, or they have not been for a while. The spread keeps nodes that
// began together from reading together.
func (b *Inbox) Next(ctx context.Context) error {
	if _, err := wait.PauseUnless(ctx, b.wanted, b.cfg.Every/2+rand.N(b.cfg.Every)); err != nil {
		return err
	}
	b.mu.Lock()
	left := readGap - time.Since(b.last)
	b.mu.Unlock()
	if err := wait.Pause(ctx, left); err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.begin()
	return nil
}

// errNotServing is why nothing can be said without a session.
var errNotServing = errors.New("the preparer does not hold its node's lock in Consul")

// Take carries a request out: when it returns nil, the node has decided upon intents that include what the request speaks of. Its errors
// are those of package scale, or about the disk.
func (b *Inbox) Take(ctx context.Context, r scale.Request) error {
	if err := check(r); err != nil {
		return fmt.Errorf("%w: %w", scale.ErrInvalid, err)
	}
	limit := watchWithin
	if b.cfg.Pull {
		limit = pullWithin
	}
	limited, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("what revision %d says has not been read within %v", r.Revision, limit))
	defer cancel()
	if err := b.know(limited, r.Epoch.Cluster); err != nil {
		return err
	}
	if err := b.reach(limited, r.Epoch.Cluster, uint64(r.Revision)); err != nil {
		return err
	}
	return b.note(*r.Epoch, r.Revision)
}

// know makes sure that intents are read under an epoch. One that the node has not seen is believed if Consul itself says so.
func (b *Inbox) know(ctx context.Context, epoch string) error {
	b.mu.Lock()
	serving, known := b.renew != nil, b.reading && b.epoch == epoch
	b.mu.Unlock()
	switch {
	case !serving:
		return fmt.Errorf("%w: %w", scale.ErrUnavailable, errNotServing)
	case known:
		return nil
	}
	select {
	case b.turn <- struct{}{}:
		defer func() { <-b.turn }()
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", scale.ErrUnavailable, context.Cause(ctx))
	}
	b.mu.Lock()
	known = b.reading && b.epoch == epoch // whoever had the turn may have asked for the same
	b.mu.Unlock()
	if known {
		return nil
	}
	if err := wait.Pause(ctx, readGap-time.Since(b.asked)); err != nil {
		return fmt.Errorf("%w: %w", scale.ErrUnavailable, err)
	}
	b.asked = time.Now() // whoever has the turn
	now, err := b.cfg.Epoch(ctx)
	if err != nil {
		return fmt.Errorf("%w: the cluster's epoch cannot be read: %w", scale.ErrUnavailable, err)
	}
	if now != epoch {
		return fmt.Errorf("%w: epoch.nonce: %s is not this cluster's epoch, which is %s", scale.ErrConflict, epoch, now)
	}
	b.mu.Lock()
	renew := b.renew
	b.mu.Unlock()
	if renew == nil {
		return fmt.Errorf("%w: %w", scale.ErrUnavailable, errNotServing)
	}
	renew(epoch)
	return nil
}

// reach waits until what was read under an epoch includes an index.
func (b *Inbox) reach(ctx context.Context, epoch string, index uint64) error {
	b.mu.Lock()
	since, fails := b.begun, b.fails
	for {
		var err error
		under := b.reading && b.epoch == epoch
		switch {
		case under && b.index >= index:
			b.mu.Unlock()
			return nil
		case b.renew == nil:
			err = fmt.Errorf("%w: %w", scale.ErrUnavailable, errNotServing)
		case b.fails > fails:
			err = fmt.Errorf("%w: the node's intents cannot be read: %w", scale.ErrUnavailable, b.failed)
		case under && b.cfg.Pull && b.ended > since:
			err = fmt.Errorf("%w: revision: %d is beyond the node's intents, which are at %d", scale.ErrConflict, index, b.index)
		}
		news := b.news
		b.mu.Unlock()
		if err != nil {
			return err
		}
		b.wanted.Raise()
		select {
		case <-news:
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", scale.ErrUnavailable, context.Cause(ctx))
		}
		b.mu.Lock()
	}
}

// note makes a request the last of its controller, unless it is older than that.
func (b *Inbox) note(e scale.Epoch, revision int64) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch order := b.heard.compare(e, revision); {
	case order < 0:
		return fmt.Errorf("%w: a later owner of the controller, or a later revision, was heard of: this is revision %d of term %s", scale.ErrConflict, revision, e.Term)
	case order == 0:
		return nil
	}
	next := b.heard.with(e, revision)
	if err := b.disk.write(next); err != nil {
		return err
	}
	b.heard = next
	return nil
}

// check says what is wrong with a request. Nobody writes before he has the lock.
func check(r scale.Request) error {
	var errs field.Errors
	_, digits, _ := strings.Cut(r.Epoch.Term, "/")
	index, err := strconv.ParseUint(digits, 10, 63)
	if err != nil || r.Epoch.Term != scale.Term(r.Epoch.Cluster, index) || index >= uint64(r.Revision) {
		errs.Add("epoch.term", r.Epoch.Term, "such as "+scale.Term(r.Epoch.Cluster, 1)+", with the index of the controller's lock, which is less than the revision")
	}
	return errs.Err()
}
