package consul

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/consul/api"
	"github.com/oklog/ulid/v2"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/rcfarm/rcfarm/pkg/wait"
)

// DefaultTTL is how long a daemon may be silent before its sessions end.
const DefaultTTL = 2 * time.Second

// lockDelay is the shortest that the API can say; zero would mean 15 s. The fence makes it safe.
const lockDelay = time.Millisecond

// SessionConfig describes one daemon's liveness.
type SessionConfig struct {
	Kind string // "farm" or "preparer"; the Consul service is rcfarm-<kind>
	Name string // stable name of the farm or node
	// Scope is the key prefix of the cluster. It tells apart daemons of one kind and name that belong to several clusters
	// on one Consul: after a regression a daemon destroys all earlier sessions of its own kind, name and scope (R5).
	Scope string
	Mode  SessionMode   // ByCheck when empty
	TTL   time.Duration // of the check, DefaultTTL when zero, at least 1 s; or of the sessions, at least MinSessionTTL
	// SessionTTL is the TTL that the sessions have beside the check, at least TTL and MinSessionTTL. The agent cannot pass on that the
	// check fails when Consul refuses the token; then this ends them, within twice the time.
	SessionTTL time.Duration
	Meta       map[string]string // of the service
	// Journal remembers incarnations across restarts, so that the next start deregisters exactly its own (R11). Without one, what a
	// process that was killed held stays held until its TTL is over.
	Journal Journal
	// OnEvent is told about sessions taken and lost, and about errors, also from several goroutines at once. The session
	// is nil when the event is not about one. It may be nil.
	OnEvent func(event string, s *Session, err error)
	// OnRenewed is called each time that the servers have renewed the sessions, and told how often that is. An error is told like one of
	// renewing, except where it matches ErrRefused, and has it all tried again sooner. It may be nil.
	OnRenewed func(ctx context.Context, s *Session, every time.Duration) error
	// Stuck reports whether a session ended for a reason that only a person mends. Then the pauses before the next one
	// grow to 30 s, and end when the token changes. Nil: no reason is such.
	Stuck func(err error) bool
}

// renewEvery is how often the sessions are renewed: often enough that two renewals in a row may fail.
func (c *SessionConfig) renewEvery() time.Duration { return c.SessionTTL / 3 }

// Journal keeps incarnation ids on the daemon's own disk.
type Journal interface {
	// Incarnations returns those that may still be registered.
	Incarnations() ([]string, error)
	// Add durably records one before it is registered.
	Add(incarnation string) error
	// Remove forgets one that is deregistered.
	Remove(incarnation string) error
}

// noJournal remembers nothing.
type noJournal struct{}

// Incarnations implements Journal.
func (noJournal) Incarnations() ([]string, error) { return nil, nil }

// Add implements Journal.
func (noJournal) Add(string) error { return nil }

// Remove implements Journal.
func (noJournal) Remove(string) error { return nil }

// Session is one tenure of a daemon: two Consul sessions on one check of its own incarnation and on the health of its
// machine. Releasing frees the locks that it holds when it ends; Deleting deletes the keys that it holds.
type Session struct {
	Incarnation string
	Releasing   string
	Deleting    string
	ConsulNode  string // name of the agent that vouches for it; empty with ByTTL
	vouched     string // id of the token that the agent has for the check; of whoever sends heartbeats
	created     uint64 // Consul's index at which Releasing was made
	lossAfter   time.Duration

	mu        sync.Mutex
	confirmed time.Time     // before the last request that the servers answered
	asleep    time.Duration // for how long the machine had slept by then since its start
}

// Confirm records that the servers answered, for this session, a request that was sent at the given time: a committed
// fenced transaction is such an answer.
func (s *Session) Confirm(sent time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if sent.After(s.confirmed) {
		s.confirmed, s.asleep = sent, asleep()
	}
}

// Answered is Confirm for a request that did not fail, and returns the error of one that did.
func (s *Session) Answered(sent time.Time, err error) error {
	if err == nil {
		s.Confirm(sent)
	}
	return err
}

// Left returns for how long the session may be believed in from now on, if the servers do not answer. It is not more than zero when the
// session counts as lost, which a process that stood still, or whose machine slept, knows before the role's context has ended.
func (s *Session) Left() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lossAfter - time.Since(s.confirmed) - max(0, asleep()-s.asleep)
}

// asleep returns for how long the machine has slept since its start: the clock behind time.Since stands still meanwhile, and Consul's does not.
func asleep() time.Duration {
	var awake unix.Timespec
	if unix.ClockGettime(unix.CLOCK_MONOTONIC, &awake) != nil {
		return 0
	}
	return sinceStart() - time.Duration(awake.Nano())
}

// sinceStart returns how long ago the machine started, time asleep included. It panics if the kernel has no such clock:
// each Linux since 2.6.39 has (clock_gettime(2)).
func sinceStart() time.Duration {
	var all unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &all); err != nil {
		panic(fmt.Sprintf("read the clock since the machine's start: %v", err))
	}
	return time.Duration(all.Nano())
}

func (s *Session) lastConfirmed() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.confirmed
}

// ErrWentBack is what a role returns when it saw the store go back in time: sessions of the past may have come back,
// so RunSession destroys every session that bears the daemon's name before it takes a new one (R5).
var ErrWentBack = errors.New("the store went back in time")

// ErrUnanswered says that the receiver of a watch, who joins it to ErrWentBack, could not act on what it saw. The next watch
// says it again.
var ErrUnanswered = errors.New("not answered yet")

// RunSession holds a session and runs the role under it, again and again, until ctx ends. The role's context ends with
// cause ErrLost as soon as the servers do not confirm the session any more; the role must return then, and whatever it
// started must have stopped. When the role returns, the sessions are destroyed, which releases every lock at once.
// RunSession returns the cause of ctx's end, or an error that another try cannot mend (the journal's, a wrong mode).
func (c *Client) RunSession(ctx context.Context, cfg SessionConfig, role func(context.Context, *Session) error) error {
	d, err := c.newDaemon(cfg)
	if err != nil {
		return err
	}
	pace := newPaces()
	var relics uint64 // sessions of this name that were created before this index are of the past
	for ctx.Err() == nil {
		started := time.Now()
		taken, err := d.oneSession(ctx, relics, role)
		if ctx.Err() != nil {
			break
		}
		if _, is := errors.AsType[*journalError](err); is {
			return err
		}
		if taken {
			relics = 0
		}
		var vanished *vanishedError
		switch {
		case errors.Is(err, ErrWentBack):
			relics = math.MaxUint64
		case errors.As(err, &vanished):
			relics = max(relics, vanished.created) // it may have vanished before anybody asked for the index
		}
		d.OnEvent("session ended", nil, err)
		if err := pace.pause(ctx, d, time.Since(started), err); err != nil {
			return err
		}
	}
	return context.Cause(ctx)
}

// daemon is a client that holds the sessions of one daemon.
type daemon struct {
	*Client
	SessionConfig
}

func (c *Client) newDaemon(cfg SessionConfig) (*daemon, error) {
	if cfg.TTL == 0 {
		cfg.TTL = DefaultTTL
	}
	switch cfg.Mode {
	case "":
		cfg.Mode = ByCheck
	case ByCheck:
	case ByTTL:
		cfg.TTL = max(cfg.TTL, MinSessionTTL)
	default:
		return nil, fmt.Errorf("%w %q; allowed: %s or %s", errMode, cfg.Mode, ByCheck, ByTTL)
	}
	cfg.SessionTTL = max(cfg.SessionTTL, cfg.TTL, MinSessionTTL)
	if cfg.Journal == nil {
		cfg.Journal = noJournal{}
	}
	if cfg.OnEvent == nil {
		cfg.OnEvent = func(string, *Session, error) {}
	}
	return &daemon{c, cfg}, nil
}

type journalError struct{ err error }

func (e *journalError) Error() string { return "incarnation journal: " + e.err.Error() }
func (e *journalError) Unwrap() error { return e.err }

// vanishedError says that the servers do not know a session any more. Restoring an older snapshot is one reason, and
// brings sessions of the past back: they are told by having been created before this one. (Watches see a restore only
// if it changed what they watch, and a role may end before they do.)
type vanishedError struct {
	session string
	created uint64 // index
}

func (e *vanishedError) Error() string {
	return fmt.Sprintf("%v: the servers do not know session %s any more", ErrLost, e.session)
}

// Is matches ErrLost.
func (e *vanishedError) Is(target error) bool { return target == ErrLost }

// oneSession runs the role in one tenure. taken says whether it came to that.
func (d *daemon) oneSession(ctx context.Context, relics uint64, role func(context.Context, *Session) error) (taken bool, err error) {
	if err := d.retireIncarnations(ctx); err != nil {
		return false, err
	}
	if relics > 0 {
		if err := d.destroyNamed(ctx, relics); err != nil {
			return false, err
		}
	}
	s := &Session{Incarnation: strings.ToLower(ulid.Make().String()), lossAfter: lossAfter(d.TTL)}
	if err := d.Journal.Add(s.Incarnation); err != nil {
		return false, &journalError{err}
	}
	defer d.retire(ctx, s)
	if err := d.openSession(ctx, s); err != nil {
		return false, err
	}
	if err := d.readCreated(ctx, s); err != nil {
		return false, err
	}
	d.OnEvent("session taken", s, nil)

	// The heartbeat outlives the role: its locks must hold until its workers have stopped.
	beatCtx, stopBeat := context.WithCancel(context.WithoutCancel(ctx))
	leaseCtx, endLease := context.WithCancelCause(ctx)
	var side errgroup.Group
	side.Go(func() error {
		d.renew(beatCtx, s)
		return nil
	})
	if d.Mode == ByCheck {
		side.Go(func() error {
			d.heartbeat(beatCtx, s)
			return nil
		})
	}
	side.Go(func() error {
		if err := d.confirm(leaseCtx, s); err != nil {
			endLease(err)
		}
		return nil
	})
	err = role(leaseCtx, s)
	if cause := context.Cause(leaseCtx); errors.Is(cause, ErrLost) && !errors.Is(err, ErrWentBack) {
		err = cause
	}
	endLease(nil)
	stopBeat()
	_ = side.Wait() // both always return nil
	return true, err
}

// heartbeat keeps the check passing at the local agent. It proves nothing: see confirm.
func (d *daemon) heartbeat(ctx context.Context, s *Session) {
	ticker := time.NewTicker(d.TTL / 4)
	defer ticker.Stop()
	for {
		callCtx, cancel := context.WithTimeout(ctx, d.TTL)
		err := d.vouch(callCtx, s)
		if err == nil {
			err = d.live.Agent().UpdateTTLOpts(d.checkID(s.Incarnation), "", api.HealthPassing, new(api.QueryOptions).WithContext(callCtx))
		}
		cancel()
		if err != nil && ctx.Err() == nil {
			d.OnEvent("heartbeat failed", s, err)
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// lossAfter is how long after the last confirmation a session counts as lost. The confirming query takes TTL/2.
func lossAfter(ttl time.Duration) time.Duration { return ttl + ttl/2 }

// confirm asks the servers for the session in a standing query. It returns nil when ctx ends, and ErrLost when the
// session is gone or nobody confirmed it in time.
func (d *daemon) confirm(ctx context.Context, s *Session) error {
	var index uint64
	for {
		deadline := s.lastConfirmed().Add(lossAfter(d.TTL))
		queryCtx, cancel := context.WithDeadline(ctx, deadline)
		opts := &api.QueryOptions{WaitIndex: index, WaitTime: d.TTL / 2}
		sent := time.Now()
		entry, meta, err := d.live.Session().Info(s.Releasing, opts.WithContext(queryCtx))
		cancel()
		switch {
		case ctx.Err() != nil:
			return nil //nolint:nilerr // the end of ctx is no loss
		case err == nil && entry == nil && d.hidden(meta):
			return fmt.Errorf("%w: read session %s: %w", ErrLost, s.Releasing, ErrFiltered)
		case err == nil && entry == nil:
			return &vanishedError{session: s.Releasing, created: s.created}
		case err == nil:
			s.Confirm(sent)
			index = meta.LastIndex
			if meta.LastIndex < opts.WaitIndex {
				index = 0
			}
			continue
		}
		if left := s.Left(); left <= 0 {
			return fmt.Errorf("%w: no server confirmed session %s for %s: %w", ErrLost, s.Releasing, (s.lossAfter - left).Round(time.Millisecond), err)
		}
		index = 0
		if wait.Pause(ctx, d.TTL/20) != nil {
			return nil //nolint:nilerr // the end of ctx is no loss
		}
	}
}
