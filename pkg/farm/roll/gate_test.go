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

// hook is a gate that a test answers for.
type hook struct {
	asked   []string // questions, as texts
	ended   []string // how calls ended: "cancelled" or the answer
	told    []error  // by Gate, about answers
	answers chan error
	lingers time.Duration // for which a call that is cancelled goes on
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
	g.Call(t.Context(), &record, call, h.ask, func(err error) { h.told = append(h.told, err) })
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

// A gate is asked once for each call; the same call that is under way is not made again.
func TestAGateIsAskedOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g, h := &roll.Gate{}, newHook()
		defer g.Stop()
		if g.Answer("one") != nil {
			t.Error("an answer before a call")
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
		if len(h.told) != 1 || h.told[0] != nil {
			t.Errorf("told %v", h.told)
		}
	})
}

// What a gate is asked says all that it needs to know.
func TestTheQuestion(t *testing.T) {
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
		"a later one, nothing goes up": {
			rollout.Record{ID: "one", Gate: &rollout.Gate{Tries: 2}, Revisions: []rollout.Revision{{
				Rev:       3,
				Direction: rollout.Down,
			}}},
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

// Whatever a gate's call ends with but nil is a no, a panic too.
func TestANo(t *testing.T) {
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
			if len(h.told) != 1 || h.told[0] == nil {
				t.Errorf("%s: told %v", text, h.told)
			}
		})
	}
}

// Another call replaces the one under way, which is cancelled and has ended before the next one is made. Its answer is
// never given.
func TestACallIsReplaced(t *testing.T) {
	t.Parallel()
	const lingers = 3 * time.Second
	next := before(1)
	next.Index = 1
	after := before(1)
	after.Phase = rollout.AfterStage
	for name, tt := range map[string]struct {
		id    string
		call  *rollout.GateCall
		asked string // "": nobody
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
				if got := g.Answer(id); got != nil || len(h.told) > 0 {
					t.Errorf("%s: %s has the answer %+v, told %v", name, id, got, h.told)
				}
			}
		})
	}
}

// An answer is of the rollout whose call it was. The next call after an answer that was taken is made, be it the same.
func TestAnAnswerIsOfItsRollout(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g, h := &roll.Gate{}, newHook()
		defer g.Stop()
		h.call(t, g, "one", before(1))
		h.answers <- errors.New("no")
		synctest.Wait()
		if got := g.Answer("two"); got != nil {
			t.Errorf("another rollout is given %+v", got)
		}
		for range 2 { // a step that did not land is decided again
			if got := g.Answer("one"); got == nil || got.Error != "no" {
				t.Errorf("the answer is %+v", got)
			}
		}
		h.call(t, g, "one", before(1))
		h.expect(t, "asked", h.asked, "one before-stage 1 try 2", "one before-stage 1 try 2")
		if got := g.Answer("one"); got != nil {
			t.Errorf("the answer of the try before is given: %+v", got)
		}
	})
}

// An answer that comes after a look has asked for it, while that look's step is written, is that of the call which the
// step asks for. The gate is not asked a second time, and the next look is given the answer.
func TestAnAnswerThatComesDuringAStep(t *testing.T) {
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

// Stop ends the call and waits for it; there is no answer afterwards, and nobody is told. Where nobody is asked it
// does nothing.
func TestStop(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g, h := &roll.Gate{}, newHook()
		g.Stop()
		h.lingers = time.Second
		h.call(t, g, "one", before(1))
		began := time.Now()
		g.Stop()
		h.expect(t, "ended", h.ended, "cancelled")
		if g.Answer("one") != nil || len(h.told) > 0 || time.Since(began) != time.Second {
			t.Errorf("answered %+v, told %v, after %s", g.Answer("one"), h.told, time.Since(began))
		}
		h.call(t, g, "one", before(1)) // the next owner's
		h.answers <- nil
		synctest.Wait()
		if g.Answer("one") == nil {
			t.Error("no answer after a stop")
		}
		g.Stop()
		if g.Answer("one") != nil {
			t.Error("the answer outlives a stop")
		}
	})
}

// A call ends with the look's context, and answers nothing then.
func TestACallEndsWithItsContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g, h := &roll.Gate{}, newHook()
		ctx, cancel := context.WithCancel(t.Context())
		g.Call(ctx, &rollout.Record{ID: "one"}, before(1), h.ask, func(err error) { h.told = append(h.told, err) })
		synctest.Wait()
		cancel()
		synctest.Wait()
		h.expect(t, "ended", h.ended, "cancelled")
		if g.Answer("one") != nil || len(h.told) > 0 {
			t.Errorf("answered %+v, told %v", g.Answer("one"), h.told)
		}
		g.Stop()
	})
}
