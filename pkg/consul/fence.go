package consul

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/rcfarm/rcfarm/pkg/wait"
)

// Fence proves, inside a transaction, that a lock is held in the very tenure in which it was taken (P1).
type Fence struct {
	Key     string // of the lock
	Session string // that holds it
	Index   uint64 // of the key since the acquisition, or since the last Bump
}

// LockedError says that somebody else holds a lock.
type LockedError struct {
	Key     string
	Session string // of the holder
	Value   []byte // that the holder wrote
}

// Error names the lock and its holder.
func (e *LockedError) Error() string {
	return fmt.Sprintf("lock %s is held by session %s", e.Key, e.Session)
}

// lockPace is that of attempts to take a lock whose outcome stays unknown.
func lockPace() *backoff.ExponentialBackOff { return wait.NewPace(50*time.Millisecond, 2*time.Second) }

// Locks are keys that sessions hold.
type Locks struct{ c *Client }

// Acquire takes a lock for a session. value is called for each attempt and must differ every time, so that the lock's
// index moves and an earlier tenure of the same session is fenced off. It returns *LockedError when another session holds
// the lock, ErrLost when the session is dead, ErrRefused when the token may not write it, ErrFiltered when it may not
// read who holds it, or the context's cause; whatever else goes wrong is tried again until the answer is definite (R9).
func (l *Locks) Acquire(ctx context.Context, key, session string, value func() []byte) (Fence, error) {
	f, _, err := l.acquire(ctx, l.c.commit, key, session, value, nil)
	return f, err
}

// sender carries out a transaction.
type sender func(ctx context.Context, ops []Op) (*answer, error)

func (l *Locks) acquire(ctx context.Context, send sender, key, session string, value func() []byte, also []Op) (Fence, *answer, error) {
	if session == "" {
		return Fence{}, nil, fmt.Errorf("%w: lock %s without a session", ErrLost, key)
	}
	for pace := lockPace(); ; {
		got, err := send(ctx, append([]Op{Lock(key, value(), session)}, also...))
		if err == nil {
			if got.byKey[key] == nil { // then its index is not known
				return Fence{}, nil, fmt.Errorf("lock %s: %w", key, ErrFiltered)
			}
			return Fence{Key: key, Session: session, Index: got.byKey[key].ModifyIndex}, got, nil
		}
		if err := l.beforeNext(ctx, pace, key, session, err); err != nil {
			return Fence{}, nil, err
		}
	}
}

// beforeNext waits before the next attempt to take a lock, or returns why there shall be none.
func (l *Locks) beforeNext(ctx context.Context, pace *backoff.ExponentialBackOff, key, session string, err error) error {
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.Is(err, ErrRefused):
		if definite, why := l.whyRefused(ctx, key, session, err); definite {
			return why
		}
	case !errors.Is(err, ErrUnknown):
		return err
	}
	return wait.Pause(ctx, pace.NextBackOff())
}

// AcquireAll takes several locks for a session, in as few transactions as that fits into, and returns the fences of those that it surely
// got. One that somebody else holds keeps those of its transaction from being taken: whoever wants them takes them alone (Acquire),
// which is also right where the outcome is not known. The error is why any are missing.
func (l *Locks) AcquireAll(ctx context.Context, keys []string, session string, value func() []byte) (map[string]Fence, error) {
	fences := make(map[string]Fence, len(keys))
	if session == "" {
		return fences, fmt.Errorf("%w: %d locks without a session", ErrLost, len(keys))
	}
	var failed error
	for some := range slices.Chunk(keys, MaxTxnOps) {
		ops := make([]Op, len(some))
		for i, key := range some {
			ops[i] = Lock(key, value(), session)
		}
		written, err := l.c.Commit(ctx, ops)
		if ctx.Err() != nil {
			return fences, context.Cause(ctx)
		}
		failed = errors.Join(failed, err)
		for key, index := range written {
			if index != 0 { // else it is not known: the token may not read it
				fences[key] = Fence{Key: key, Session: session, Index: index}
			}
		}
	}
	return fences, failed
}

// AcquireIf carries an operation Lock out once may agrees to what is there, which is the zero Pair when nothing is. may is asked
// for each attempt, and the lock is taken only over what it was asked about, together with what may wants done besides, or not at all.
// Errors are those of Acquire and of may; ErrRefused also when the token may not do what is wanted besides.
func (l *Locks) AcquireIf(ctx context.Context, lock Op, may func(Pair) (besides []Op, err error)) error {
	key, session := lock.kv.Key, lock.kv.Session
	for pace := lockPace(); ; {
		present, err := l.c.Get(ctx, key, Consistent)
		unchanged := CheckIndex(key, present.ModifyIndex)
		if errors.Is(err, ErrNotFound) {
			unchanged, err = CheckMissing(key), nil
		}
		if err == nil {
			besides, no := may(present)
			if no != nil {
				return no
			}
			_, err = l.c.commit(ctx, append([]Op{unchanged, lock}, besides...))
		}
		if err == nil {
			return nil
		}
		if err := l.beforeNext(ctx, pace, key, session, err); err != nil {
			return err
		}
	}
}

// Bump moves the index of a lock that is held, after which no transaction with the old fence can land any more. Its
// errors are those of Acquire, with ErrLost where somebody else holds the lock.
func (l *Locks) Bump(ctx context.Context, f Fence, value func() []byte) (Fence, error) {
	next, err := l.Acquire(ctx, f.Key, f.Session, value)
	if _, locked := errors.AsType[*LockedError](err); locked {
		return Fence{}, fmt.Errorf("%w: %w", ErrLost, err)
	}
	return next, err
}

// whyRefused tells a lock that is held from a session that is dead, and both from a refusal for want of rights. The
// answer is not definite when none is so, as within the lock delay, or when the servers could not be asked: then trying
// again is right.
func (l *Locks) whyRefused(ctx context.Context, key, session string, refused error) (definite bool, why error) {
	if r, is := errors.AsType[*RefusedError](refused); is && r.Denied() {
		return true, refused
	}
	pair, err := l.c.Get(ctx, key, Consistent)
	switch {
	case errors.Is(err, ErrFiltered):
		return true, err
	case err != nil && !errors.Is(err, ErrNotFound):
		return false, err
	case err == nil && pair.Session != "" && pair.Session != session:
		return true, &LockedError{Key: key, Session: pair.Session, Value: pair.Value}
	}
	alive, err := l.sessionExists(ctx, session)
	switch {
	case err != nil:
		return errors.Is(err, ErrFiltered), err
	case !alive:
		return true, fmt.Errorf("%w: session %s does not exist", ErrLost, session)
	default:
		return false, nil
	}
}

// Release gives a lock up and leaves the value behind. It returns ErrRefused when the session did not hold the lock, and
// ErrUnknown when it may or may not have worked.
func (l *Locks) Release(ctx context.Context, f Fence, value []byte) error {
	_, err := l.c.Commit(ctx, []Op{Unlock(f.Key, value, f.Session)})
	return err
}
