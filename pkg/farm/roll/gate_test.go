package roll_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rcfarm/rcfarm/pkg/farm/roll"
	"github.com/rcfarm/rcfarm/pkg/rollout"
)

// hook is a gate for which the test answers.
type hook struct {
	asked   []string // questions, as texts
	ended   []string // how calls ended: "cancelled" or the answer
	results []error  // with which Gate called answered
	answers chan error
	lingers time.Duration // how long a call goes on after it was cancelled
	timeout time.Duration // of the last call
	url     string
}

func newHook() *hook { return &hook{answers: make(chan error)} }

func (h *hook) ask(ctx context.Context, url string, timeout time.Duration, body any) error {
	q := body.(roll.Question)
	h.asked = append(h.asked, fmt.Sprintf("%s %s %d try %d", q.Rollout, q.Phase, q.Stage, q.Try))
	h.url, h.timeout = url, timeout
	select {
	case err := <-h.answers:
		h.ended = append(h.ended, fmt.Sprint("answered ", err))
		if err != nil && err.Error() == "panic" {
			panic("the gate has fallen")
		}
		return err
	case <-ctx.Done():
		<-time.After(h.lingers) // the bubble's clock
		h.ended = append(h.ended, "cancelled")
		return ctx.Err()
	}
}

func (h *hook) call(t *testing.T, g *roll.Gate, id string, call *rollout.GateCall) {
	t.Helper()
	record := rollout.Record{ID: id, Service: "web", Gate: &rollout.Gate{Tries: 1}}
	g.Call(t.Context(), &record, call, h.ask, func(err error) { h.results = append(h.results, err) })
	synctest.Wait()
}

func (h *hook) expect(t *testing.T, what string, got []string, want ...string) {
	t.Helper()
	if strings.Join(got, ", ") != strings.Join(want, ", ") {
		t.Errorf("%s: %q, want %q", what, got, want)
	}
}

func before(stage int) *rollout.GateCall {
	return &rollout.GateCall{
		Hook: rollout.Hook{URL: "http://gate"}, Timeout: time.Minute, Phase: rollout.BeforeStage,
		Stage: stage, Stages: 5,
	}
}

// The gate is asked once for each call. A call that is under way is not repeated.
func TestAGateIsAskedOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g, h := &roll.Gate{}, newHook()
		defer g.Stop()
		if g.Answer("one") != nil {
			t.Error("there is an answer before a call")
		}
		for range 3 {
			h.call(t, g, "one", before(1))
		}
		h.expect(t, "asked", h.asked, "one before-stage 1 try 2")
		if h.url != "http://gate" || h.timeout != time.Minute {
			t.Errorf("asked at %s for %s", h.url, h.timeout)
		}
		if got := g.Answer("one"); got != nil {
			t.Errorf("answered %+v already", got)
		}
		h.answers <- nil
		synctest.Wait()
		if got := g.Answer("one"); got == nil || *got != (rollout.GateAnswer{Phase: rollout.BeforeStage, Stage: 1}) {
			t.Errorf("the answer is %+v", got)
		}
		if len(h.results) != 1 || h.results[0] != nil {
			t.Errorf("results %v, want one without an error", h.results)
		}
	})
}

// The question to a gate has all that the gate needs to know.
func TestTheQuestionToAGate(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		record rollout.Record
		want   roll.Question
	}{
		"the first try": {
			rollout.Record{
				ID: "one", Service: "web", Strategy: "canary",
				Revisions: []rollout.Revision{{Rev: 3, Direction: rollout.Down}, {Rev: 4, Direction: rollout.Up}},
			},
			roll.Question{
				Service: "web", Rollout: "one", Strategy: "canary", Phase: rollout.BeforeStage, Stage: 2, Stages: 5,
				Revision: 4, Try: 1,
			},
		},
		"a later try, no revision goes up": {
			rollout.Record{
				ID: "one", Gate: &rollout.Gate{Tries: 2},
				Revisions: []rollout.Revision{{Rev: 3, Direction: rollout.Down}},
			},
			roll.Question{Rollout: "one", Phase: rollout.BeforeStage, Stage: 2, Stages: 5, Try: 3},
		},
	} {
		asked := make(chan any)
		g := &roll.Gate{}
		ask := func(_ context.Context, _ string, _ time.Duration, body any) error { asked <- body; return nil }
		g.Call(t.Context(), &tt.record, before(2), ask, func(error) {})
		if got := <-asked; !reflect.DeepEqual(got, tt.want) {
			t.Errorf("%s: %+v, want %+v", name, got, tt.want)
		}
		g.Stop()
	}
}

// Any error of a gate's call means no. So does a panic.
func TestAnErrorOfAGateMeansNo(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{"not yet": "not yet", "panic": "the gate has fallen"} {
		synctest.Test(t, func(t *testing.T) {
			g, h := &roll.Gate{}, newHook()
			defer g.Stop()
			h.call(t, g, "one", before(1))
			h.answers <- errors.New(text)
			synctest.Wait()
			if got := g.Answer("one"); got == nil || !strings.Contains(got.Error, want) {
				t.Errorf("%s: the answer is %+v", text, got)
			}
			if len(h.results) != 1 || h.results[0] == nil {
				t.Errorf("%s: results %v, want one error", text, h.results)
			}
		})
	}
}

// A new call cancels the call under way, and is made after that call has ended. No look gets the answer of a cancelled
// call.
func TestAnotherCallReplacesTheOneUnderWay(t *testing.T) {
	t.Parallel()
	const lingers = 3 * time.Second
	next := before(1)
	next.Index = 1
	after := before(1)
	after.Phase = rollout.AfterStage
	for name, tt := range map[string]struct {
		id    string
		call  *rollout.GateCall
		asked string // "": no call
	}{
		"by another stage":   {"one", before(2), "one before-stage 2 try 2"},
		"by another gate":    {"one", next, "one before-stage 1 try 2"},
		"by another phase":   {"one", after, "one after-stage 1 try 2"},
		"by another rollout": {"two", before(1), "two before-stage 1 try 2"},
		"by none":            {"one", nil, ""},
	} {
		synctest.Test(t, func(t *testing.T) {
			g, h := &roll.Gate{}, newHook()
			defer g.Stop()
			h.lingers = lingers
			h.call(t, g, "one", before(1))
			began := time.Now()
			h.call(t, g, tt.id, tt.call)
			h.expect(t, name+": ended", h.ended, "cancelled")
			if waited := time.Since(began); waited != lingers {
				t.Errorf("%s: waited for %s, want %s", name, waited, lingers)
			}
			want := []string{"one before-stage 1 try 2"}
			if tt.asked != "" {
				want = append(want, tt.asked)
			}
			h.expect(t, name+": asked", h.asked, want...)
			for _, id := range []string{"one", "two"} {
				if got := g.Answer(id); got != nil || len(h.results) > 0 {
					t.Errorf("%s: %s has the answer %+v, results %v", name, id, got, h.results)
				}
			}
		})
	}
}

// Only the rollout that made the call gets its answer. After a look has got the answer, the same call can be made
// again.
func TestOnlyTheCallingRolloutGetsTheAnswer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g, h := &roll.Gate{}, newHook()
		defer g.Stop()
		h.call(t, g, "one", before(1))
		h.answers <- errors.New("no")
		synctest.Wait()
		if got := g.Answer("two"); got != nil {
			t.Errorf("another rollout gets %+v", got)
		}
		for range 2 { // a step that was not written is decided again
			if got := g.Answer("one"); got == nil || got.Error != "no" {
				t.Errorf("the answer is %+v", got)
			}
		}
		h.call(t, g, "one", before(1))
		h.expect(t, "asked", h.asked, "one before-stage 1 try 2", "one before-stage 1 try 2")
		if got := g.Answer("one"); got != nil {
			t.Errorf("there is the answer of the earlier try: %+v", got)
		}
	})
}

// An answer may come while a step is written that asks for the same call. Then the gate is not asked again, and the
// next look gets the answer.
func TestAnAnswerDuringAStepIsForTheNextLook(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g, h := &roll.Gate{}, newHook()
		defer g.Stop()
		h.call(t, g, "one", before(1))
		if got := g.Answer("one"); got != nil {
			t.Errorf("answered %+v already", got)
		}
		h.answers <- errors.New("no")
		synctest.Wait()
		h.call(t, g, "one", before(1))
		h.expect(t, "asked", h.asked, "one before-stage 1 try 2")
		if got := g.Answer("one"); got == nil || got.Error != "no" {
			t.Errorf("the answer is %+v", got)
		}
	})
}

// Stop cancels the call and waits for its end. There is no answer afterwards. Without a call Stop does nothing.
func TestStopEndsTheCallAndWaits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g, h := &roll.Gate{}, newHook()
		g.Stop()
		h.lingers = time.Second
		h.call(t, g, "one", before(1))
		began := time.Now()
		g.Stop()
		h.expect(t, "ended", h.ended, "cancelled")
		if g.Answer("one") != nil || len(h.results) > 0 || time.Since(began) != time.Second {
			t.Errorf("answered %+v, results %v, after %s", g.Answer("one"), h.results, time.Since(began))
		}
		h.call(t, g, "one", before(1)) // the next owner's
		h.answers <- nil
		synctest.Wait()
		if g.Answer("one") == nil {
			t.Error("no answer to a call after a stop")
		}
		g.Stop()
		if g.Answer("one") != nil {
			t.Error("there is an answer after a stop")
		}
	})
}

// A call ends with the look's context, and has no answer then.
func TestACallEndsWithItsContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g, h := &roll.Gate{}, newHook()
		ctx, cancel := context.WithCancel(t.Context())
		g.Call(ctx,
			&rollout.Record{ID: "one"}, before(1), h.ask, func(err error) { h.results = append(h.results, err) })
		synctest.Wait()
		cancel()
		synctest.Wait()
		h.expect(t, "ended", h.ended, "cancelled")
		if g.Answer("one") != nil || len(h.results) > 0 {
			t.Errorf("answered %+v, results %v", g.Answer("one"), h.results)
		}
		g.Stop()
	})
}
