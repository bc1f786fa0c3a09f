package rollout

import (
	"fmt"
	"time"
)

// gatesAgree asks one webhook after the other, and reports whether all have agreed. A rollback asks none.
func (s stage) gatesAgree(hooks []Hook) bool {
	r := s.Record
	if r.SkipGates || r.State == RollingBack || len(hooks) == 0 {
		return true
	}
	if r.Gate == nil {
		r.Gate = &Gate{}
	}
	if !s.gateAnswered(hooks) {
		return false
	}
	g := r.Gate
	if g.Index >= len(hooks) {
		return true
	}
	if g.NextAt != nil && s.Now().Before(*g.NextAt) {
		s.lookWithin(g.NextAt.Sub(s.Now()))
		return false
	}
	hook := hooks[g.Index]
	s.d.Gate = &GateCall{
		Hook: hook, Timeout: hook.Timeout.Or(DefaultGateTimeout),
		Phase: r.Phase, Index: g.Index, Stage: r.Stage, Stages: r.Stages,
	}
	s.lookWithin(recheckAfter)
	return false
}

// gateAnswered handles the webhook's answer. It returns false if no try is left.
func (s stage) gateAnswered(hooks []Hook) bool {
	r, g, a := s.Record, s.Record.Gate, s.obs.Gate
	if a == nil || s.asked || a.Phase != r.Phase || a.Index != g.Index || a.Stage != r.Stage || g.Index >= len(hooks) {
		return true
	}
	s.asked = true
	if a.Error == "" {
		*g = Gate{Index: g.Index + 1}
		return true
	}
	retries := DefaultGateRetries
	if n := hooks[g.Index].Retries; n != nil {
		retries = *n
	}
	g.Tries++
	g.Error = a.Error
	if g.Tries > retries {
		s.stageFailed(fmt.Sprintf("gate %s refused stage %d: %s", hooks[g.Index].URL, r.Stage, a.Error), hopeless)
		return false
	}
	g.NextAt = new(s.Now().Add(time.Duration(g.Tries) * time.Second))
	return true
}
