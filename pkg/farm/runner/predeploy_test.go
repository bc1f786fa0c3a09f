package runner_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/consultest"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/rollout"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// preDeployID is the controller whose only pod runs once.
const preDeployID = unit + "-2-pre"

func preDeployer(term string) rc.RC {
	one := 1
	return rc.RC{
		ID: preDeployID, Name: "web-r2-pre-deploy", ManifestDigest: fmt.Sprintf("%064d", 9), ReplicaGroups: []rc.ReplicaGroup{{Role: "main", Count: &one}},
		Strategy: rc.Static, Generation: 1, ChangedBy: "op", Mutator: term,
	}
}

// once is the run of that pod.
type once struct {
	started bool
	status  rc.Status    // what its owner reports besides
	reality *pod.Reality // what its node reports; nil: it runs
	over    bool         // the controller was given up
	grew    bool         // the new revision was asked for pods
}

// judge says what no instant of a pre_deploy may look like.
func (o *once) judge(t *testing.T, r *rc.RC) {
	switch {
	case r.ID == preDeployID && r.DeletedAt != nil:
		o.over = true
	case r.ID == preDeployID && (o.over || r.Generation != 1 || r.Desired() != 1):
		t.Errorf("the pod that runs once may run again: %+v", r)
	case r.ID == web2:
		o.grew = o.grew || r.Desired() > 0
	}
}

// runOnce does what owner and node do for the pod that runs once.
func (w *world) runOnce(ctx context.Context, r *rc.RC, epoch string) error {
	w.mu.Lock()
	o := w.once
	w.once.started = true
	w.mu.Unlock()
	id := pod.Identity{RCID: r.ID, Role: "main"}
	st := o.status
	st.RCID, st.ObservedGeneration, st.Epoch, st.Desired, st.Placed, st.Owner = r.ID, r.Generation, epoch, 1, 1, "sim"
	values := map[string]any{
		w.Keys().Pods.Key(id.String()): pod.Placement{Identity: id, Node: "n1", PodID: "web-pre-deploy", Digest: r.ManifestDigest, RunState: pod.Running, Revision: 1},
		w.Keys().Statuses.Key(r.ID):    st,
	}
	if o.reality != nil {
		values[w.Keys().Realities.Key("n1", id.String())] = o.reality
	}
	var ops []consul.Op
	for key, value := range values {
		text, err := json.Marshal(value)
		if err != nil {
			return err
		}
		was, err := w.client.Get(ctx, key, consul.Consistent)
		if err != nil && !errors.Is(err, store.ErrNotFound) {
			return err
		}
		if string(was.Value) != string(text) {
			ops = append(ops, consul.Set(key, text))
		}
	}
	if len(ops) == 0 {
		return nil
	}
	_, err := w.client.Commit(ctx, append(ops, consul.Set(w.Keys().RolloutBells.Key("web"), []byte(store.NewID()))))
	return err
}

// report changes what is reported of the pod that runs once.
func (w *world) report(change func(*once)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	change(&w.once)
}

func (w *world) onceStarted() {
	w.t.Helper()
	consultest.Eventually(w.t, soon, func() error {
		w.mu.Lock()
		defer w.mu.Unlock()
		if !w.once.started {
			return errors.New("it has not run yet")
		}
		return nil
	})
}

// ends is the report of a pod whose process has ended.
func ends(code int, tail string) func(*once) {
	return func(o *once) {
		id := pod.Identity{RCID: preDeployID, Role: "main"}
		o.reality = &pod.Reality{
			Identity: id, Node: "n1", Revision: 1, State: pod.StateEnded, LogTail: tail, LastExit: &pod.Exit{Launchable: "main", Code: code, At: time.Now().UTC()},
		}
		if code != 0 {
			o.reality.State, o.reality.Hopeless = pod.StateFailed, true
		}
	}
}

func withPreDeploy(s *rollout.Start) {
	s.PreDeploy = &rollout.PreDeploy{RC: preDeployID, Name: "web-r2-pre-deploy"}
}

// Any end of a pre_deploy but the success of its program ends the deployment: no pod of the new revision starts, and nothing
// is left. What a time that is over does is in rollout.TestAClockThatIsAheadEndsNoPreDeploy.
func TestPreDeployEndsTheDeployment(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		report func(*once)
		want   []string
	}{
		"an exit code": {ends(3, "no such table"), []string{"pre_deploy: it ended with exit code 3; its log ends: no such table"}},
		"a signal": {func(o *once) {
			ends(-1, "half way")(o)
			o.reality.LastExit.Signal = "SIGKILL"
		}, []string{"pre_deploy: it ended by SIGKILL; its log ends: half way"}},
		"a lost node": {func(o *once) { o.status.Lost = 1 }, []string{"its node is lost", "it does not run twice"}},
		"it cannot run": {func(o *once) {
			o.status.Failing = []rc.PodFailure{{Pod: "main.0", Node: "n1", Reason: "no such artifact", Hopeless: true}}
		}, []string{"no such artifact"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.running(3)
			w.report(tt.report)
			w.owners()
			f := &farm{id: "f"}
			w.runs(f, w.addr, nil)
			w.deploy(2, 3, withPreDeploy)
			outcome, reason := w.ended(2)
			if outcome != string(rollout.Failed) {
				t.Errorf("%s: %s", outcome, reason)
			}
			for _, text := range tt.want {
				if !strings.Contains(reason, text) {
					t.Errorf("%q does not say %q", reason, text)
				}
			}
			consultest.Eventually(t, soon, func() error {
				_, err := w.RCs.Get(t.Context(), store.Consistent, preDeployID)
				if errors.Is(err, store.ErrNotFound) {
					return nil
				}
				return fmt.Errorf("its controller is left: %w", err)
			})
			w.mu.Lock()
			defer w.mu.Unlock()
			if w.once.grew {
				t.Error("the new revision was asked for pods")
			}
		})
	}
}

// In another world the program does not run again, and what came of it counts once the owners have reported about that world.
func TestPreDeployInAnotherWorld(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.running(3)
	w.owners()
	f := &farm{id: "f"}
	w.runs(f, w.addr, nil)
	w.deploy(2, 3, withPreDeploy)
	w.onceStarted()
	if err := w.FarmSession(&consul.Session{}, "x").RenewEpoch(t.Context(), "", ""); err != nil {
		t.Fatal(err)
	}
	schema, err := w.Schema.Get(t.Context(), store.Default)
	if err != nil {
		t.Fatal(err)
	}
	w.report(ends(0, ""))
	if outcome, reason := w.ended(2); outcome != string(rollout.Done) {
		t.Errorf("%s: %s", outcome, reason)
	}
	w.only(web2, 3)
	w.noStepTwice()
	if now, err := w.Schema.Get(t.Context(), store.Default); err != nil || now.Index != schema.Index {
		t.Errorf("the world changed again: %v", err)
	}
}

// A runner that dies right before or right after the step that ends a pre_deploy is followed by another one, which neither runs it again nor
// forgets that it has run.
func TestARunnerDiesWhileAPreDeployRuns(t *testing.T) {
	t.Parallel()
	for name, verdict := range map[string]consultest.Verdict{
		"before the step": consultest.CutBefore, "after the step": consultest.CutAfter, "the step lands late": consultest.Delay,
	} {
		for result, code := range map[string]int{"well": 0, "badly": 1} {
			t.Run(name+"/"+result, func(t *testing.T) {
				t.Parallel()
				w := newWorld(t)
				w.running(3)
				w.owners()
				proxy := consultest.StartProxy(t, w.addr)
				rule, cut := onStep(0, verdict, w.Keys().Prefix())
				proxy.Set(rule)
				members := w.members("f1", "f2").list
				w.runs(&farm{id: "f1"}, proxy.Addr, members)
				w.deploy(2, 3, withPreDeploy)
				w.carriedBy("f1")
				w.onceStarted()
				w.report(ends(code, ""))
				<-cut
				proxy.Set(consultest.Always(consultest.Stall))
				w.runs(&farm{id: "f2"}, w.addr, members)
				want := rollout.Done
				if code != 0 {
					want = rollout.Failed
				}
				if outcome, reason := w.ended(2); outcome != string(want) {
					t.Errorf("%s: %s", outcome, reason)
				}
				if verdict == consultest.Delay {
					proxy.Release(t)
				}
				if code == 0 {
					w.only(web2, 3)
				}
				w.noStepTwice()
				proxy.Set(nil)
			})
		}
	}
}
