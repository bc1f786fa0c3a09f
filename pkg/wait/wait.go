// Package wait has pauses and signals for loops. No function here continues after its context has ended.
package wait

import (
	"context"
	"time"

	"github.com/cenkalti/backoff/v5"
)

// Signal wakes one waiting goroutine. Raising it again before that changes nothing.
type Signal chan struct{}

// NewSignal returns a signal that is not raised.
func NewSignal() Signal { return make(Signal, 1) }

// Raise wakes the goroutine that waits, or the next one that will wait.
func (s Signal) Raise() {
	select {
	case s <- struct{}{}:
	default:
	}
}

// Pause waits. If the context ends first, it returns the cause.
func Pause(ctx context.Context, d time.Duration) error {
	_, err := PauseUnless(ctx, nil, d)
	return err
}

// PauseUnless waits until the signal is raised or the time is over. If the context ends first, it returns the cause.
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

// Each calls look until ctx ends: at once, when the signal, which may be nil, is raised, and when the time is over that
// look returned.
func Each(ctx context.Context, wake Signal, look func() (next time.Duration)) {
	for ctx.Err() == nil {
		_, _ = PauseUnless(ctx, wake, look()) // the loop sees the end of ctx
	}
}

// NewPace returns growing pauses between tries, from first to most.
func NewPace(first, most time.Duration) *backoff.ExponentialBackOff {
	pace := backoff.NewExponentialBackOff()
	pace.InitialInterval, pace.MaxInterval = first, most
	return pace
}
