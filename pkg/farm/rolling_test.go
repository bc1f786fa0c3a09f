package farm_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/consultest"
	"github.com/rcfarm/rcfarm/pkg/farm"
	"github.com/rcfarm/rcfarm/pkg/farm/placement"
	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/rollout"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// The owner of a service carries out its rollouts, one after the other. Then the old revision is removed, the history
// has how each rollout ended, and no other record is left.
func TestRollingIsCarriedOut(t *testing.T) {
	t.Parallel()
	s := newService(t, "n1", "n2")
	s.rollingFarm("f", s.addr, nil)
	s.first(4)
	s.deploy(2, 4, nil)
	s.ended(2, rollout.Done)
	s.only(rolled2, 4)
	audits, _, err := s.store.ListAudit(t.Context(), store.AuditFilter{RCID: rolled2})
	if err != nil || len(audits) == 0 {
		t.Fatal(err)
	}
	if last := audits[len(audits)-1]; last.What != "rollout-succeeded" || last.Who != "f" {
		t.Errorf("the last audit record is %+v", last)
	}
	s.deploy(3, 4, nil)
	s.ended(3, rollout.Done)
	s.only(rolled3, 4)
	s.noStepTwice()
}

// Each strategy is carried out to its end by nodes and the clock alone, even if no pod has to start or stop. No stage
// may wait for its timeout, because that would end the rollout here.
func TestRollingEachStrategy(t *testing.T) {
	t.Parallel()
	at := func(d time.Duration) *field.Duration { return (*field.Duration)(&d) }
	for name, tt := range map[string]struct {
		count       int
		knobs       rollout.Knobs
		least, most int // bounds of the pods; 0: the bounds of the availability strategy
	}{
		"availability": {count: 2},
		"stop first":   {count: 3, knobs: rollout.Knobs{Strategy: rollout.ResourceUtilStrategy}, least: 2, most: 3},
		"canary": {count: 2, knobs: rollout.Knobs{
			Strategy:    rollout.CanaryStrategy,
			AutoPromote: at(100 * time.Millisecond),
		}},
		"blue-green": {count: 2, least: 2, most: 4, knobs: rollout.Knobs{
			Strategy: rollout.BlueGreenStrategy, AutoPromote: at(100 * time.Millisecond),
			KeepOld: at(100 * time.Millisecond),
		}},
		"no pods": {count: 0, most: 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newService(t, "n1")
			s.rollingFarm("f", s.addr, nil)
			s.first(tt.count)
			if tt.most > 0 {
				s.set(func() { s.least, s.most = tt.least, tt.most })
			}
			s.deploy(2, tt.count, func(start *rollout.Start) {
				start.Knobs = tt.knobs
				start.Knobs.StageTimeout = at(20 * time.Second)
			})
			s.ended(2, rollout.Done)
			s.only(rolled2, tt.count)
			s.noStepTwice()
		})
	}
}

// Any step of a rollout may be cut off, in any of these ways. The rollout goes on from the records. No step is made
// twice or late.
func TestRollingEachStepIsCutOff(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		verdict consultest.Verdict
		steps   []int // cut off, each in its own rollout of two pods: up, down, up, down, end
	}{
		"not sent":                  {consultest.CutBefore, []int{0, 1, 2, 3, 4}},
		"landed and unknown":        {consultest.CutAfter, []int{0, 1, 2, 3, 4}},
		"landing late, down":        {consultest.Delay, []int{1}},
		"landing late, the outcome": {consultest.Delay, []int{4}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newService(t, "n1")
			proxy := consultest.StartProxy(t, s.addr)
			s.rollingFarm("f", proxy.Addr, nil)
			s.first(2)
			for i, n := range tt.steps {
				rule, cut := s.onStep(n, tt.verdict)
				proxy.Set(rule)
				rev := int64(i + 2)
				s.deploy(rev, 2, nil)
				s.ended(rev, rollout.Done)
				select {
				case <-cut:
				default:
					t.Fatalf("there were fewer than %d steps", n+1)
				}
				if tt.verdict == consultest.Delay {
					proxy.Release(t)
				}
				s.only(rc.RevisionID(rolled, rev), 2)
			}
			s.noStepTwice()
		})
	}
}

// If an owner is cut off during a rollout, for example by kill -9, another farm goes on from the records. Writes that
// the first farm still sends do not land.
func TestRollingAnOwnerDies(t *testing.T) {
	t.Parallel()
	s := newService(t, "n1")
	proxy := consultest.StartProxy(t, s.addr)
	s.rollingFarm("f1", proxy.Addr, nil)
	s.first(3)
	rule, cut := s.onStep(1, consultest.Delay)
	proxy.Set(rule)
	s.deploy(2, 3, nil)
	s.closed(cut, "cut off")
	proxy.Set(consultest.Always(consultest.Stall))
	s.rollingFarm("f2", s.addr, nil)
	s.ended(2, rollout.Done)
	proxy.Release(t)
	s.only(rolled2, 3)
	s.noStepTwice()
	s.steppedBy("f1", "f2")
	proxy.Set(nil)
}

// steppedBy fails the test unless two things are true: the farm with the id last has ended the rollout, and the farm
// with the id first has made no step after the first step of the other farm.
func (s *service) steppedBy(first, last string) {
	s.t.Helper()
	audits, _, err := s.store.ListAudit(s.t.Context(), store.AuditFilter{})
	if err != nil {
		s.t.Fatal(err)
	}
	followed := false
	for _, a := range audits {
		switch followed = followed || a.Who == last && strings.HasPrefix(a.What, "rollout"); {
		case followed && a.Who == first:
			s.t.Errorf("%s did %s %v after %s began", first, a.What, a.Changes, last)
		case a.What == "rollout-succeeded" && a.Who != last:
			s.t.Errorf("%s ended the rollout", a.Who)
		}
	}
	if !followed {
		s.t.Errorf("%s made no step", last)
	}
}

// A farm that joins and is preferred for the service gets it during a rollout. The stage stays as it was, and the new
// owner goes on.
func TestRollingAFarmThatIsPreferredTakesOver(t *testing.T) {
	t.Parallel()
	s := newService(t, "n1")
	ids := []string{"f1", "f2"}
	preferred := placement.Preferred(rolled, ids)
	other := ids[1-slices.Index(ids, preferred)]
	steady := func(cfg *farm.Config) { cfg.StableAfter = 200 * time.Millisecond }
	s.rollingFarm(other, s.addr, steady)
	s.first(3)
	s.set(func() { s.slow[rolled2] = true })
	s.deploy(2, 3, nil)
	before := s.moving()
	s.ownedBy(rolled, other)
	s.rollingFarm(preferred, s.addr, steady)
	s.ownedBy(rolled, preferred)
	if after, err := s.rollout(); err != nil || !reflect.DeepEqual(before, after) {
		t.Errorf("the stage was\n%+v\nand is\n%+v, %v", before, after, err)
	}
	s.quicken(rolled2)
	s.ended(2, rollout.Done)
	s.only(rolled2, 3)
	s.noStepTwice()
	s.steppedBy(other, preferred)
}

// Operators' requests are carried out. A paused rollout changes nothing. After an abort both revisions stay as they
// are.
func TestRollingOperators(t *testing.T) {
	t.Parallel()
	s := newService(t, "n1")
	s.rollingFarm("f", s.addr, nil)
	s.first(3)
	s.set(func() { s.slow[rolled2] = true })
	s.deploy(2, 3, nil)
	s.moving()
	s.request(rollout.PauseVerb)
	paused := s.rolling(func(r *rollout.Record) bool { return r.State == rollout.Paused && r.Request == nil })
	s.quicken(rolled2)
	s.converged(rolled2, 1)
	if now, err := s.rollout(); err != nil || !reflect.DeepEqual(now, paused) {
		t.Errorf("a paused rollout was\n%+v\nand is\n%+v, %v", paused, now, err)
	}
	if n := len(s.running(rolled1)); n != 3 {
		t.Errorf("%d pods of the old revision run while the rollout is paused", n)
	}
	s.request(rollout.ResumeVerb)
	s.ended(2, rollout.Done)
	s.only(rolled2, 3)

	s.set(func() { s.slow[rolled3] = true })
	s.deploy(3, 3, nil)
	s.run(rolled3, 1)
	s.request(rollout.AbortVerb)
	s.ended(3, rollout.Aborted, "aborted by op")
	s.quicken(rolled3)
	s.converged(rolled2, 3)
	s.converged(rolled3, 1)
	audits, _, err := s.store.ListAudit(t.Context(), store.AuditFilter{RCID: rolled3})
	if last := audits[len(audits)-1]; err != nil || last.What != "rollout-cancelled" || last.Who != "f" {
		t.Errorf("the last audit record is %+v, %v", last, err)
	}
}

// A drain waits while a rollout moves. When the rollout rests, for any reason, the pod moves off its node. Only the
// step itself causes that: no bell rings, and no sweep comes.
func TestRollingARestLetsDrainsGoOn(t *testing.T) {
	t.Parallel()
	refuses := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "no",
			http.StatusConflict)
	}))
	t.Cleanup(refuses.Close)
	none := 0
	for name, tt := range map[string]struct {
		knobs rollout.Knobs
		rests func(*service) // makes it rest
		want  rollout.State
	}{
		"an operator pauses": {want: rollout.Paused, rests: func(s *service) { s.request(rollout.PauseVerb) }},
		"a pod fails": {
			want: rollout.Paused, knobs: rollout.Knobs{OnTimeout: rollout.OnTimeoutPause}, rests: func(s *service) {
				s.changeAll(rolled2, func(r *pod.Reality) {
					r.State, r.Hopeless, r.Message = pod.StateFailed, true,
						"the artifact is refused"
				})
			},
		},
		"a gate refuses": {
			want: rollout.Paused, knobs: rollout.Knobs{
				OnTimeout: rollout.OnTimeoutPause, Gates: rollout.Gates{AfterStage: []rollout.Hook{{
					URL:     refuses.URL,
					Retries: &none,
				}}},
			},
			rests: func(s *service) { s.quicken(rolled2) },
		},
		"promote": {
			want: rollout.WaitingForPromote, knobs: rollout.Knobs{Strategy: rollout.CanaryStrategy},
			rests: func(s *service) { s.quicken(rolled2) },
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newService(t, "n1")
			s.rollingFarm("f", s.addr, nil)
			s.first(2)
			s.set(func() { s.slow[rolled2], s.most = true, 0 })
			s.deploy(2, 2, func(start *rollout.Start) {
				start.Knobs = tt.knobs
				start.Knobs.MaxSurge = &rollout.Amount{N: 2} // a stage uses one of them, so a move may use the other
			})
			s.moving()
			s.set(func() { delete(s.slow, rolled2) }) // on other nodes
			s.node("n2", map[string]string{"name": "n2"}, s.react)
			s.drain("n1", true)
			s.condition(rolled1, rc.Blocked, true, "is in charge")
			if on := s.on(rolled1); on["n1"] != 2 || on["n2"] > 0 {
				t.Errorf("while the rollout moves pods run on %v", on)
			}
			tt.rests(s)
			s.rolling(func(r *rollout.Record) bool { return r.State == tt.want })
			consultest.Eventually(t, soon, func() error {
				if on := s.on(rolled1); on["n1"] > 0 || on["n2"] == 0 {
					return fmt.Errorf("pods run on %v", on)
				}
				return nil
			})
		})
	}
}

// on counts the running pods of a controller by node.
func (s *service) on(id string) map[string]int {
	on := map[string]int{}
	for _, nodes := range s.running(id) {
		for _, name := range nodes {
			on[name]++
		}
	}
	return on
}

// A step that lowers a count to the present number of pods stops no pod, so no node reports anything that would ring
// the bell. The rollout still goes on at once.
func TestRollingAStepThatMovesNoPod(t *testing.T) {
	t.Parallel()
	s := newService(t, "n1") // with ten slots
	s.rollingFarm("f", s.addr, nil)
	if _, err := s.store.EnsureSchema(t.Context()); err != nil {
		t.Fatal(err)
	}
	r, m := s.controller(1, 12)
	change := store.RCChange{
		RC: r, Manifests: []store.DeployManifest{m},
		Audit: store.NewAudit("op", "create", r.ID, nil),
	}
	if err := s.store.Operator.ChangeRC(t.Context(), change); err != nil {
		t.Fatal(err)
	}
	s.conditionIs(rolled1, rc.InsufficientNodes, true)
	s.run(rolled1, 10)
	s.deploy(2, 10, func(start *rollout.Start) {
		start.Knobs.MaxUnavailable, start.Knobs.Step = &rollout.Amount{N: 2}, &rollout.Amount{N: 2}
		start.Knobs.MaxSurge = &rollout.Amount{}
	})
	s.ended(2, rollout.Done)
	s.only(rolled2, 10)
}
