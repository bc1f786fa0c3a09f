// Package roll has what a service's owner does for its rollout (ADR 16, ADR 29): the input of a decision, the step that
// writes it, alerts, and calls of gates. It does not read or write Consul.
package roll

import (
	"context"
	"sync"
	"time"

	"github.com/rcfarm/rcfarm/pkg/internal/contain"
	"github.com/rcfarm/rcfarm/pkg/rollout"
)

// Question is the body of the POST to a gate.
type Question struct {
	Service  string        `json:"service"`
	Rollout  string        `json:"rollout"` // id
	Strategy string        `json:"strategy"`
	Phase    rollout.Phase `json:"phase"` // before-stage or after-stage
	Stage    int           `json:"stage"` // from 1
	Stages   int           `json:"stages"`
	Revision int64         `json:"revision"` // revision that goes up
	Try      int           `json:"try"`      // from 1
}

// Ask asks a gate once. An error means no. See webhook.Ask.
type Ask func(ctx context.Context, url string, timeout time.Duration, body any) error

// Gate is the gate call of a rollout, under way or answered. Calls do not block looks, so that an operator can pause or
// abort meanwhile. The zero value has no call.
type Gate struct {
	mu  sync.Mutex
	now *call // nil: no call
}

type call struct {
	rollout string // id
	what    *rollout.GateCall
	answer  *rollout.GateAnswer // nil: none yet
	given   bool                // a look has got the answer
	cancel  context.CancelFunc
	done    chan struct{} // closed when the call has ended
}

// Answer returns the answer to the last call of a rollout, nil for none yet.
func (g *Gate) Answer(rolloutID string) *rollout.GateAnswer {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.now == nil || g.now.rollout != rolloutID {
		return nil // no call, or one of another rollout
	}
	g.now.given = g.now.answer != nil
	return g.now.answer
}

// Stop cancels the call, and returns after it has ended.
func (g *Gate) Stop() { g.put(nil) }

func (g *Gate) put(next *call) {
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

// current reports whether the same call is under way, or has an answer that no look has received yet.
func (g *Gate) current(rolloutID string, what *rollout.GateCall) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	c := g.now
	return c != nil && c.rollout == rolloutID && !c.given &&
		c.what.Phase == what.Phase && c.what.Index == what.Index && c.what.Stage == what.Stage
}

// Call makes the call that a decision asks for (nil: none), and cancels any other. Write the decision's step before,
// because Call drops the answer that the look has received. When an answer comes, Call calls answered.
func (g *Gate) Call(
	ctx context.Context, record *rollout.Record, what *rollout.GateCall, ask Ask, answered func(err error),
) {
	if what != nil && g.current(record.ID, what) {
		return
	}
	if what == nil {
		g.put(nil)
		return
	}
	c := &call{rollout: record.ID, what: what, done: make(chan struct{})}
	ctx, c.cancel = context.WithCancel(ctx)
	g.put(c)
	question := questionOf(record, what)
	go func() {
		defer close(c.done)
		defer c.cancel()
		// A panic becomes an error, and an error means no.
		err := contain.Do(func() error { return ask(ctx, what.Hook.URL, what.Timeout, question) })
		if ctx.Err() != nil {
			return // the call was cancelled
		}
		answer := &rollout.GateAnswer{Phase: what.Phase, Index: what.Index, Stage: what.Stage}
		if err != nil {
			answer.Error = err.Error()
		}
		g.mu.Lock()
		c.answer = answer
		g.mu.Unlock()
		answered(err)
	}()
}

func questionOf(record *rollout.Record, what *rollout.GateCall) Question {
	q := Question{
		Service: record.Service, Rollout: record.ID, Strategy: record.Strategy,
		Phase: what.Phase, Stage: what.Stage, Stages: what.Stages, Try: 1,
	}
	if up := record.Upward(); up != nil {
		q.Revision = up.Rev
	}
	if record.Gate != nil {
		q.Try += record.Gate.Tries
	}
	return q
}
