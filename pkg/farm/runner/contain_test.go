package runner_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/rcfarm/rcfarm/pkg/consultest"
	"github.com/rcfarm/rcfarm/pkg/farm/runner"
	"github.com/rcfarm/rcfarm/pkg/rollout"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// dying panics when it is to write a step that moves counts.
type dying struct {
	runner.Session
	ill *atomic.Bool
}

func (d dying) CommitRollout(ctx context.Context, s *store.RolloutStep) (uint64, error) {
	if d.ill.Load() && len(s.RCs) > 0 {
		panic("a step that nobody can write")
	}
	return d.Session.CommitRollout(ctx, s)
}

// A look at a rollout that panics ends nothing but the look: the record and an incident say so, and the rollout goes on
// when looks go well again.
func TestAPanicInALookAtARolloutIsContained(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.running(3)
	w.owners()
	var ill atomic.Bool
	ill.Store(true)
	f := &farm{id: "f", wrap: func(s runner.Session) runner.Session { return dying{s, &ill} }}
	w.runs(f, w.addr, nil)
	w.deploy(2, 3, nil)
	consultest.Eventually(t, soon, func() error {
		r, err := w.record()
		if err == nil && !strings.Contains(r.BlockedReason, "it cannot be worked on: panic: a step that nobody can write") {
			err = fmt.Errorf("nothing moves because of %q", r.BlockedReason)
		}
		return err
	})
	consultest.Eventually(t, soon, func() error {
		incident, err := w.RolloutIncidents.Get(t.Context(), store.Default, "web")
		if err == nil && (incident.Value.ResolvedAt != nil || incident.Value.AlertedAt == nil || !strings.Contains(incident.Value.Reason, "cannot be worked on")) {
			err = fmt.Errorf("the incident is %+v", incident.Value)
		}
		return err
	})
	ill.Store(false)
	if outcome, reason := w.ended(2); outcome != string(rollout.Done) {
		t.Errorf("%s: %s", outcome, reason)
	}
}
