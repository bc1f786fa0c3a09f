package supervise

import (
	"context"
	"errors"
	"time"

	"github.com/rcfarm/rcfarm/pkg/wait"
)

// ErrSilent means that the runtime does not answer. It may still carry out the call later.
var ErrSilent = errors.New("the node's supervisor does not answer")

// looks is the number of parts of the wait for an answer. If the preparer itself was suspended, only one part is over
// when it continues, so it does not report the runtime as silent.
const looks = 10

// Attend pings the runtime regularly until ctx ends. It calls report with true when a ping fails, and again and again
// while a ping lasts longer than the time after. Then all other calls end with ErrSilent. It calls report with false
// when a ping succeeds. Only one ping is under way at a time, because others would wait in a suspended supervisor.
func (p *Processes) Attend(ctx context.Context, every, after time.Duration, report func(silent bool)) {
	p.setSilent(false, report)
	for wait.Pause(ctx, every) == nil {
		answer := make(chan error, 1)
		go func() { answer <- p.runtime.Ping(ctx) }()
		for look, waits := 0, true; waits; look++ {
			timer := time.NewTimer(after / looks)
			select {
			case err := <-answer:
				if waits = false; ctx.Err() == nil {
					p.setSilent(err != nil, report)
				}
			case <-timer.C:
				if look+1 >= looks {
					p.setSilent(true, report)
				}
			}
			timer.Stop()
		}
	}
}

func (p *Processes) setSilent(silent bool, report func(silent bool)) {
	p.mu.Lock()
	select {
	case <-p.silent:
		if !silent {
			p.silent = make(chan struct{})
		}
	default:
		if silent {
			close(p.silent)
		}
	}
	p.mu.Unlock()
	report(silent)
}

// While the runtime is silent, answering returns ErrSilent.
func (p *Processes) answering(ctx context.Context, call func(ctx context.Context) error) error {
	p.mu.Lock()
	silent := p.silent
	p.mu.Unlock()
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
