package roll_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/rcfarm/rcfarm/pkg/farm/roll"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/rollout"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// If a rollout cannot be worked on, its record has the reason and people are alerted, once for each reason. Nothing
// else changes.
func TestARolloutThatCannotBeWorkedOnHasAReason(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", rc.MaxReason)
	for name, tt := range map[string]struct {
		before, why string
		none        bool
	}{
		"it moved":               {"", "panic: gone", false},
		"it was blocked":         {"the breaker is tripped", "panic: gone", false},
		"it has the reason":      {rc.CannotWork + "panic: gone", "panic: gone", true},
		"it has another reason":  {rc.CannotWork + "panic: lost", "panic: gone", false},
		"a long reason":          {"", long, false},
		"it has the long reason": {"cut", long, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			u := seen().Unit
			u.Rollout.Value.BlockedReason = tt.before
			if tt.before == "cut" {
				first := roll.Stopped(seen().Unit, schemaIndex, breakerIndex, tt.why)
				u.Rollout.Value.BlockedReason = first.Record.BlockedReason
			}
			before := u.Rollout.Value.BlockedReason
			step := roll.Stopped(u, schemaIndex, breakerIndex, tt.why)
			if tt.none || step == nil {
				if !tt.none || step != nil {
					t.Errorf("the step is %+v", step)
				}
				return
			}
			reason := step.Record.BlockedReason
			if !strings.HasPrefix(reason, rc.CannotWork+tt.why[:5]) || len(reason) > rc.MaxReason {
				t.Errorf("the blocked reason is %q", reason)
			}
			if step.Trouble == nil || *step.Trouble != (store.RolloutTrouble{Rollout: "one", Reason: reason}) {
				t.Errorf("people are alerted to %+v", step.Trouble)
			}
			if step.Unit != u || step.Schema != schemaIndex || step.Breaker != breakerIndex || step.Ended ||
				step.RCs != nil || step.Audit != nil {
				t.Errorf("%+v", step)
			}
			if step.Record.State != rollout.Progressing || step.Record.ID != "one" ||
				u.Rollout.Value.BlockedReason != before {
				t.Errorf("the record is %+v, what was read %+v", step.Record, u.Rollout.Value)
			}
		})
	}
}

// People are alerted to the trouble of a step until the rollout goes on, and after its end until the next rollout
// begins.
func TestPeopleAreAlertedUntilTheRolloutGoesOn(t *testing.T) {
	t.Parallel()
	unreadable := &store.CorruptError{Key: "rollouts/x", Err: errors.New("bad")}
	for name, tt := range map[string]struct {
		state   rollout.State // "": there is no rollout
		blocked string
		err     error
		trouble *store.RolloutTrouble
		want    string
	}{
		"no rollout":                {},
		"a rollout without trouble": {state: rollout.RollingBack},
		"it rolls back":             {state: rollout.RollingBack, trouble: troubleOf("one", false), want: "why"},
		"it is paused":              {state: rollout.Paused, trouble: troubleOf("one", false), want: "why"},
		"it moves again":            {state: rollout.Progressing, trouble: troubleOf("one", false)},
		"it waits for promote":      {state: rollout.WaitingForPromote, trouble: troubleOf("one", false)},
		"the breaker blocks it": {
			state: rollout.Progressing, blocked: "the breaker", trouble: troubleOf("one", false),
		},
		"it cannot be worked on": {
			state: rollout.Progressing, blocked: rc.CannotWork + "x",
			trouble: troubleOf("one", false), want: "why",
		},
		"it cannot be worked on, while it waits": {
			state: rollout.WaitingForPromote, blocked: rc.CannotWork,
			trouble: troubleOf("one", false), want: "why",
		},
		"another one cannot be worked on": {
			state: rollout.Progressing, blocked: rc.CannotWork, trouble: troubleOf("two", false),
		},
		"another one rolls back":          {state: rollout.RollingBack, trouble: troubleOf("two", false)},
		"another one, after a failure":    {state: rollout.RollingBack, trouble: troubleOf("two", true)},
		"the failed one is over":          {trouble: troubleOf("one", true), want: "why"},
		"one that ended well left it":     {trouble: troubleOf("one", false)},
		"it cannot be read":               {err: unreadable, want: unreadable.Error()},
		"it cannot be read, and had some": {err: unreadable, trouble: troubleOf("one", true), want: unreadable.Error()},
	} {
		u := &store.Unit{ID: unit, RolloutErr: tt.err}
		if tt.state != "" {
			u.Rollout = store.Rec[rollout.Record]{
				Value: rollout.Record{ID: "one", State: tt.state, BlockedReason: tt.blocked}, Index: rolloutIndex,
			}
		}
		if tt.trouble != nil {
			u.Trouble = store.Rec[store.RolloutTrouble]{Value: *tt.trouble, Index: troubleIndex}
		}
		if got := roll.Trouble(u); got != tt.want {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
	}
}

// The trouble is removed when the rollout goes on, so that people are not alerted to it again if an operator pauses the
// rollout later.
func TestTroubleIsForgottenWhenTheRolloutGoesOn(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		state   rollout.State
		blocked string
		alert   string
		forgets bool
	}{
		"it was resumed":             {state: rollout.Progressing, forgets: true},
		"it waits for promote":       {state: rollout.WaitingForPromote, forgets: true},
		"the breaker blocks it":      {state: rollout.Progressing, blocked: "the breaker", forgets: true},
		"it is paused":               {state: rollout.Paused},
		"it rolls back":              {state: rollout.RollingBack},
		"it cannot be worked on":     {state: rollout.Progressing, blocked: rc.CannotWork + "x"},
		"it has another trouble":     {state: rollout.Progressing, alert: "it waits"},
		"it failed, and people know": {state: rollout.Failed, alert: "it has failed"},
	} {
		s := seen()
		s.Unit.Trouble = store.Rec[store.RolloutTrouble]{Value: *troubleOf("one", false), Index: troubleIndex}
		d := rollout.Decision{Record: s.Unit.Rollout.Value, Write: true, Alert: tt.alert, Ended: tt.state.Ended()}
		d.Record.State, d.Record.BlockedReason = tt.state, tt.blocked
		if got := roll.StepOf(s, &d, "f").ForgetsTrouble(); got != tt.forgets {
			t.Errorf("%s: forgotten %t, want %t", name, got, tt.forgets)
		}
	}
}

func troubleOf(of string, ended bool) *store.RolloutTrouble {
	return &store.RolloutTrouble{Rollout: of, Reason: "why", Ended: ended}
}
