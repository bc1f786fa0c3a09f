// Package push handles the requests with an epoch that farms send to a node after they have written intents for it
// (ADR 26). Such a request makes the node read its intents in Consul, unless it has read them already. It has no
// other effect: only the intents decide which pods run (P1, P4). The requests are of type scale.Request, and arrive at
// Preparer.Scale.
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

const (
	pullWithin  = 5 * time.Second // how long a read that a request asked for may take
	watchWithin = 2 * time.Second // how long a standing query may take to deliver the intents of a request
	// readGap is the shortest time between the starts of two reads of the intents, and of two reads of the epoch.
	readGap = 100 * time.Millisecond
)

// Config is what New needs.
type Config struct {
	Dir string // the node's data directory
	// Pull: the preparer reads the intents each time that Next returns. Otherwise a standing query delivers the
	// intents, and requests wait for it.
	Pull  bool
	Every time.Duration // time between two reads without a request, plus or minus half
	Epoch func(ctx context.Context) (string, error)
}

// Inbox handles requests with an epoch. It is safe for concurrent use.
type Inbox struct {
	cfg    Config
	wanted wait.Signal   // raised when a request waits for a read
	turn   chan struct{} // holds a token for the request that may read the cluster's epoch
	disk   file

	mu      sync.Mutex // guards the fields below, except asked
	heard   heard
	renew   func(epoch string) // makes the session read the intents under another epoch; nil without a session
	reading bool               // the session reads intents under epoch
	epoch   string
	index   uint64        // the intents read under epoch are of this Consul index or later; zero: none were read
	begun   int           // number of the last read that began
	ended   int           // number of the last read after which the preparer has decided
	fails   int           // number of failed reads
	failed  error         // the last failure
	news    chan struct{} // closed when one of the fields above changes
	last    time.Time     // when the last read began

	asked time.Time // when the epoch was last read from Consul; guarded by turn
}

// New returns an Inbox with the pushes that an earlier preparer got. If it cannot read them from the disk, it returns
// an Inbox without them, and an error.
func New(cfg Config) (*Inbox, error) {
	disk, heard, err := read(cfg.Dir)
	return &Inbox{
		cfg: cfg, wanted: wait.NewSignal(), turn: make(chan struct{},
			1), disk: disk, heard: heard, news: make(chan struct{}),
	}, err
}

func (i *Inbox) change(f func()) {
	i.mu.Lock()
	defer i.mu.Unlock()
	f()
	close(i.news)
	i.news = make(chan struct{})
}

// Open begins a session. renew makes the session read the intents again.
func (i *Inbox) Open(renew func(epoch string)) { i.change(func() { i.renew = renew }) }

// Close ends the session. Intents that were read before are not valid any more.
func (i *Inbox) Close() {
	i.change(func() { i.renew, i.reading, i.index = nil, false, 0 })
}

// Pause is called when the node's lock is lost. Intents that were read before are not valid any more.
func (i *Inbox) Pause() { i.change(func() { i.reading, i.index = false, 0 }) }

// Begin is called when a read of the intents under an epoch begins.
func (i *Inbox) Begin(epoch string) {
	i.change(func() {
		i.reading, i.epoch, i.index = true, epoch, 0
		i.begin()
	})
}

func (i *Inbox) begin() {
	i.begun++
	i.last = time.Now()
}

// Read is called when the preparer has read the intents and decided about them. The intents are of this Consul index
// or later. If index is lower than before, Consul has forgotten a deletion.
func (i *Inbox) Read(index uint64) {
	i.change(func() {
		if i.reading {
			i.index, i.ended = max(i.index, index), i.begun
		}
	})
}

// Failed is called when intents could not be read.
func (i *Inbox) Failed(err error) {
	i.change(func() { i.fails, i.failed = i.fails+1, err })
}

// Next waits until the intents must be read again, because a request needs it or the last read is old. The time is
// random, so that nodes that started together do not read together.
func (i *Inbox) Next(ctx context.Context) error {
	if _, err := wait.PauseUnless(ctx, i.wanted, i.cfg.Every/2+rand.N(i.cfg.Every)); err != nil {
		return err
	}
	i.mu.Lock()
	left := readGap - time.Since(i.last)
	i.mu.Unlock()
	if err := wait.Pause(ctx, left); err != nil {
		return err
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.begin()
	return nil
}

var errNotServing = errors.New("the preparer does not hold its node's lock in Consul")

// Take carries out a request. When it returns nil, the node has decided about intents that include the request's
// intents. It returns an error of package scale, or an error about the disk.
func (i *Inbox) Take(ctx context.Context, r scale.Request) error {
	if err := check(r); err != nil {
		return fmt.Errorf("%w: %w", scale.ErrInvalid, err)
	}
	limit := watchWithin
	if i.cfg.Pull {
		limit = pullWithin
	}
	limited, cancel := context.WithTimeoutCause(ctx, limit,
		fmt.Errorf("what revision %d says has not been read within %v", r.Revision, limit))
	defer cancel()
	if err := i.know(limited, r.Epoch.Cluster); err != nil {
		return err
	}
	if err := i.reach(limited, r.Epoch.Cluster, uint64(r.Revision)); err != nil {
		return err
	}
	return i.note(*r.Epoch, r.Revision)
}

// know makes the session read the intents under this epoch, if Consul confirms that it is the cluster's epoch.
func (i *Inbox) know(ctx context.Context, epoch string) error {
	i.mu.Lock()
	serving, known := i.renew != nil, i.reading && i.epoch == epoch
	i.mu.Unlock()
	switch {
	case !serving:
		return fmt.Errorf("%w: %w", scale.ErrUnavailable, errNotServing)
	case known:
		return nil
	}
	select {
	case i.turn <- struct{}{}:
		defer func() { <-i.turn }()
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", scale.ErrUnavailable, context.Cause(ctx))
	}
	i.mu.Lock()
	known = i.reading && i.epoch == epoch // perhaps another request has read the epoch meanwhile
	i.mu.Unlock()
	if known {
		return nil
	}
	if err := wait.Pause(ctx, readGap-time.Since(i.asked)); err != nil {
		return fmt.Errorf("%w: %w", scale.ErrUnavailable, err)
	}
	i.asked = time.Now() // guarded by turn
	now, err := i.cfg.Epoch(ctx)
	if err != nil {
		return fmt.Errorf("%w: the cluster's epoch cannot be read: %w", scale.ErrUnavailable, err)
	}
	if now != epoch {
		return fmt.Errorf("%w: epoch.nonce: %s is not this cluster's epoch, which is %s", scale.ErrConflict, epoch, now)
	}
	i.mu.Lock()
	renew := i.renew
	i.mu.Unlock()
	if renew == nil {
		return fmt.Errorf("%w: %w", scale.ErrUnavailable, errNotServing)
	}
	renew(epoch)
	return nil
}

// reach waits until the intents read under this epoch are of this Consul index or later.
func (i *Inbox) reach(ctx context.Context, epoch string, index uint64) error {
	i.mu.Lock()
	since, fails := i.begun, i.fails
	for {
		var err error
		under := i.reading && i.epoch == epoch
		switch {
		case under && i.index >= index:
			i.mu.Unlock()
			return nil
		case i.renew == nil:
			err = fmt.Errorf("%w: %w", scale.ErrUnavailable, errNotServing)
		case i.fails > fails:
			err = fmt.Errorf("%w: the node's intents cannot be read: %w", scale.ErrUnavailable, i.failed)
		case under && i.cfg.Pull && i.ended > since:
			err = fmt.Errorf("%w: revision: %d is beyond the node's intents, which are at %d",
				scale.ErrConflict, index, i.index)
		}
		news := i.news
		i.mu.Unlock()
		if err != nil {
			return err
		}
		i.wanted.Raise()
		select {
		case <-news:
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", scale.ErrUnavailable, context.Cause(ctx))
		}
		i.mu.Lock()
	}
}

// note stores a request as the latest of its controller. It refuses an older one.
func (i *Inbox) note(e scale.Epoch, revision int64) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	switch order := i.heard.compare(e, revision); {
	case order < 0:
		return fmt.Errorf("%w: a later owner of the controller, or a later revision, was heard of: this is revision "+
			"%d of term %s", scale.ErrConflict, revision, e.Term)
	case order == 0:
		return nil
	}
	next := i.heard.with(e, revision)
	if err := i.disk.write(next); err != nil {
		return err
	}
	i.heard = next
	return nil
}

// check: the term has the index of the owner's lock, which is lower than the revision, because an owner writes intents
// only after it has the lock.
func check(r scale.Request) error {
	var errs field.Errors
	_, digits, _ := strings.Cut(r.Epoch.Term, "/")
	index, err := strconv.ParseUint(digits, 10, 63)
	if err != nil || r.Epoch.Term != scale.Term(r.Epoch.Cluster, index) || index >= uint64(r.Revision) {
		errs.Add("epoch.term", r.Epoch.Term, "such as "+scale.Term(r.Epoch.Cluster, 1)+", with the index of the "+
			"controller's lock, which is less than the revision")
	}
	return errs.Err()
}
