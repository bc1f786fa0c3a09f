package runner_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/consultest"
	"github.com/rcfarm/rcfarm/pkg/farm/runner"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/rollout"
	"github.com/rcfarm/rcfarm/pkg/store"
)

func TestARolloutIsCarriedOut(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.running(4)
	w.owners()
	f := &farm{id: "f"}
	w.runs(f, w.addr, nil)
	w.deploy(2, 4, nil)
	if outcome, reason := w.ended(2); outcome != string(rollout.Done) {
		t.Errorf("%s: %s", outcome, reason)
	}
	w.only(web2, 4)
	if _, err := w.client.Get(t.Context(), w.Keys().RolloutLocks.Key("web"), consul.Consistent); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("the lock: %v", err)
	}
	audits, _, err := w.ListAudit(t.Context(), store.AuditFilter{RCID: web2})
	if err != nil {
		t.Fatal(err)
	}
	if last := audits[len(audits)-1]; last.What != "rollout-succeeded" || last.Who != "f" {
		t.Errorf("the last audit record is %+v", last)
	}
	w.deploy(3, 4, nil) // nothing of the first one is in the way
	if outcome, reason := w.ended(3); outcome != string(rollout.Done) {
		t.Errorf("%s: %s", outcome, reason)
	}
	w.only(web3, 4)
	if err := f.told.saidSo(); err != nil {
		t.Error(err)
	}
}

// Whatever step of a rollout is cut off, and however, the rollout goes on from the records: no step is made twice, none late.
func TestEachStepIsCutOff(t *testing.T) {
	t.Parallel()
	for name, verdict := range map[string]consultest.Verdict{
		"not sent": consultest.CutBefore, "landed and unknown": consultest.CutAfter, "landing late": consultest.Delay,
	} {
		for _, n := range []int{0, 1, 2, 4, 6} {
			t.Run(fmt.Sprintf("%s/%d", name, n), func(t *testing.T) {
				t.Parallel()
				w := newWorld(t)
				w.running(3)
				w.owners()
				proxy := consultest.StartProxy(t, w.addr)
				rule, cut := onStep(n, verdict, w.Keys().Prefix())
				proxy.Set(rule)
				w.runs(&farm{id: "f"}, proxy.Addr, nil)
				w.deploy(2, 3, nil)
				outcome, reason := w.ended(2)
				select {
				case <-cut:
				default:
					t.Fatalf("there were fewer than %d steps", n+1)
				}
				if verdict == consultest.Delay {
					proxy.Release(t)
				}
				if outcome != string(rollout.Done) {
					t.Errorf("%s: %s", outcome, reason)
				}
				w.only(web2, 3)
				w.noStepTwice()
			})
		}
	}
}

// noStepTwice fails where two audit records of farms tell of the same.
func (w *world) noStepTwice() {
	w.t.Helper()
	audits, _, err := w.ListAudit(w.t.Context(), store.AuditFilter{})
	if err != nil {
		w.t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, a := range audits {
		if text := fmt.Sprint(a.What, a.Changes); strings.HasPrefix(a.What, "rollout") && len(a.Changes) > 0 {
			if seen[text] {
				w.t.Errorf("twice: %s", text)
			}
			seen[text] = true
		}
	}
}

// A runner that is cut off in mid-course, as by kill -9, is followed by another one; what it still sends does not land.
func TestARunnerDies(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.running(3)
	w.owners()
	proxy := consultest.StartProxy(t, w.addr)
	rule, cut := onStep(1, consultest.Delay, w.Keys().Prefix())
	proxy.Set(rule)
	ids := []string{"f1", "f2"}
	members := w.members("f1", "f2").list
	first := &farm{id: ids[0]}
	w.runs(first, proxy.Addr, members)
	w.deploy(2, 3, nil)
	consultest.Eventually(t, soon, func() error {
		select {
		case <-cut:
			return nil
		default:
			return errors.New("no step yet")
		}
	})
	proxy.Set(consultest.Always(consultest.Stall))
	second := &farm{id: ids[1]}
	w.runs(second, w.addr, members)
	if outcome, reason := w.ended(2); outcome != string(rollout.Done) {
		t.Errorf("%s: %s", outcome, reason)
	}
	proxy.Release(t)
	w.only(web2, 3)
	w.noStepTwice()
	proxy.Set(nil)
}

// Two runners share the rollouts, and do not take them from each other.
func TestTwoRunners(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.running(5)
	w.owners()
	members := w.members("f1", "f2").list
	for _, id := range []string{"f1", "f2"} {
		w.runs(&farm{id: id}, w.addr, members)
	}
	for rev := int64(2); rev < 5; rev++ {
		w.deploy(rev, 5, nil)
		if outcome, reason := w.ended(rev); outcome != string(rollout.Done) {
			t.Errorf("%s: %s", outcome, reason)
		}
		w.only(rc.RevisionID(unit, rev), 5)
	}
	w.noStepTwice()
}

// What an operator asks is carried out, and a paused rollout changes nothing.
func TestOperators(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.running(3)
	w.owners()
	w.deploy(2, 3, nil)
	w.ask(rollout.PauseVerb)
	f := &farm{id: "f"}
	w.runs(f, w.addr, nil)
	paused := func() error {
		rec, err := w.record()
		if err != nil || rec.State != rollout.Paused || rec.Request != nil {
			return fmt.Errorf("%+v, %w", rec, err)
		}
		return nil
	}
	consultest.Eventually(t, soon, paused)
	w.ask(rollout.ResumeVerb)
	if outcome, reason := w.ended(2); outcome != string(rollout.Done) {
		t.Errorf("%s: %s", outcome, reason)
	}
	w.only(web2, 3)
	w.deploy(3, 3, nil)
	w.ask(rollout.AbortVerb)
	if outcome, _ := w.ended(3); outcome != string(rollout.Aborted) && outcome != string(rollout.Done) {
		t.Error(outcome)
	}
	recs, _, err := w.RCs.List(t.Context(), store.Default)
	if err != nil {
		t.Fatal(err)
	}
	for i := range recs {
		if recs[i].Value.Mutator != "" {
			t.Errorf("%s belongs to %s", recs[i].Value.Name, recs[i].Value.Mutator)
		}
	}
}

// Owners whose drains and transfers wait for a rollout learn by the same transaction that it rests: nobody else tells them.
func TestARestRingsAllOwners(t *testing.T) {
	t.Parallel()
	refuses := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) { http.Error(rw, "no", http.StatusConflict) }))
	t.Cleanup(refuses.Close)
	none := 0
	for name, tt := range map[string]struct {
		change func(*rollout.Start)
		ask    rollout.Verb
		sick   string
		want   rollout.State
	}{
		"an operator pauses": {ask: rollout.PauseVerb, want: rollout.Paused},
		"a gate refuses": {want: rollout.Paused, change: func(s *rollout.Start) {
			s.Knobs.OnTimeout, s.Knobs.Gates.BeforeStage = rollout.OnTimeoutPause, []rollout.Hook{{URL: refuses.URL, Retries: &none}}
		}},
		"a pod fails": {want: rollout.Paused, sick: web2, change: func(s *rollout.Start) { s.Knobs.OnTimeout = rollout.OnTimeoutPause }},
		"promote":     {want: rollout.WaitingForPromote, change: func(s *rollout.Start) { s.Knobs.Strategy = rollout.CanaryStrategy }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.running(3)
			w.sick[tt.sick] = "the artifact is refused"
			w.owners()
			w.deploy(2, 3, tt.change)
			if tt.ask != "" {
				w.ask(tt.ask)
			}
			w.runs(&farm{id: "f"}, w.addr, nil)
			consultest.Eventually(t, soon, func() error {
				rec, err := w.record()
				if err != nil || rec.State != tt.want {
					return fmt.Errorf("%s, %w", rec.State, err)
				}
				return nil
			})
			keys := w.Keys()
			found, err := w.client.GetMany(t.Context(), []string{keys.Rollouts.Key("web"), keys.Bells.Key(web1), keys.Bells.Key(web2)}, consul.Consistent)
			if err != nil {
				t.Fatal(err)
			}
			for _, id := range []string{web1, web2} {
				if rang, rests := found[keys.Bells.Key(id)].ModifyIndex, found[keys.Rollouts.Key("web")].ModifyIndex; rang != rests {
					t.Errorf("the bell of %s rang at %d, and the rollout rests since %d", id, rang, rests)
				}
			}
		})
	}
}

// A stage that gets nowhere is rolled back; that is told, and told to be over when the old revision has all pods again.
func TestARollbackIsTold(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.running(3)
	w.mu.Lock()
	w.sick[web2], w.least = "the artifact is refused", 0
	w.mu.Unlock()
	w.owners()
	f := &farm{id: "f"}
	w.runs(f, w.addr, nil)
	w.deploy(2, 3, nil)
	outcome, reason := w.ended(2)
	if outcome != string(rollout.Failed) || !strings.Contains(reason, "the artifact is refused") {
		t.Errorf("%s: %s", outcome, reason)
	}
	w.only(web1, 3)
	alerts := func(want ...string) {
		t.Helper()
		consultest.Eventually(t, soon, func() error { return f.told.saidSo(want...) })
	}
	alerts("raise the rollout of web")
	w.deploy(3, 3, nil)
	alerts("raise the rollout of web", "resolve ")
	if outcome, reason := w.ended(3); outcome != string(rollout.Done) {
		t.Errorf("%s: %s", outcome, reason)
	}
}

// A record that cannot be read is told, and so is one that no living farm matches; both are over when they are.
func TestWhatNoRunnerCanSay(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	key := w.Keys().Rollouts.Key("odd")
	if _, err := w.client.Commit(t.Context(), []consul.Op{consul.Set(key, []byte("{"))}); err != nil {
		t.Fatal(err)
	}
	w.running(3)
	w.owners()
	f := &farm{id: "f", selector: "service=api"}
	w.runs(f, w.addr, nil)
	consultest.Eventually(t, soon, func() error { return f.told.saidSo("raise unreadable record " + key) })
	if _, err := w.client.Commit(t.Context(), []consul.Op{consul.Delete(key)}); err != nil {
		t.Fatal(err)
	}
	consultest.Eventually(t, soon, func() error { return f.told.saidSo("raise", "resolve unreadable record "+key) })
	w.deploy(2, 3, nil)
	consultest.Eventually(t, soon, func() error { return f.told.saidSo("raise", "resolve", "raise none of the living farms") })
	f.stop()
	next := &farm{id: "g", selector: "service=web"}
	w.runs(next, w.addr, nil)
	if outcome, reason := w.ended(2); outcome != string(rollout.Done) {
		t.Errorf("%s: %s", outcome, reason)
	}
	consultest.Eventually(t, soon, func() error { return next.told.saidSo("resolve none of the living farms") })
	consultest.Eventually(t, soon, func() error {
		pairs, err := w.client.List(t.Context(), w.Keys().Rollouts.Key(), consul.Consistent)
		if err != nil || len(pairs) != 1 {
			return fmt.Errorf("below rollouts/: %v, %w", pairs, err)
		}
		return nil
	})
}

// Gates are asked before and after each stage, again where they do not agree at first.
func TestGates(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.running(2)
	w.owners()
	var asked atomic.Int32
	var mu sync.Mutex
	var phases []string
	gate := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		var q runner.Question
		if err := json.NewDecoder(r.Body).Decode(&q); err != nil || q.Service != "web" || q.Revision != 2 || q.Stage < 1 {
			t.Errorf("asked %+v, %v", q, err)
		}
		mu.Lock()
		defer mu.Unlock()
		if asked.Add(1) == 1 {
			http.Error(rw, "not yet", http.StatusServiceUnavailable)
			return
		}
		phases = append(phases, fmt.Sprintf("%s %d", q.Phase, q.Stage))
	}))
	t.Cleanup(gate.Close)
	f := &farm{id: "f"}
	w.runs(f, w.addr, nil)
	hooks := []rollout.Hook{{URL: gate.URL}}
	w.deploy(2, 2, func(s *rollout.Start) { s.Knobs.Gates = rollout.Gates{BeforeStage: hooks, AfterStage: hooks} })
	if outcome, reason := w.ended(2); outcome != string(rollout.Done) {
		t.Errorf("%s: %s", outcome, reason)
	}
	mu.Lock()
	defer mu.Unlock()
	if want := []string{"before-stage 1", "after-stage 1", "before-stage 2", "after-stage 2"}; !slices.Equal(phases[:min(4, len(phases))], want) {
		t.Errorf("asked %v", phases)
	}
}

// In another world nothing moves until the owners have reported about it.
func TestANewEpoch(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.running(3)
	w.deploy(2, 3, nil)
	f := &farm{id: "f"}
	w.runs(f, w.addr, nil)
	if err := w.FarmSession(&consul.Session{}, "x").RenewEpoch(t.Context(), "", ""); err != nil {
		t.Fatal(err)
	}
	consultest.Eventually(t, soon, func() error {
		if _, err := w.client.Commit(t.Context(), []consul.Op{consul.Set(w.Keys().RolloutBells.Key("web"), []byte(store.NewID()))}); err != nil {
			return err
		}
		rec, err := w.record()
		if err != nil || rec.BlockedReason == "" {
			return fmt.Errorf("held %q, %w", rec.BlockedReason, err)
		}
		return nil
	})
	w.owners()
	if outcome, reason := w.ended(2); outcome != string(rollout.Done) {
		t.Errorf("%s: %s", outcome, reason)
	}
	w.only(web2, 3)
}

// A farm that has seen a rollout which is over by now leaves no lock behind.
func TestALaggingWatchLeavesNoLock(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.running(2)
	w.owners()
	f := &farm{id: "f"}
	w.runs(f, w.addr, nil)
	for rev := int64(2); rev < 8; rev++ { // each refused where a lock is held for longer than a moment
		w.deploy(rev, 2, nil)
		if outcome, reason := w.ended(rev); outcome != string(rollout.Done) {
			t.Fatalf("%s: %s", outcome, reason)
		}
		w.only(rc.RevisionID(unit, rev), 2)
	}
}
