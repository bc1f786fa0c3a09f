package farm_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/consultest"
	"github.com/rcfarm/rcfarm/pkg/farm"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rollout"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// onceStarted waits until the pod that runs once has an intent to run.
func (s *service) onceStarted() {
	s.t.Helper()
	consultest.Eventually(s.t, soon, func() error {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.onces == 0 {
			return errors.New("it has not run yet")
		}
		return nil
	})
}

// ranOnce fails the test if the pod that runs once was started more than once.
func (s *service) ranOnce() {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.onces != 1 {
		s.t.Errorf("the pod that runs once was started %d times", s.onces)
	}
}

// If the program of a pre_deploy does not succeed, the deployment ends. Then no pod of the new revision starts, and all
// records of the pre_deploy's controller are removed once the machine of its pod is back.
func TestRollingAPreDeployEndsTheDeployment(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		change func(*service)
		lose   bool // lose the machine of the pod
		want   []string
	}{
		"an exit code": {
			change: func(s *service) { s.ends = &pod.Exit{Launchable: "main", Code: 3} },
			want:   []string{"pre_deploy: it ended with exit code 3; its log ends: no such table"},
		},
		"a signal": {
			change: func(s *service) { s.ends = &pod.Exit{Launchable: "main", Code: -1, Signal: "SIGKILL"} },
			want:   []string{"pre_deploy: it ended by SIGKILL; its log ends: no such table"},
		},
		"a lost machine": {change: func(*service) {}, lose: true, want: []string{
			"its node is lost",
			"it does not run twice",
		}},
		"it cannot run": {
			change: func(s *service) { s.sick[rolledPre] = "no such artifact" }, want: []string{"no such artifact"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newService(t, "n1")
			faults := &faulty{}
			s.rollingFarm("f", s.addr, func(cfg *farm.Config) { faults.Session, cfg.Store = cfg.Store, faults })
			s.first(2)
			s.set(func() { tt.change(s) })
			stop := s.node("once", map[string]string{"name": "once"}, s.react)
			s.deploy(2, 2, withPreDeploy)
			if tt.lose {
				s.onceStarted()
				rec, err := s.store.Nodes.Get(t.Context(), store.Consistent, "once")
				if err != nil {
					t.Fatal(err)
				}
				faults.agents.Store(&map[string]bool{rec.Value.ConsulNode: true})
				stop()
			}
			s.ended(2, rollout.Failed, tt.want...)
			if tt.lose {
				s.cluster.mu.Lock()
				n := s.nodes["once"]
				s.cluster.mu.Unlock()
				s.background(n.Resume)
			}
			consultest.Eventually(t, soon, func() error {
				_, err := s.store.RCs.Get(t.Context(), store.Consistent, rolledPre)
				if !errors.Is(err, store.ErrNotFound) {
					return fmt.Errorf("its controller is left: %w", err)
				}
				return nil
			})
			s.mu.Lock()
			defer s.mu.Unlock()
			if s.grew || s.onces > 1 {
				t.Errorf("the new revision has pods: %t; the pod that runs once was started %d times", s.grew,
					s.onces)
			}
		})
	}
}

// In a new epoch the program does not run again. Its result is used once the nodes have reported in that epoch.
func TestRollingAPreDeployInAnotherWorld(t *testing.T) {
	t.Parallel()
	s := newService(t, "n1")
	s.rollingFarm("f", s.addr, nil)
	s.first(2)
	s.node("once", map[string]string{"name": "once"}, s.react)
	s.deploy(2, 2, withPreDeploy)
	s.onceStarted()
	if err := s.store.FarmSession(&consul.Session{}, "x").RenewEpoch(t.Context(), "", ""); err != nil {
		t.Fatal(err)
	}
	schema, err := s.store.Schema.Get(t.Context(), store.Consistent)
	if err != nil {
		t.Fatal(err)
	}
	s.set(func() { s.ends = &pod.Exit{Launchable: "main"} })
	s.changeAll(rolledPre, s.end)
	s.ended(2, rollout.Done)
	s.only(rolled2, 2)
	s.noStepTwice()
	s.ranOnce()
	if now, err := s.store.Schema.Get(t.Context(), store.Consistent); err != nil || now.Index != schema.Index {
		t.Errorf("the epoch changed again: %v", err)
	}
}

// If an owner dies right before or right after the step that ends a pre_deploy, another farm goes on. It neither runs
// the program again nor forgets that it has run.
func TestRollingAnOwnerDiesWhileAPreDeployRuns(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		verdict consultest.Verdict
		code    int
		want    rollout.State
	}{
		"before the step that fails":   {consultest.CutBefore, 1, rollout.Failed},
		"after the step that fails":    {consultest.CutAfter, 1, rollout.Failed},
		"after the step that goes on":  {consultest.CutAfter, 0, rollout.Done},
		"the step lands late, or fast": {consultest.Delay, 0, rollout.Done},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newService(t, "n1")
			proxy := consultest.StartProxy(t, s.addr)
			s.rollingFarm("f1", proxy.Addr, nil)
			s.first(2)
			rule, cut := s.onStep(0, tt.verdict)
			proxy.Set(rule)
			s.node("once", map[string]string{"name": "once"}, s.react)
			s.set(func() { s.ends = &pod.Exit{Launchable: "main", Code: tt.code} })
			s.deploy(2, 2, withPreDeploy)
			s.closed(cut, "cut off")
			proxy.Set(consultest.Always(consultest.Stall))
			s.rollingFarm("f2", s.addr, nil)
			s.ended(2, tt.want)
			if tt.verdict == consultest.Delay {
				proxy.Release(t)
			}
			if tt.want == rollout.Done {
				s.only(rolled2, 2)
			}
			s.noStepTwice()
			s.ranOnce()
			proxy.Set(nil)
		})
	}
}
