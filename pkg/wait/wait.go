// Package wait has what loops are made of: pauses that the end of their context cuts short, a signal that wakes one, and paces of tries.
// Every daemon's loops use it; nothing here outlives its context.
package wait

import (
	"context"
	"time"

	"github.com/cenkalti/backoff/v5"
)

// Signal wakes one waiting goroutine. Raising it again before it is seen changes nothing.
type Signal chan struct{}

// NewSignal returns one that is not raised.
func NewSignal() Signal { return make(Signal, 1) }

// Raise wakes whoever waits, or comes next.
func (s Signal) Raise() {
	select {
	case s <- struct{}{}:
	default:
	}
}

// Pause waits, or returns the cause of the context's end.
func Pause(ctx context.Context, d time.Duration) error {
	_, err := PauseUnless(ctx, nil, d)
	return err
}

// PauseUnless waits until the signal is raised, which it reports, or the time is over. The error is the cause of the context's end.
func PauseUnless(ctx context.Context, wake Signal, d time.Duration) (woken bool, err error) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return false, nil
	case <-wake:
		return true, nil
	case <-ctx.Done():
		return false, context.Cause(ctx)
	}
}

// Each calls look until ctx ends: at once, and again when the signal is raised, which may be nil, or the time that look returned is over.
func Each(ctx context.Context, wake Signal, look func() (next time.Duration)) {
	for ctx.Err() == nil {
		_, _ = PauseUnless(ctx, wake, look()) // the loop sees the end of ctx
	}
}

// NewPace returns the pauses between tries: the first, and what they grow to.
func NewPace(first, most time.Duration) *backoff.ExponentialBackOff {
	pace := backoff.NewExponentialBackOff()
	pace.InitialInterval, pace.MaxInterval = first, most
	return pace
}
