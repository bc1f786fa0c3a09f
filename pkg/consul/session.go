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

// lockDelay is the shortest that the API can express, because zero means 15 s. The fence makes it safe.
const lockDelay = time.Millisecond

// SessionConfig describes one daemon's liveness.
type SessionConfig struct {
	Kind string // "farm" or "preparer"; the Consul service is rcfarm-<kind>
	Name string // stable name of the farm or node
	// Scope is the key prefix of the cluster. It tells apart daemons of several clusters on one Consul. When the store
	// went back in time, a daemon destroys all earlier sessions of its kind, name and scope (R5).
	Scope string
	Mode  SessionMode // ByCheck when empty
	// TTL is of the check, at least 1 s; zero: DefaultTTL. With ByTTL it is of the sessions, at least MinSessionTTL.
	TTL time.Duration
	// SessionTTL is the TTL of the sessions, besides the check; at least TTL and MinSessionTTL. If Consul refuses the
	// agent's token, the agent cannot sync the failing check. Then the sessions still end within twice SessionTTL.
	SessionTTL time.Duration
	Meta       map[string]string // of the service
	// Journal remembers incarnations across restarts, so that the next start deregisters exactly its own (R11). Without
	// it, a killed process holds its locks until the TTL is over.
	Journal Journal
	// OnEvent, if set, is called when a session is taken or lost, and for errors, by several goroutines at once. The
	// session is nil if the event is about none.
	OnEvent func(event string, s *Session, err error)
	// OnRenewed, if set, is called after each renewal, with the interval. After an error both are tried again sooner.
	// Unless it matches ErrRefused, OnEvent gets it as "renewing the session failed".
	OnRenewed func(ctx context.Context, s *Session, every time.Duration) error
	// Stuck, if set, reports whether a session ended for a reason that only a person can mend. Then the pauses grow to
	// 30 s, and end when the token changes.
	Stuck func(err error) bool
}

// renewEvery lets two renewals in a row fail.
func (s *SessionConfig) renewEvery() time.Duration { return s.SessionTTL / 3 }

// Journal keeps incarnation ids on the daemon's disk.
type Journal interface {
	// Incarnations returns the ids that may still be registered.
	Incarnations() ([]string, error)
	// Add records an id durably before it is registered.
	Add(incarnation string) error
	// Remove forgets an id that was deregistered.
	Remove(incarnation string) error
}

type noJournal struct{}

// Incarnations implements Journal.
func (noJournal) Incarnations() ([]string, error) { return nil, nil }

// Add implements Journal.
func (noJournal) Add(string) error { return nil }

// Remove implements Journal.
func (noJournal) Remove(string) error { return nil }

// Session is one tenure of a daemon: two Consul sessions. When they end, Consul releases the locks of Releasing, and
// deletes the keys of Deleting.
type Session struct {
	Incarnation string
	Releasing   string
	Deleting    string
	ConsulNode  string // name of the daemon's local agent; empty with ByTTL
	vouched     string // id of the token with which the check was registered; used only by the heartbeats
	created     uint64 // Consul's index at which Releasing was created
	lossAfter   time.Duration

	mu        sync.Mutex
	confirmed time.Time     // sending time of the last request that the servers answered
	asleep    time.Duration // asleep() at the time confirmed
}

// Confirm records that the servers answered a request for this session, such as a transaction with its fence.
func (s *Session) Confirm(sent time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if sent.After(s.confirmed) {
		s.confirmed, s.asleep = sent, asleep()
	}
}

// Answered confirms the session if err is nil. It returns err.
func (s *Session) Answered(sent time.Time, err error) error {
	if err == nil {
		s.Confirm(sent)
	}
	return err
}

// Left returns how long the session is valid if the servers do not answer; zero or less: it is lost. After the process
// was suspended, or its machine slept, Left shows that at once, even before the role's context has ended.
func (s *Session) Left() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lossAfter - time.Since(s.confirmed) - max(0, asleep()-s.asleep)
}

// asleep returns how long the machine has slept since its boot. time.Since stops meanwhile, Consul's clock does not.
func asleep() time.Duration {
	var awake unix.Timespec
	if unix.ClockGettime(unix.CLOCK_MONOTONIC, &awake) != nil {
		return 0
	}
	return sinceStart() - time.Duration(awake.Nano())
}

// sinceStart returns the time since boot, including sleep. It panics without this clock, which Linux has since 2.6.39.
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

// ErrWentBack is the error of a role that has seen the store go back in time. A restore can bring old sessions back. So
// RunSession then destroys all sessions of the daemon's name (R5).
var ErrWentBack = errors.New("the store went back in time")

// ErrUnanswered is joined to ErrWentBack if the receiver of a watch could not act on the return in time. The next watch
// of the same keys reports it again.
var ErrUnanswered = errors.New("not answered yet")

// RunSession holds a session and runs the role under it, again and again, until ctx ends. If the servers do not confirm
// the session, the role's context ends at once with ErrLost. The role must then stop all that it has started, and
// return. After that, RunSession destroys the sessions, which releases every lock. It returns the cause of ctx's end,
// or an error that another try cannot mend: of the journal, or a wrong mode.
func (c *Client) RunSession(ctx context.Context, cfg SessionConfig, role func(context.Context, *Session) error) error {
	d, err := c.newDaemon(cfg)
	if err != nil {
		return err
	}
	pace := newPaces()
	var relics uint64 // sessions of this name with a lower creation index are old
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
			relics = max(relics, vanished.created) // the session may have vanished before relics was read
		}
		d.OnEvent("session ended", nil, err)
		if err := pace.pause(ctx, d, time.Since(started), err); err != nil {
			return err
		}
	}
	return context.Cause(ctx)
}

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

func (j *journalError) Error() string { return "incarnation journal: " + j.err.Error() }
func (j *journalError) Unwrap() error { return j.err }

// vanishedError means that the servers do not know a session any more, perhaps because an older snapshot was restored.
// A restore brings back old sessions. Watches alone may miss it: a watch sees only changes of its own keys, and the
// role may end before.
type vanishedError struct {
	session string
	created uint64 // index
}

func (v *vanishedError) Error() string {
	return fmt.Sprintf("%v: the servers do not know session %s any more", ErrLost, v.session)
}

// Is matches ErrLost.
func (v *vanishedError) Is(target error) bool { return target == ErrLost }

// oneSession runs the role in one tenure. taken: the session was created, and the role ran.
func (d *daemon) oneSession(ctx context.Context, relics uint64,
	role func(context.Context, *Session) error,
) (taken bool, err error) {
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

	// The heartbeat outlives the role, because locks must be held until the role's workers have stopped.
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
	_ = side.Wait() // the functions always return nil
	return true, err
}

// heartbeat keeps the check passing at the local agent. It proves nothing about the session; confirm does.
func (d *daemon) heartbeat(ctx context.Context, s *Session) {
	ticker := time.NewTicker(d.TTL / 4)
	defer ticker.Stop()
	for {
		callCtx, cancel := context.WithTimeout(ctx, d.TTL)
		err := d.vouch(callCtx, s)
		if err == nil {
			err = d.live.Agent().UpdateTTLOpts(d.checkID(s.Incarnation), "", api.HealthPassing,
				new(api.QueryOptions).WithContext(callCtx))
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

// lossAfter is how long after its last confirmation a session is lost. The query of confirm takes TTL/2.
func lossAfter(ttl time.Duration) time.Duration { return ttl + ttl/2 }

// confirm asks the servers for the session in blocking queries. It returns nil when ctx ends, and ErrLost when the
// session is gone or was not confirmed in time.
func (d *daemon) confirm(ctx context.Context, s *Session) error {
	var index uint64
	for {
		deadline := s.lastConfirmed().Add(lossAfter(d.TTL))
		queryCtx, cancel := context.WithDeadline(ctx, deadline)
		_, next, err := d.info(queryCtx, s, &api.QueryOptions{WaitIndex: index, WaitTime: d.TTL / 2})
		cancel()
		switch {
		case ctx.Err() != nil:
			return nil //nolint:nilerr // the end of ctx is no loss
		case errors.Is(err, ErrLost):
			return err
		case err == nil && next >= index:
			index = next
			continue
		case err == nil:
			index = 0
			continue
		}
		if left := s.Left(); left <= 0 {
			return fmt.Errorf("%w: no server confirmed session %s for %s: %w", ErrLost, s.Releasing,
				(s.lossAfter - left).Round(time.Millisecond), err)
		}
		index = 0
		if wait.Pause(ctx, d.TTL/20) != nil {
			return nil //nolint:nilerr // the end of ctx is no loss
		}
	}
}
