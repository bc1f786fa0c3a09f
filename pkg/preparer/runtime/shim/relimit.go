package shim

import (
	"fmt"

	"github.com/rcfarm/rcfarm/pkg/preparer/runtime"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime/isolate"
)

// relimit changes the limits first in the cgroup and then in the record. If the supervisor dies in between, the next
// one restores the limits from the record, and the client asks again.
func (s *supervisor) relimit(to runtime.LimitRequest) error {
	p := s.find(to.ID)
	if p == nil {
		return fmt.Errorf("%w: there is no process %s", runtime.ErrKeepsLimits, to.ID)
	}
	p.op.Lock()
	defer p.op.Unlock()
	now := p.current().Spec
	switch {
	case p.broken != nil:
		return fmt.Errorf("%w; %s", p.broken, byHand)
	case p.removed, !p.known():
		return fmt.Errorf("%w: there is no process %s", runtime.ErrKeepsLimits, to.ID)
	case now.cgroup() == "":
		return fmt.Errorf("%w: %s has no cgroup", runtime.ErrKeepsLimits, to.ID)
	case to.CPU < 0, to.Memory < 0:
		return fmt.Errorf("%w: limits of cpu %d and memory %d; allowed: zero for none, or more", runtime.ErrInvalid,
			to.CPU, to.Memory)
	}
	next := now.limitedTo(to)
	p.limits.Lock()
	defer p.limits.Unlock()
	err := p.holdTo(next)
	if err == nil && !now.same(next) {
		err = p.amend(func(r *record) { r.Spec = next })
		if err != nil {
			if undo := p.holdTo(now); undo != nil {
				p.log("limits not taken back", map[string]any{"error": undo})
			}
		}
	}
	if err != nil {
		return fmt.Errorf("%w: %w", runtime.ErrKeepsLimits, err)
	}
	p.log("process has other limits", map[string]any{"cpu": to.CPU, "memory": to.Memory})
	return nil
}

// The process must have a cgroup.
func (l localSpec) limitedTo(to runtime.LimitRequest) localSpec {
	confined := *l.Isolation
	confined.CPU, confined.Memory = to.CPU, to.Memory
	l.Isolation = &confined
	return l
}

// The caller of holdTo holds p.limits.
func (p *process) holdTo(spec localSpec) error {
	p.mu.Lock()
	runs := p.child != nil
	p.mu.Unlock()
	if !runs || spec.cgroup() == "" {
		return nil
	}
	return isolate.Relimit(spec.cgroup(), spec.Isolation.Isolation)
}

// keepLimits gives the running process the limits in its record. They can differ if the record changed during the
// start, or if an earlier supervisor died during relimit.
func (p *process) keepLimits() {
	p.limits.Lock()
	defer p.limits.Unlock()
	if err := p.holdTo(p.current().Spec); err != nil {
		p.log("process has other limits than it is to have", map[string]any{"error": err})
	}
}

// amend is commit without a change of phase and message.
func (p *process) amend(change func(*record)) error {
	p.write.Lock()
	defer p.write.Unlock()
	next := p.current()
	change(&next)
	err := p.sup.records.Save(next)
	p.mu.Lock()
	if p.unsaved = err; err == nil {
		p.rec = next
	}
	p.mu.Unlock()
	p.sup.changed(p)
	return err
}
