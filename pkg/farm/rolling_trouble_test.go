package farm_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/consultest"
	"github.com/rcfarm/rcfarm/pkg/farm"
	"github.com/rcfarm/rcfarm/pkg/farm/roll"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/rollout"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// over waits until people were alerted to trouble, and to its end.
func (r *recorder) over(t *testing.T) {
	t.Helper()
	consultest.Eventually(t, soon, func() error {
		open := map[string]bool{}
		alerts := r.about(string(rc.RolloutTrouble))
		for _, line := range alerts {
			what, key, _ := strings.Cut(line, " ")
			open[key] = what == "raise"
		}
		for key, is := range open {
			if is {
				return fmt.Errorf("alerts %q: %s is not over", alerts, key)
			}
		}
		if len(alerts) == 0 {
			return errors.New("there was no alert")
		}
		return nil
	})
}

// A stage that makes no progress is rolled back. This raises an alert. The alert stays when the new revision is gone,
// and is over when the next rollout has begun.
func TestRollingARollbackIsAlerted(t *testing.T) {
	t.Parallel()
	s := newService(t, "n1")
	alerts := &recorder{}
	s.rollingFarm("f", s.addr, func(cfg *farm.Config) { cfg.Alerter = alerts })
	s.first(3)
	s.set(func() { s.sick[rolled2] = "the artifact is refused" })
	s.deploy(2, 3, nil)
	s.ended(2, rollout.Failed, "the artifact is refused")
	s.only(rolled1, 3, s.store.Keys().RolloutTroubles.Key(rolled))
	s.condition(rolled1, rc.RolloutTrouble, true, "the artifact is refused")
	s.alerted(rolled1, rc.RolloutTrouble)
	s.deploy(3, 3, nil)
	s.ended(3, rollout.Done)
	alerts.over(t)
	s.only(rolled3, 3)
	keys := map[string]bool{}
	for _, line := range alerts.about(string(rc.RolloutTrouble)) {
		_, key, _ := strings.Cut(line, " ")
		keys[key] = true
	}
	if len(keys) != 1 {
		t.Errorf("one rollout in trouble has %d incidents: %v", len(keys), keys)
	}
}

// An unreadable record of a rollout raises an alert, and the rollout makes no progress, although all that it waits for
// is there. When people have written the record again, the rollout goes on from its stage.
func TestRollingAnUnreadableRecordMovesNothing(t *testing.T) {
	t.Parallel()
	s := newService(t, "n1")
	alerts := &recorder{}
	s.rollingFarm("f", s.addr, func(cfg *farm.Config) { cfg.Alerter = alerts })
	s.first(3)
	s.set(func() { s.slow[rolled2] = true })
	s.deploy(2, 3, nil)
	s.moving()
	key := s.store.Keys().Rollouts.Key(rolled)
	text := s.spoil(key)
	s.ring(rolled)
	s.condition(rolled1, rc.RolloutTrouble, true, "unreadable record "+key)
	s.alerted(rolled1, rc.RolloutTrouble)
	records := func() []rc.RC { return []rc.RC{s.record(rolled1), s.record(rolled2)} }
	before := records()
	s.quicken(rolled2)
	s.converged(rolled2, 1)
	if after := records(); !reflect.DeepEqual(before, after) {
		t.Errorf("the controllers were\n%+v\nand are\n%+v", before, after)
	}
	s.put(key, text)
	s.ended(2, rollout.Done)
	s.only(rolled2, 3)
	s.conditionIs(rolled2, rc.RolloutTrouble, false)
	alerts.over(t)
	s.noStepTwice()
}

// Gates are asked before and after each stage, and again if they refuse at first. Each question has the stage of the
// rollout.
func TestRollingGates(t *testing.T) {
	t.Parallel()
	s := newService(t, "n1")
	var mu sync.Mutex
	var asked []string
	gate := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var q roll.Question
		if err := json.NewDecoder(r.Body).Decode(&q); err != nil || q.Service != "web" || q.Revision != 2 ||
			q.Stages != 2 {
			t.Errorf("asked %+v, %v", q, err)
		}
		mu.Lock()
		defer mu.Unlock()
		asked = append(asked, fmt.Sprintf("%s %d %d", q.Phase, q.Stage, q.Try))
		if q.Phase == rollout.AfterStage && q.Stage == 1 && q.Try == 1 {
			http.Error(w, "not yet", http.StatusServiceUnavailable)
		}
	}))
	t.Cleanup(gate.Close)
	s.rollingFarm("f", s.addr, nil)
	s.first(2)
	hooks := []rollout.Hook{{URL: gate.URL}}
	s.deploy(2, 2, func(s *rollout.Start) { s.Knobs.Gates = rollout.Gates{BeforeStage: hooks, AfterStage: hooks} })
	s.ended(2, rollout.Done)
	s.only(rolled2, 2)
	mu.Lock()
	defer mu.Unlock()
	want := []string{"before-stage 1 1", "after-stage 1 1", "after-stage 1 2", "before-stage 2 1", "after-stage 2 1"}
	if !slices.Equal(asked, want) {
		t.Errorf("asked %q, want %q", asked, want)
	}
}

// A gate that does not answer delays its rollout and nothing else. An operator can abort the rollout, and then the call
// ends.
func TestRollingAGateThatDoesNotAnswer(t *testing.T) {
	t.Parallel()
	s := newService(t, "n1")
	begun, ended := make(chan struct{}), make(chan struct{})
	s.rollingFarm("f", s.addr, func(cfg *farm.Config) {
		cfg.Ask = func(ctx context.Context, _ string, _ time.Duration, _ any) error {
			close(begun)
			<-ctx.Done()
			close(ended)
			return ctx.Err()
		}
	})
	s.first(2)
	s.deploy(2, 2, func(s *rollout.Start) { s.Knobs.Gates.BeforeStage = []rollout.Hook{{URL: "http://gate"}} })
	s.closed(begun, "asked")
	s.request(rollout.AbortVerb)
	s.ended(2, rollout.Aborted)
	s.closed(ended, "ended")
}

// In a new epoch a rollout makes no progress until all nodes have reported what they run. Then it goes on.
func TestRollingANewEpoch(t *testing.T) {
	t.Parallel()
	s := newService(t, "n1")
	stop := s.rollingFarm("f1", s.addr, nil)
	s.first(3)
	stop()
	s.deploy(2, 3, nil)
	if err := s.store.FarmSession(&consul.Session{}, "x").RenewEpoch(t.Context(), "", ""); err != nil {
		t.Fatal(err)
	}
	silent := s.mute("n2")
	s.passing("n1", "n2")
	s.rollingFarm("f2", s.addr, nil)
	s.rolling(func(r *rollout.Record) bool { return strings.Contains(r.BlockedReason, "the store went back in time") })
	if r, err := s.rollout(); err != nil || r.Stage != 0 || len(s.running(rolled2)) > 0 {
		t.Errorf("the rollout is in stage %d, and %v runs; %v", r.Stage, s.running(rolled2), err)
	}
	silent()
	s.ended(2, rollout.Done)
	s.only(rolled2, 3)
	s.noStepTwice()
}

// ill panics when it should write a step that changes counts.
type ill struct {
	farm.Session
	is *atomic.Bool
}

func (i ill) CommitRollout(ctx context.Context, s *store.RolloutStep) (uint64, error) {
	if i.is.Load() && len(s.RCs) > 0 {
		panic("a step that cannot be written")
	}
	return i.Session.CommitRollout(ctx, s)
}

// A step that panics ends only the look's part for the rollout. The record and an alert report it, the passes go on,
// and the rollout goes on when steps work again.
func TestRollingAPanicIsContained(t *testing.T) {
	t.Parallel()
	s := newService(t, "n1")
	alerts := &recorder{}
	is := &atomic.Bool{}
	s.rollingFarm("f", s.addr, func(cfg *farm.Config) { cfg.Alerter, cfg.Store = alerts, ill{cfg.Store, is} })
	s.first(3)
	is.Store(true)
	fence := s.lockIndex(rolled)
	s.deploy(2, 3, nil)
	const why = rc.CannotWork + "panic: a step that cannot be written"
	r := s.rolling(func(r *rollout.Record) bool { return strings.HasPrefix(r.BlockedReason, why) })
	trouble, err := s.store.RolloutTroubles.Get(t.Context(), store.Consistent, rolled)
	if err != nil || trouble.Value != (store.RolloutTrouble{Rollout: r.ID, Reason: r.BlockedReason}) {
		t.Errorf("the trouble is %+v, %v", trouble.Value, err)
	}
	if now := s.lockIndex(rolled); now == fence {
		t.Error("the fence has not moved, so a write of the panicked step may land")
	}
	s.condition(rolled1, rc.RolloutTrouble, true, why)
	s.alerted(rolled1, rc.RolloutTrouble)
	if old, next := s.record(rolled1), s.record(rolled2); old.Desired() != 3 || next.Desired() != 0 {
		t.Errorf("the controllers are %+v and %+v", old, next)
	}
	is.Store(false)
	s.ended(2, rollout.Done)
	s.only(rolled2, 3)
	alerts.over(t)
}

// If a rollout's record is removed, also by another writer, the owner's metrics and gate calls of the rollout end.
func TestRollingARecordVanishes(t *testing.T) {
	t.Parallel()
	s := newService(t, "n1")
	reg := prometheus.NewRegistry()
	begun, ended := make(chan struct{}), make(chan struct{})
	s.rollingFarm("f", s.addr, func(cfg *farm.Config) {
		cfg.Rollouts = roll.NewMetrics(reg)
		cfg.Ask = func(ctx context.Context, _ string, _ time.Duration, _ any) error {
			close(begun)
			<-ctx.Done()
			close(ended)
			return ctx.Err()
		}
	})
	s.first(2)
	s.deploy(2, 2, func(s *rollout.Start) { s.Knobs.Gates.BeforeStage = []rollout.Hook{{URL: "http://gate"}} })
	s.closed(begun, "asked")
	metric(t, reg, "rcfarm_rollout_running", string(rollout.Progressing), is(1))
	s.remove(s.store.Keys().Rollouts.Key(rolled))
	s.ring(rolled)
	metric(t, reg, "rcfarm_rollout_running", string(rollout.Progressing), is(0))
	s.closed(ended, "ended")
}
