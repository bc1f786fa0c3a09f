package reconcile_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/rcfarm/rcfarm/pkg/farm/reconcile"
	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
)

// onBadMachine has the given number of pods: the scheduler puts main.0 on n0, main.1 on n1 and so on. On n0 no pod
// becomes available.
func onBadMachine(pods int, hopeless bool) *world {
	w := newWorld()
	w.rc.ReplicaGroups = []rc.ReplicaGroup{{Role: "main", Count: &pods}}
	w.sick["n0"], w.hopeless = true, hopeless
	return w
}

// elapse lets time pass like run, for a world in which nothing is available at first.
func (w *world) elapse(t rapid.TB, d time.Duration) {
	const step = 500 * time.Millisecond
	for ; d > 0; d -= step {
		w.now = w.now.Add(step)
		w.obeyAll()
		w.pass(t, false)
	}
}

// A pod that never became available moves once to another node, when it is hopeless or its time is over. The other pods
// are not moved.
func TestAPodThatNeverBecameAvailableMovesOnce(t *testing.T) {
	t.Parallel()
	for name, hopeless := range map[string]bool{"hopeless": true, "deadline": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := onBadMachine(3, hopeless)
			w.elapse(t, 2*time.Second)
			if on := w.on(0); hopeless == (on == "n0") {
				t.Fatalf("main.0 is on %s after 2 s", on)
			}
			w.elapse(t, 4*time.Second)
			if a := w.tried(0); w.on(0) == "n0" || a == nil || a.Node != "n0" || a.Digest != "m1" ||
				!strings.Contains(a.Reason, "no answer") {
				t.Errorf("main.0 is on %s, and has %+v", w.on(0), w.placement(0).Avoid)
			}
			if w.on(1) != "n1" || w.on(2) != "n2" || !w.status.Is(rc.Converged) || w.running() != 3 {
				t.Errorf("%s, %s, %d run: %+v", w.on(1), w.on(2), w.running(), w.status)
			}
		})
	}
}

// A pod is kept on its second node, for any time, and through all changes of the controller that keep its manifest.
func TestAPodHasOneSecondNode(t *testing.T) {
	t.Parallel()
	w := onBadMachine(1, true)
	for name := range w.nodes {
		w.sick[name] = true
	}
	w.elapse(t, 3*time.Second)
	second := w.on(0)
	if second == "n0" || w.tried(0) == nil {
		t.Fatalf("on %s: %+v", second, w.placement(0))
	}
	for range 3 {
		w.rc.Generation++
		w.now = w.now.Add(20 * w.rc.Deadline())
		w.elapse(t, 3*time.Second)
		if on := w.on(0); on != second || len(w.pods) != 1 {
			t.Fatalf("on %s of %d, was on %s", on, len(w.pods), second)
		}
	}
	w.rc.ManifestDigest = "m2" // with a new manifest it gets another try
	w.rc.Generation++
	w.elapse(t, 10*time.Second)
	if a := w.tried(0); a == nil || a.Node != second {
		t.Errorf("on %s: %+v", w.on(0), w.placement(0))
	}
}

// If no pod works, the manifest is at fault: only a few pods are tried elsewhere.
func TestABadManifestMovesFewPods(t *testing.T) {
	t.Parallel()
	w := onBadMachine(20, true)
	for name := range w.nodes {
		w.sick[name] = true
	}
	w.elapse(t, time.Minute)
	moved := 0
	for _, p := range w.pods {
		if p.Tried() != nil {
			moved++
		}
	}
	if moved != rc.MaxTries || len(w.pods) != 20 || !w.status.Hopeless {
		t.Errorf("%d of %d pods have moved, want %d; %+v", moved, len(w.pods), rc.MaxTries, w.status)
	}
}

// Many pods on one bad machine all leave it, one after the other, as long as others work.
func TestABadMachineIsEmptied(t *testing.T) {
	t.Parallel()
	w := onBadMachine(30, true)
	w.elapse(t, time.Minute)
	for i := range 30 {
		if w.on(i) == "n0" {
			t.Errorf("main.%d is on n0", i)
		}
	}
	if w.running() != 30 || !w.status.Is(rc.Converged) {
		t.Errorf("%d run: %+v", w.running(), w.status)
	}
}

// unfitPod has three pods on n0, n1 and n2, of which the first never became available.
func unfitPod() *reconcile.Snapshot {
	s := snapshotOf(3)
	for i := range 3 {
		s.Pods = append(s.Pods, running(i, fmt.Sprintf("n%d", i), 5, 0))
	}
	crash(&s.Pods[0])
	s.Pods[0].Reality.Hopeless, s.Pods[0].Reality.NeverAvailable = true, true
	return s
}

func stoppedBy(plan *reconcile.Plan) (ids []int) {
	for i := range plan.Changes {
		if plan.Changes[i].Action == reconcile.Stop {
			ids = append(ids, plan.Changes[i].Identity.Index)
		}
	}
	return ids
}

// Some pods that never became available get no second node.
func TestSomePodsGetNoSecondNode(t *testing.T) {
	t.Parallel()
	two := 2
	for name, c := range map[string]struct {
		change func(s *reconcile.Snapshot)
		moves  bool
	}{
		"it does":          {func(*reconcile.Snapshot) {}, true},
		"it was available": {func(s *reconcile.Snapshot) { s.Pods[0].Reality.NeverAvailable = false }, false},
		"there is hope, and time": {
			func(s *reconcile.Snapshot) { s.Pods[0].Reality.Hopeless, s.Pods[0].ChangedAt = false, s.Now }, false,
		},
		"its time is over":     {func(s *reconcile.Snapshot) { s.Pods[0].Reality.Hopeless = false }, true},
		"of another revision":  {func(s *reconcile.Snapshot) { s.Pods[0].Reality.Revision = 4 }, false},
		"of another manifest":  {func(s *reconcile.Snapshot) { s.Pods[0].Reality.Digest = "m0" }, false},
		"nothing is reported":  {func(s *reconcile.Snapshot) { s.Pods[0].Reality = nil }, false},
		"its preparer is away": {func(s *reconcile.Snapshot) { s.Nodes["n0"].Alive = false }, false},
		"its machine is lost": {
			func(s *reconcile.Snapshot) { s.Nodes["n0"].Alive, s.Nodes["n0"].MachineLost = false, true }, false,
		},
		"static":       {func(s *reconcile.Snapshot) { s.RC.Strategy = rc.Static }, false},
		"disabled":     {func(s *reconcile.Snapshot) { s.RC.Disabled = true }, false},
		"ordered":      {func(s *reconcile.Snapshot) { s.RC.ReplicaGroups[0].Ordered = true }, false},
		"it runs once": {func(s *reconcile.Snapshot) { s.Manifest = once(manifest.RestartNever) }, false},
		"in place":     {func(s *reconcile.Snapshot) { s.RC.InPlace = &rc.InPlace{Limit: 3} }, false},
		"it stays as it was found": {
			func(s *reconcile.Snapshot) { s.Pods[0].AdoptedAtGeneration = s.RC.Generation }, false,
		},
		"it moves": {
			func(s *reconcile.Snapshot) { s.Pods[0].Placement.Ghosts = []pod.Ghost{{Node: "n2", Revision: 3}} }, false,
		},
		"it is one too many":        {func(s *reconcile.Snapshot) { s.RC.ReplicaGroups[0].Count = &two }, false},
		"the nodes have not spoken": {func(s *reconcile.Snapshot) { s.Hold = "the records are new" }, false},
		"the breaker has tripped":   {func(s *reconcile.Snapshot) { s.Breaker = "tripped" }, false},
		"no other node":             {func(s *reconcile.Snapshot) { s.RC.NodeSelector = "only=n0" }, false},
		"all others have their one": {
			func(s *reconcile.Snapshot) { s.RC.MaxPerNode = 1; delete(s.Nodes, "n3") }, false,
		},
		"it has had its second node": {
			func(s *reconcile.Snapshot) { s.Pods[0].Avoid = []pod.Avoided{{Node: "n1", Digest: "m1"}} }, false,
		},
		"it had one for another": {
			func(s *reconcile.Snapshot) { s.Pods[0].Avoid = []pod.Avoided{{Node: "n1", Digest: "m0"}} }, true,
		},
		"another is on its way": {func(s *reconcile.Snapshot) { leave(&s.Pods[1]) }, false},
		"another has stopped": {func(s *reconcile.Snapshot) {
			leave(&s.Pods[1])
			s.Pods[1].Reality = stoppedAt("n1", s.Pods[1].Revision)
		}, false},
		"the rollout in charge goes on": {func(s *reconcile.Snapshot) { s.Rollout = "web/1" }, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := unfitPod()
			for _, v := range s.Nodes {
				v.Labels = map[string]string{"only": v.Name}
			}
			c.change(s)
			plan := reconcile.Compute(s)
			moves := false
			for i := range plan.Changes {
				next := plan.Changes[i].Placement
				moves = moves || plan.Changes[i].Identity.Index == 0 && next != nil && next.RunState == pod.Stopped &&
					next.Tried() != nil
			}
			if moves != c.moves {
				t.Errorf("moves is %t; stopped %v, %d changes", moves, stoppedBy(&plan), len(plan.Changes))
			}
		})
	}
}

// A pod wants a second node if it leaves its node or failed to start there, also if no other node may take it now. Then
// the farm looks at the controller when nodes change.
func TestAPodWantsASecondNode(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(s *reconcile.Snapshot)
		want   bool
	}{
		"it failed to start": {func(*reconcile.Snapshot) {}, true},
		"all others have their one": {
			func(s *reconcile.Snapshot) { s.RC.MaxPerNode = 1; delete(s.Nodes, "n3") }, true,
		},
		"it stops":                     {func(s *reconcile.Snapshot) { leave(&s.Pods[0]) }, true},
		"it is available":              {func(s *reconcile.Snapshot) { s.Pods[0] = running(0, "n0", 5, 0) }, false},
		"its pods get no second nodes": {func(s *reconcile.Snapshot) { s.RC.Strategy = rc.Static }, false},
		"it has had its second node": {
			func(s *reconcile.Snapshot) { s.Pods[0].Avoid = []pod.Avoided{{Node: "n1", Digest: "m1"}} }, false,
		},
	} {
		s := unfitPod()
		c.change(s)
		if got := reconcile.FactsOf(s).WantsSecondNode(); got != c.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}

// A pod that leaves its node avoids that node and the last two of the nodes that it avoids already.
func TestALeavingPodAvoidsTheLastNodes(t *testing.T) {
	t.Parallel()
	s := unfitPod()
	for _, name := range []string{"a", "b", "c", "d"} {
		s.Pods[0].Avoid = append(s.Pods[0].Avoid,
			pod.Avoided{Node: name, Since: s.Now, Generation: s.RC.Generation})
	}
	plan := reconcile.Compute(s)
	if len(plan.Changes) != 1 || plan.Changes[0].Action != reconcile.Stop {
		t.Fatalf("changes %v", plan.Changes)
	}
	var names []string
	for _, a := range plan.Changes[0].Placement.Avoid {
		names = append(names, a.Node)
	}
	if want := []string{"c", "d", s.Pods[0].Node}; !slices.Equal(names, want) {
		t.Errorf("avoids %v, want %v", names, want)
	}
}

// leave makes a pod stop to be tried elsewhere.
func leave(p *reconcile.Pod) {
	now := time.Unix(1_700_000_000, 0)
	p.RunState, p.Revision, p.StoppingSince = pod.Stopped, p.Revision+1, &now
	p.Avoid = []pod.Avoided{{Node: p.Node, Digest: p.Digest, Since: now}}
}

func stoppedAt(nodeName string, revision int64) *pod.Reality {
	return &pod.Reality{Node: nodeName, State: pod.StateStopped, Revision: revision}
}

// The next look comes when a pod that has not become available yet is overdue. From that moment on, the pod may leave.
// The next look also comes when a pod that leaves is overdue. From that moment on, another pod may leave.
func TestTheNextLookComesWhenAPodIsOverdue(t *testing.T) {
	t.Parallel()
	const deadline, passed = time.Minute, 10 * time.Second
	for since, want := range map[time.Duration]time.Duration{passed: deadline - passed, deadline: 0} {
		s := unfitPod()
		s.RC.ProgressDeadline = length(deadline)
		s.Pods[0].Reality.State, s.Pods[0].Reality.Hopeless = pod.StateRunning, false
		s.Pods[0].ChangedAt = s.Now.Add(-since)
		plan := reconcile.Compute(s)
		if plan.Again != want || slices.Contains(stoppedBy(&plan), 0) != (want == 0) {
			t.Errorf("not available since %s: again after %s, stopped %v", since, plan.Again, stoppedBy(&plan))
		}
		s = unfitPod()
		s.RC.ProgressDeadline = length(deadline)
		leave(&s.Pods[0])
		s.Pods[0].StoppingSince = new(s.Now.Add(-since))
		s.Pods[0].Avoid[0].Since = *s.Pods[0].StoppingSince
		neverThere(&s.Pods[1])
		plan = reconcile.Compute(s)
		if plan.Again != want || slices.Contains(stoppedBy(&plan), 1) != (want == 0) {
			t.Errorf("leaves since %s: again after %s, stopped %v", since, plan.Again, stoppedBy(&plan))
		}
	}
}

// A pod that is placed again uses one of the pods that the service may still have. The next group gets the others.
func TestAPodPlacedAgainCountsInTheBound(t *testing.T) {
	t.Parallel()
	for most, want := range map[int]int{4: 1, 5: 2, 6: 3} {
		s := unfitPod()
		leave(&s.Pods[0])
		s.Pods[0].Reality = stoppedAt("n0", s.Pods[0].Revision)
		groups(s, 3, "other", 2)
		besides(s, 1, 0, most) // one pod, besides the two that run here
		if plan := reconcile.Compute(s); len(plan.Adds) != want || plan.Adds[0] != s.Pods[0].Identity {
			t.Errorf("at most %d pods: %v are added, want %d", most, plan.Adds, want)
		}
	}
}

// While the pod stops, and until its node confirms the stop, its identity is not used. Then it is placed again under
// the identity. If it is not desired any more, it is not placed.
func TestAnIdentityIsPlacedAgainAfterItsStop(t *testing.T) {
	t.Parallel()
	s := unfitPod()
	leave(&s.Pods[0])
	s.Pods[0].OwnLabels = map[string]string{"debug": "on"}
	if plan := reconcile.Compute(s); len(plan.Adds) != 0 || len(plan.Changes) != 0 {
		t.Errorf("while it stops: %v are added, %d changes", plan.Adds, len(plan.Changes))
	}
	s.Pods[0].Reality = stoppedAt("n0", s.Pods[0].Revision)
	plan := reconcile.Compute(s)
	if len(plan.Changes) != 0 || len(plan.Adds) != 1 || plan.Adds[0] != s.Pods[0].Identity || plan.Status.Hopeless {
		t.Fatalf("when it has stopped: %v are added, %d changes", plan.Adds, len(plan.Changes))
	}
	if avoided := plan.Facts().AvoidedBy(&s.Pods[0]); len(avoided) != 1 || avoided[0] != "n0" || !lastChoice(s)["n0"] {
		t.Errorf("avoids %v, last %v", avoided, lastChoice(s))
	}
	for _, to := range []string{"n2", "n0"} { // n0 only if no other node takes it
		ch := plan.Placer().On(plan.Adds[0], to)
		next := ch.Placement
		if next.Node != to || next.RunState != pod.Running || next.StoppingSince != nil || next.Tried() == nil ||
			next.Revision <= s.Pods[0].Revision || ch.Index != s.Pods[0].Index {
			t.Errorf("placed as %+v", next)
		}
		if want := map[string]string{
			"n2": "move main.0 from n0 to n2: it never became available on n0",
			"n0": "move main.0 on n0: it never became available on n0",
		}[to]; ch.String() != want {
			t.Errorf("the line is %q, want %q", ch.String(), want)
		}
		if kept := len(next.OwnLabels) > 0; kept != (to == "n0") { // they were given to the copy on n0
			t.Errorf("to %s: own labels %v", to, next.OwnLabels)
		}
		freed := 0
		for _, r := range ch.Reserve {
			if r.Claim == nil && r.Node == "n0" {
				freed++
			}
		}
		if want := map[bool]int{true: 0, false: 1}[to == "n0"]; freed != want || len(ch.Intents) != want+1 ||
			len(ch.Placement.Ghosts) != 0 {
			t.Errorf("to %s: %d shares given back, intents %+v", to, freed, ch.Intents)
		}
	}
	two := 2
	s.RC.ReplicaGroups[0].Count = &two
	if plan := reconcile.Compute(s); len(plan.Adds) != 0 || len(plan.Changes) != 1 ||
		plan.Changes[0].Action != reconcile.Remove {
		t.Errorf("when two are desired: %v are added, %d changes", plan.Adds, len(plan.Changes))
	}
	three := 3
	s.RC.ReplicaGroups[0].Count = &three
	s.RC.ManifestDigest = "m2"
	s.Manifests = map[string]*manifest.Manifest{"m2": s.Manifest}
	if plan := reconcile.Compute(s); len(plan.Changes) == 0 || plan.Changes[0].Action != reconcile.Remove {
		t.Errorf("with another manifest: %d changes", len(plan.Changes))
	}
}

// If a pod leaves its node, and the machine is lost before it has confirmed the stop, another replica replaces the pod.
func TestALostMachineConfirmsNoStop(t *testing.T) {
	t.Parallel()
	s := unfitPod()
	leave(&s.Pods[0])
	s.Nodes["n0"].Alive, s.Nodes["n0"].MachineLost = false, true
	if plan := reconcile.Compute(s); len(plan.Adds) != 1 || plan.Adds[0].Index != 3 {
		t.Errorf("%v are added", plan.Adds)
	}
}

// A pod is not hopeless as long as it can be tried on another node. TriedElsewhere is when the last pod began to leave.
func TestAPodThatLeavesIsNotHopeless(t *testing.T) {
	t.Parallel()
	s := unfitPod()
	s.RC.Service = &rc.Service{Name: "web", Revision: 1}
	st := reconcile.Compute(s).Status
	if len(st.Failing) != 1 || st.Failing[0].Hopeless || st.Hopeless || st.TriedElsewhere != nil {
		t.Errorf("before it leaves: %+v", st)
	}
	since := s.Now.Add(-time.Minute)
	s.Pods[0].Avoid = []pod.Avoided{{Node: "n2", Digest: "m1", Since: since}}
	s.Pods[1].Avoid = []pod.Avoided{{Node: "n2", Digest: "m1", Since: since.Add(-time.Minute)}}
	st = reconcile.Compute(s).Status
	why := ""
	for _, cond := range st.Conditions {
		if cond.Type == rc.Converged {
			why = cond.Reason
		}
	}
	if !strings.Contains(why, "waiting for main.0 on n0") ||
		!strings.Contains(why, "it did not become available on n2") {
		t.Errorf("not converged: %q", why)
	}
	if len(st.Failing) != 1 || !st.Failing[0].Hopeless || !st.Hopeless || st.TriedElsewhere == nil ||
		!st.TriedElsewhere.Equal(since) {
		t.Errorf("on its second node: %+v", st)
	}
}

// lastChoice returns the nodes that new replicas get last.
func lastChoice(s *reconcile.Snapshot) map[string]bool {
	facts := reconcile.FactsOf(s)
	lot := facts.DefaultLot()
	return facts.LeastPreferred(&lot)
}

// A node is the last choice for new replicas if pods never became available there, although other pods of the
// controller are available. This ends after some time.
func TestNodesWherePodsFailedAreLeastPreferred(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(s *reconcile.Snapshot)
		want   string
	}{
		"one is there": {func(*reconcile.Snapshot) {}, "map[n0:true]"},
		"one was there": {func(s *reconcile.Snapshot) {
			s.Pods[0] = running(0, "n1", 5, 0)
			s.Pods[0].Avoid = []pod.Avoided{{Node: "n0", Digest: "m1", Since: s.Now}}
		}, "map[n0:true]"},
		"long ago": {func(s *reconcile.Snapshot) {
			s.Pods[0] = running(0, "n1", 5, 0)
			s.Pods[0].Avoid = []pod.Avoided{{Node: "n0", Digest: "m1", Since: s.Now.Add(-time.Hour)}}
		}, "map[]"},
		"another works there":  {func(s *reconcile.Snapshot) { s.Pods[1] = running(1, "n0", 5, 0) }, "map[]"},
		"none works":           {func(s *reconcile.Snapshot) { s.Pods = s.Pods[:1] }, "map[]"},
		"with another version": {func(s *reconcile.Snapshot) { s.RC.ManifestDigest = "m2" }, "map[]"},
	} {
		s := unfitPod()
		c.change(s)
		if got := fmt.Sprint(lastChoice(s)); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}

// Another owner may follow after any step, and any part of a plan may land. Each pod still leaves its first node only
// once, and in the end all pods run if some node works.
func TestSecondNodesEndWell(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		w := onBadMachine(rapid.IntRange(1, 12).Draw(t, "pods"), rapid.Bool().Draw(t, "hopeless"))
		bad := rapid.IntRange(1, 2).Draw(t, "bad machines")
		for i := range bad {
			w.sick[fmt.Sprintf("n%d", i)] = true
		}
		surge := rapid.IntRange(0, 2).Draw(t, "surge")
		w.rc.MaxSurge = &surge
		deadline := field.Duration(rapid.IntRange(1, 3).Draw(t, "deadline") * int(time.Second))
		w.rc.ProgressDeadline = &deadline
		for range 40 {
			w.now = w.now.Add(300 * time.Millisecond)
			for where := range w.intents {
				if rapid.Bool().Draw(t, "obeys") {
					w.obey(where)
				}
			}
			w.lands = func() bool { return rapid.Bool().Draw(t, "lands") }
			w.pass(t, false)
		}
		w.lands = nil
		w.elapse(t, time.Minute)
		for id, p := range w.pods {
			if !w.sick[p.Node] {
				continue
			}
			if p.Tried() == nil {
				t.Fatalf("%s is on %s and has not been elsewhere", id, p.Node)
			}
		}
		if w.running() != w.rc.Desired() || len(w.pods) != w.rc.Desired() {
			t.Fatalf("%d run, %d placed", w.running(), len(w.pods))
		}
	})
}

// tried returns what a pod's placement has about its first node.
func (w *world) tried(i int) *pod.Avoided {
	p := w.placement(i)
	return p.Tried()
}
