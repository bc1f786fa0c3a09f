package shim

import (
	"context"
	"fmt"

	"github.com/rcfarm/rcfarm/pkg/preparer/runtime"
)

// renewal is a client's request to end the present run and start the next. process.mu guards it.
type renewal struct {
	asked *runtime.RestartRequest // the request for the present run; nil: none
	wake  context.CancelFunc      // makes the run loop read asked; nil while no run is attended
}

// restart makes the run loop end a run and start the next run. It writes nothing to the disk. If the supervisor dies
// before the run has ended, the client sees that the run still exists, and asks again.
func (s *supervisor) restart(ask runtime.RestartRequest) error {
	p := s.find(ask.ID)
	if p == nil {
		return nil
	}
	p.op.Lock()
	defer p.op.Unlock()
	if p.broken != nil {
		return fmt.Errorf("%w; %s", p.broken, byHand)
	}
	if p.current().Spec.Restart.Policy == runtime.Never {
		return fmt.Errorf("%w: restart %s: its restart policy is never", runtime.ErrInvalid, ask.ID)
	}
	if p.renew(ask) {
		p.log("process asked to end, to be started again", map[string]any{"pid": ask.PID, "reason": ask.Reason})
	}
	return nil
}

// renew stores the request, and returns true, if it is about the present run and no other request is stored.
func (p *process) renew(ask runtime.RestartRequest) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	meant := p.rec.PID == ask.PID && p.rec.StartedAt.Equal(ask.StartedAt)
	if !meant || p.toStop() || p.renewal.wake == nil || p.renewal.asked != nil {
		return false
	}
	p.renewal.asked = &ask
	p.renewal.wake()
	return true
}

// hold returns a context that ends when recalled ends, or when a client asks for the end of the present run.
func (p *process) hold(recalled context.Context) (held context.Context, release func()) {
	held, wake := context.WithCancel(recalled)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.renewal = renewal{wake: wake}
	return held, func() {
		wake()
		p.mu.Lock()
		defer p.mu.Unlock()
		p.renewal = renewal{}
	}
}

// If the run has ended by itself, askedFor returns nil.
func (p *process) askedFor(c *child) *runtime.RestartRequest {
	p.mu.Lock()
	defer p.mu.Unlock()
	if c.Exited() {
		return nil
	}
	return p.renewal.asked
}
