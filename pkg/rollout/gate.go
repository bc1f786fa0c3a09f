package rollout

import (
	"fmt"
	"time"
)

// gates asks one webhook after the other, and reports whether all have agreed. Of a rollback nobody is asked.
func (w stage) gates(hooks []Hook) bool {
	r := w.Record
	if r.SkipGates || r.State == RollingBack || len(hooks) == 0 {
		return true
	}
	if r.Gate == nil {
		r.Gate = &Gate{}
	}
	if !w.gateAnswered(hooks) {
		return false
	}
	g := r.Gate
	if g.Index >= len(hooks) {
		return true
	}
	if g.NextAt != nil && w.Now().Before(*g.NextAt) {
		w.look(g.NextAt.Sub(w.Now()))
		return false
	}
	hook := hooks[g.Index]
	w.d.Gate = &GateCall{
		Hook: hook, Timeout: hook.Timeout.Or(DefaultGateTimeout), Phase: r.Phase, Index: g.Index, Stage: r.Stage, Stages: r.Stages,
	}
	w.look(patience)
	return false
}

// gateAnswered takes the answer of the webhook that was asked. It returns false if that failed for good.
func (w stage) gateAnswered(hooks []Hook) bool {
	r, g, a := w.Record, w.Record.Gate, w.obs.Gate
	if a == nil || w.asked || a.Phase != r.Phase || a.Index != g.Index || a.Stage != r.Stage || g.Index >= len(hooks) {
		return true
	}
	w.asked = true
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
		w.stageFailed(fmt.Sprintf("gate %s refused stage %d: %s", hooks[g.Index].URL, r.Stage, a.Error), true)
		return false
	}
	next := w.Now().Add(time.Duration(g.Tries) * time.Second)
	g.NextAt = &next
	return true
}
