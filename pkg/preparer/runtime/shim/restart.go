package shim

import (
	"context"
	"fmt"

	"github.com/rcfarm/rcfarm/pkg/preparer/runtime"
)

// renewal is what the process's run loop needs to end a run because somebody has asked for the next. The process's mu
// guards it.
type renewal struct {
	asked *runtime.RestartRequest // for the present run; nil: nobody has
	wake  context.CancelFunc      // has the run loop look at that; nil while it attends to no run
}

// restart has the run loop end a run and start the next, unless the run is over or about to be. It writes nothing: if
// the supervisor dies before the run has ended, whoever asked finds the run still there, and asks again.
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

// renew notes what was asked for, and returns whether that is news about what runs.
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

// hold returns a context that ends with recalled, and as soon as somebody asks for the end of the present run.
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

// askedFor returns what was asked for about a run that has not ended by itself, nil for nothing.
func (p *process) askedFor(c *child) *runtime.RestartRequest {
	p.mu.Lock()
	defer p.mu.Unlock()
	if c.Exited() {
		return nil
	}
	return p.renewal.asked
}
