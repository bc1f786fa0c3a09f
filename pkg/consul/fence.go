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

// Fence proves, inside a transaction, that a lock is still held in the same tenure (P1).
type Fence struct {
	Key     string // of the lock
	Session string // the session that holds the lock
	Index   uint64 // of the key since the acquisition, or since the last Bump
}

// Ops returns the two conditions. Consul refuses them after the lock was lost, or taken again.
func (f Fence) Ops() []Op {
	return []Op{CheckSession(f.Key, f.Session), CheckIndex(f.Key, f.Index)}
}

// LockedError means that another session holds a lock.
type LockedError struct {
	Key     string
	Session string // of the holder
	Value   []byte // the value that the holder wrote
}

// Error names the lock and its holder.
func (l *LockedError) Error() string {
	return fmt.Sprintf("lock %s is held by session %s", l.Key, l.Session)
}

func lockPace() *backoff.ExponentialBackOff { return wait.NewPace(50*time.Millisecond, 2*time.Second) }

// Locks has the calls about locks. A lock is a key that a session holds.
type Locks struct{ c *Client }

// Acquire takes a lock for a session. value is called for each attempt, and must return a new value each time. This
// changes the lock's index, so Consul refuses the fence of an earlier tenure of the same session. Acquire returns:
//   - *LockedError if another session holds the lock;
//   - ErrLost if the session is dead;
//   - ErrRefused if the token may not write the lock;
//   - ErrFiltered if the token may not read the lock;
//   - the context's cause.
//
// After any other error it tries again, until the answer is definite (R9).
func (l *Locks) Acquire(ctx context.Context, key, session string, value func() []byte) (Fence, error) {
	f, _, err := l.acquire(ctx, l.c.commit, key, session, value, nil)
	return f, err
}

type sender func(ctx context.Context, ops []Op) (*answer, error)

func (l *Locks) acquire(ctx context.Context, send sender, key, session string, value func() []byte,
	also []Op,
) (Fence, *answer, error) {
	if session == "" {
		return Fence{}, nil, fmt.Errorf("%w: lock %s without a session", ErrLost, key)
	}
	for pace := lockPace(); ; {
		got, err := send(ctx, append([]Op{Lock(key, value(), session)}, also...))
		if err == nil {
			if got.byKey[key] == nil { // the token may not read the key, so the lock's index is unknown
				return Fence{}, nil, fmt.Errorf("lock %s: %w", key, ErrFiltered)
			}
			return Fence{Key: key, Session: session, Index: got.byKey[key].ModifyIndex}, got, nil
		}
		if err := l.beforeNext(ctx, pace, key, session, err); err != nil {
			return Fence{}, nil, err
		}
	}
}

// beforeNext waits before the next attempt, or returns why there must be none.
func (l *Locks) beforeNext(ctx context.Context, pace *backoff.ExponentialBackOff, key, session string,
	err error,
) error {
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

// AcquireAll takes several locks for a session, in few transactions, and returns the fences that it certainly got. If
// another session holds a lock, the other locks of the same transaction are missing, too, and there is an error. It is
// the same after an unknown outcome. A lock that the token may not read is missing without an error. The caller must
// take missing locks with Acquire.
func (l *Locks) AcquireAll(ctx context.Context, keys []string, session string,
	value func() []byte,
) (map[string]Fence, error) {
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
			if index != 0 { // zero: the token may not read the key
				fences[key] = Fence{Key: key, Session: session, Index: index}
			}
		}
	}
	return fences, failed
}

// AcquireIf takes a lock if `may` allows it. lock is the operation Lock. Before each attempt, `may` gets the present
// pair; the zero Pair: no key. One transaction takes the lock and carries out the operations in `besides`, if the pair
// is unchanged since the read. AcquireIf returns the errors of Acquire and of `may`, and ErrRefused if the token may
// not carry out an operation in `besides`.
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

// Bump moves the index of a held lock, so no transaction with the old fence can land any more. It returns the errors of
// Acquire, and ErrLost if another session holds the lock.
func (l *Locks) Bump(ctx context.Context, f Fence, value func() []byte) (Fence, error) {
	next, err := l.Acquire(ctx, f.Key, f.Session, value)
	if _, locked := errors.AsType[*LockedError](err); locked {
		return Fence{}, fmt.Errorf("%w: %w", ErrLost, err)
	}
	return next, err
}

// whyRefused finds out whether another session holds the lock, the session is dead, or the token lacks a right.
// Otherwise the answer is not definite, for example within the lock delay.
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

// Release releases a lock and leaves the value in it. ErrRefused: the session did not hold it. ErrUnknown: it may have
// worked.
func (l *Locks) Release(ctx context.Context, f Fence, value []byte) error {
	_, err := l.c.Commit(ctx, []Op{Unlock(f.Key, value, f.Session)})
	return err
}
