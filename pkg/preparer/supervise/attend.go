package supervise

import (
	"context"
	"errors"
	"time"

	"github.com/rcfarm/rcfarm/pkg/wait"
)

// ErrSilent is what calls end with while the runtime is known not to answer. What was asked for may still be done when
// it goes on.
var ErrSilent = errors.New("the node's supervisor does not answer")

// looks is how many times the wait for an answer is divided. A preparer that stood still itself has lost one of these,
// and finds the answer after it.
const looks = 10

// Attend asks the runtime whether it answers, again and again until ctx ends. While an answer is awaited for longer
// than the given time, it calls told with true, once in a while, and all other calls to the runtime end with ErrSilent.
// When the answer comes it calls told with false. It asks once, and waits for that answer: a supervisor that stands
// still is not left with a heap of questions.
func (s *Processes) Attend(ctx context.Context, every, after time.Duration, told func(silent bool)) {
	s.heed(false, told)
	for wait.Pause(ctx, every) == nil {
		answer := make(chan error, 1)
		go func() { answer <- s.runtime.Ping(ctx) }()
		for look, waits := 0, true; waits; look++ {
			timer := time.NewTimer(after / looks)
			select {
			case err := <-answer:
				if waits = false; ctx.Err() == nil {
					s.heed(err != nil, told)
				}
			case <-timer.C:
				if look+1 >= looks {
					s.heed(true, told)
				}
			}
			timer.Stop()
		}
	}
}

// heed has calls to the runtime end, or lets them be made again, before anybody is told.
func (s *Processes) heed(silent bool, told func(silent bool)) {
	s.mu.Lock()
	select {
	case <-s.silent:
		if !silent {
			s.silent = make(chan struct{})
		}
	default:
		if silent {
			close(s.silent)
		}
	}
	s.mu.Unlock()
	told(silent)
}

// answering makes a call to the runtime, whose context ends when the runtime is known not to answer. The error is
// ErrSilent then.
func (s *Processes) answering(ctx context.Context, call func(ctx context.Context) error) error {
	s.mu.Lock()
	silent := s.silent
	s.mu.Unlock()
	select {
	case <-silent:
		return ErrSilent
	default:
	}
	ctx, cancel := context.WithCancelCause(ctx)
	over := make(chan struct{})
	defer func() { cancel(nil); <-over }()
	go func() {
		defer close(over)
		select {
		case <-silent:
			cancel(ErrSilent)
		case <-ctx.Done():
		}
	}()
	err := call(ctx)
	if err != nil && errors.Is(context.Cause(ctx), ErrSilent) {
		return ErrSilent
	}
	return err
}
