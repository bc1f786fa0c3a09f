package runner

import (
	"context"
	"sync"

	"github.com/rcfarm/rcfarm/pkg/internal/contain"
	"github.com/rcfarm/rcfarm/pkg/rollout"
)

// Question is what a gate is asked: the body of the POST.
type Question struct {
	Service  string        `json:"service"`
	Rollout  string        `json:"rollout"` // id
	Strategy string        `json:"strategy"`
	Phase    rollout.Phase `json:"phase"` // before-stage or after-stage
	Stage    int           `json:"stage"` // from 1
	Stages   int           `json:"stages"`
	Revision int64         `json:"revision"` // that gets pods
	Try      int           `json:"try"`      // from 1
}

// gate is the call of one rollout that is under way, or its answer. Calls run beside the steps: an operator can pause or abort
// meanwhile.
type gate struct {
	mu  sync.Mutex
	now *asking // nil: nobody is asked
}

// asking is one call.
type asking struct {
	rollout string // id
	call    *rollout.GateCall
	got     *rollout.GateAnswer // nil: not yet
	cancel  context.CancelFunc
	done    chan struct{} // closed when the call has ended
}

// answer returns the answer to the last call of a rollout; nil: there is none yet.
func (g *gate) answer(rolloutID string) *rollout.GateAnswer {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.now == nil || g.now.rollout != rolloutID {
		return nil // it has been replaced meanwhile
	}
	return g.now.got
}

// put replaces the call, and returns when that before has ended.
func (g *gate) put(next *asking) {
	g.mu.Lock()
	before := g.now
	g.now = nil
	g.mu.Unlock()
	if before != nil {
		before.cancel()
		<-before.done
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.now = next
}

// under reports whether the same call is being made.
func (g *gate) under(rolloutID string, call *rollout.GateCall) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	a := g.now
	return a != nil && a.rollout == rolloutID && a.got == nil && a.call.Phase == call.Phase && a.call.Index == call.Index && a.call.Stage == call.Stage
}

// ask makes the call that a decision asked for, and ends any other one. The decision has landed: what an answer to an earlier call said
// is in it.
func (r *Runner) ask(ctx context.Context, record *rollout.Record, c *carried, call *rollout.GateCall) {
	if call != nil && c.gate.under(record.ID, call) {
		return
	}
	if call == nil {
		c.gate.put(nil)
		return
	}
	a := &asking{rollout: record.ID, call: call, done: make(chan struct{})}
	ctx, a.cancel = context.WithCancel(ctx)
	c.gate.put(a)
	question := questionOf(record, call)
	go func() {
		defer close(a.done)
		defer a.cancel()
		err := contain.Do(func() error { return r.cfg.Ask(ctx, call.Hook.URL, call.Timeout, question) }) // what panics is no yes
		if ctx.Err() != nil {
			return // nobody waits for it any more
		}
		got := &rollout.GateAnswer{Phase: call.Phase, Index: call.Index, Stage: call.Stage}
		if err != nil {
			got.Error = err.Error()
		}
		r.cfg.Metrics.asked(err)
		c.gate.mu.Lock()
		a.got = got
		c.gate.mu.Unlock()
		r.mu.Lock()
		defer r.mu.Unlock()
		r.want(record.Service)
	}()
}

func questionOf(record *rollout.Record, call *rollout.GateCall) Question {
	q := Question{
		Service: record.Service, Rollout: record.ID, Strategy: record.Strategy,
		Phase: call.Phase, Stage: call.Stage, Stages: call.Stages, Try: 1,
	}
	if up := record.Upward(); up != nil {
		q.Revision = up.Rev
	}
	if record.Gate != nil {
		q.Try += record.Gate.Tries
	}
	return q
}

// stopGates ends all calls, when nothing else runs any more.
func (r *Runner) stopGates() {
	for _, c := range r.carried {
		c.gate.put(nil)
	}
}
