// Package roll is what the owner of a service does for its rollout (ADR 16, ADR 29), apart from reading and writing:
// what a decision is made from, what it writes, what people are alerted to, and the gates that it asks.
package roll

import (
	"context"
	"sync"
	"time"

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

// Ask asks a gate, once; an error is a no. See webhook.Ask.
type Ask func(ctx context.Context, url string, timeout time.Duration, body any) error

// Gate is the call of one rollout that is under way, or its answer. Calls run beside the looks: an operator can pause
// or abort meanwhile. The zero value asks nobody.
type Gate struct {
	mu  sync.Mutex
	now *asking // nil: nobody is asked
}

// asking is one call.
type asking struct {
	rollout string // id
	call    *rollout.GateCall
	got     *rollout.GateAnswer // nil: not yet
	given   bool                // got was, to a look
	cancel  context.CancelFunc
	done    chan struct{} // closed when the call has ended
}

// Answer returns the answer to the last call of a rollout; nil: there is none yet.
func (g *Gate) Answer(rolloutID string) *rollout.GateAnswer {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.now == nil || g.now.rollout != rolloutID {
		return nil // it has been replaced meanwhile
	}
	g.now.given = g.now.got != nil
	return g.now.got
}

// Stop ends the call. It returns when that has ended.
func (g *Gate) Stop() { g.put(nil) }

// put replaces the call, and returns when that before has ended.
func (g *Gate) put(next *asking) {
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

// under reports whether the same call is being made, or has an answer that no look was given yet: it may have come
// while a step was written.
func (g *Gate) under(rolloutID string, call *rollout.GateCall) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	a := g.now
	return a != nil && a.rollout == rolloutID && !a.given && a.call.Phase == call.Phase && a.call.Index == call.Index && a.call.Stage == call.Stage
}

// Call makes the call that a decision asked for, nil for none, and ends any other one. The decision has landed: what an
// answer said that its look was given is in it. Answered is told when there is an answer.
func (g *Gate) Call(ctx context.Context, record *rollout.Record, call *rollout.GateCall, ask Ask, answered func(err error)) {
	if call != nil && g.under(record.ID, call) {
		return
	}
	if call == nil {
		g.put(nil)
		return
	}
	a := &asking{rollout: record.ID, call: call, done: make(chan struct{})}
	ctx, a.cancel = context.WithCancel(ctx)
	g.put(a)
	question := questionOf(record, call)
	go func() {
		defer close(a.done)
		defer a.cancel()
		err := contain.Do(func() error { return ask(ctx, call.Hook.URL, call.Timeout, question) }) // what panics is no yes
		if ctx.Err() != nil {
			return // nobody waits for it any more
		}
		got := &rollout.GateAnswer{Phase: call.Phase, Index: call.Index, Stage: call.Stage}
		if err != nil {
			got.Error = err.Error()
		}
		g.mu.Lock()
		a.got = got
		g.mu.Unlock()
		answered(err)
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
