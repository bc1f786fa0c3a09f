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
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
)

// spreadOut has three pods on n0, n1 and n2, of a controller that allows one on a node and selects pool a.
func spreadOut(t rapid.TB) *world {
	w := newWorld()
	three := 3
	w.rc.ReplicaGroups, w.rc.MaxPerNode, w.rc.NodeSelector = []rc.ReplicaGroup{{
		Role:  "main",
		Count: &three,
	}}, 1, "pool=a"
	for name := range w.nodes {
		w.pool(name, "a")
	}
	w.settle(t)
	for i := range 3 {
		if on := w.on(i); on != fmt.Sprintf("n%d", i) {
			t.Fatalf("main.%d is on %s", i, on)
		}
	}
	return w
}

// pool labels a node, as an operator would.
func (w *world) pool(name, value string) {
	v := *w.nodes[name]
	v.Ops.Labels = map[string]string{"pool": value}
	w.nodes[name] = &v
}

func (w *world) drain(name string) {
	v := *w.nodes[name]
	v.Ops.Drain = &node.Drain{Since: w.now}
	w.nodes[name] = &v
}

func (w *world) die(name string) {
	v := *w.nodes[name]
	w.deaths++
	v.Alive, v.MachineLost, v.FreeIndex = false, true, w.deaths
	w.nodes[name] = &v
}

func (w *world) placement(i int) pod.Placement {
	return w.pods[pod.Identity{RCID: "rc", Role: "main", Index: i}]
}

func (w *world) on(i int) string { return w.placement(i).Node }

// run lets time pass in small steps, in which nodes carry out their intents.
func (w *world) run(t rapid.TB, d time.Duration) {
	const step = 500 * time.Millisecond
	for ; d > 0; d -= step {
		w.now = w.now.Add(step)
		w.obeyAll()
		w.pass(t, false)
		if left := w.available(); left < w.rc.MinimumAvailable() && !w.lossy() {
			t.Fatalf("%d available, the minimum is %d (P6)", left, w.rc.MinimumAvailable())
		}
	}
}

// lossy reports whether a machine is lost, because then pods may be below the minimum.
func (w *world) lossy() bool {
	for _, v := range w.nodes {
		if !v.Alive {
			return true
		}
	}
	return false
}

func (w *world) reason(t rc.ConditionType) string {
	for _, c := range w.status.Conditions {
		if c.Type == t && c.True {
			return c.Reason
		}
	}
	return ""
}

// If a moved pod does not become available on its new node, it is tried on another node, no matter why it moved. Its
// former copy runs until one of them is available.
func TestAMoveToASickNodeIsTriedElsewhere(t *testing.T) {
	t.Parallel()
	for cause, leave := range map[string]func(*world){
		"selector": func(w *world) { w.pool("n0", "b") },
		"drain":    func(w *world) { w.drain("n0") },
		"loss":     func(w *world) { w.die("n0") },
	} {
		t.Run(cause, func(t *testing.T) {
			t.Parallel()
			w := spreadOut(t)
			w.sick["n3"] = true
			leave(w)
			w.run(t, 2*time.Second)
			if on := w.on(0); on != "n3" {
				t.Fatalf("moved to %s, want n3", on)
			}
			w.run(t, 6*time.Second)
			p := w.placement(0)
			if p.Node != "n4" || len(p.Avoid) != 1 || p.Avoid[0].Node != "n3" ||
				!strings.Contains(p.Avoid[0].Reason, "no answer") {
				t.Fatalf("%s, avoids %+v; want n4, which is well", p.Node, p.Avoid)
			}
			if w.available() != 3 || cause != "loss" && !w.status.Is(rc.Converged) {
				t.Errorf("%d available, %+v", w.available(), w.status)
			}
		})
	}
}

// If no other node takes the pod, or enough nodes were tried, the old copy is the pod again, and the status has the
// reason. The pod is tried again after a while, or when the controller is changed.
func TestAFailedMoveReturnsToTheOldCopy(t *testing.T) {
	t.Parallel()
	w := spreadOut(t)
	w.sick["n3"], w.sick["n4"], w.sick["n5"] = true, true, true
	w.pool("n0", "b")
	w.run(t, 15*time.Second)
	p := w.placement(0)
	if p.Node != "n0" || len(p.Ghosts) != 0 || len(p.Avoid) != 3 || w.available() != 3 {
		t.Fatalf("%+v, %d available; want it back on n0", p, w.available())
	}
	for _, want := range []string{"main.0 must leave n0", "n3 (unhealthy: no answer), n4 (", "it is tried again at "} {
		if why := w.reason(rc.Blocked); !strings.Contains(why, want) {
			t.Errorf("blocked: %q, want %q", why, want)
		}
	}
	clear(w.sick)
	w.run(t, 5*time.Second)
	if on := w.on(0); on != "n0" {
		t.Errorf("moved to %s before the time", on)
	}
	w.rc.Generation++
	w.run(t, 3*time.Second)
	if on := w.on(0); on == "n0" || !w.status.Is(rc.Converged) {
		t.Errorf("on %s after a change of the controller; %+v", on, w.status)
	}
}

func TestAFailedMoveIsTriedAgainLater(t *testing.T) {
	t.Parallel()
	w := spreadOut(t)
	w.sick["n3"], w.sick["n4"], w.sick["n5"] = true, true, true
	w.pool("n0", "b")
	w.run(t, 15*time.Second)
	clear(w.sick)
	w.run(t, 10*w.rc.Deadline())
	if on := w.on(0); on == "n0" || !w.status.Is(rc.Converged) {
		t.Errorf("on %s; %+v", on, w.status)
	}
}

// A node that may keep its pod again gets it back if the move is still under way.
func TestANeedlessMoveIsTakenBack(t *testing.T) {
	t.Parallel()
	w := spreadOut(t)
	w.sick["n3"] = true
	w.pool("n0", "b")
	w.run(t, 1500*time.Millisecond)
	if on := w.on(0); on != "n3" {
		t.Fatalf("moved to %s, want n3", on)
	}
	w.pool("n0", "a")
	w.run(t, time.Second)
	if p := w.placement(0); p.Node != "n0" || len(p.Avoid) != 0 {
		t.Fatalf("%s, avoids %v; want it back, and nothing to avoid", p.Node, p.Avoid)
	}
	w.run(t, 2*time.Second)
	if !w.status.Is(rc.Converged) || w.running() != 3 {
		t.Errorf("%d copies, %+v", w.running(), w.status)
	}
}

// Other pods do not wait for a stuck move.
func TestADrainDoesNotWaitForAStuckMove(t *testing.T) {
	t.Parallel()
	w := spreadOut(t)
	w.sick["n3"], w.sick["n4"] = true, true
	w.pool("n5", "b") // no other node takes the pod
	w.pool("n0", "b")
	w.run(t, 10*time.Second)
	if p := w.placement(0); p.Node != "n0" || len(p.Avoid) != 2 {
		t.Fatalf("%s, avoids %v; want it back on n0", p.Node, p.Avoid)
	}
	delete(w.sick, "n3")
	w.drain("n2")
	w.run(t, 3*time.Second)
	if on := w.on(2); on != "n3" {
		t.Errorf("main.2 is on %s, want n3, which works by now; %+v", on, w.status)
	}
}

// A former copy that does not confirm its stop delays other pods only until the deadline.
func TestAnUnconfirmedStopDelaysNoPodForLong(t *testing.T) {
	t.Parallel()
	w := spreadOut(t)
	w.drain("n0")
	for w.placement(0).Ghosts == nil || w.placement(0).Ghosts[0].Revision == 0 {
		w.run(t, 500*time.Millisecond)
	}
	v := *w.nodes["n0"]
	w.deaths++
	v.Alive, v.FreeIndex = false, w.deaths // its machine lives, and no preparer confirms the stop
	w.nodes["n0"] = &v
	w.drain("n1")
	w.now = w.now.Add(500 * time.Millisecond)
	w.pass(t, false)
	if why := w.reason(rc.Blocked); !strings.Contains(why, "n0, which has no preparer") {
		t.Errorf("blocked: %q", why)
	}
	w.run(t, 5*time.Second)
	if on := w.on(1); on == "n1" {
		t.Errorf("main.1 is still on n1; %+v", w.status)
	}
}

// If a pod finds no node, the loss, which the move would have written, is written alone, because the next owner must
// know it.
func TestALossIsRecordedIfNoNodeIsFound(t *testing.T) {
	t.Parallel()
	s := snapshotOf(1)
	s.Pods = []reconcile.Pod{running(0, "n1", 5, 0)}
	p := &s.Pods[0]
	p.Placement.Ghosts, p.Reality = []pod.Ghost{{Node: "n0"}}, nil
	s.Nodes["n0"].Alive, s.Nodes["n0"].MachineLost = false, true
	plan := reconcile.Compute(s)
	if !slices.Equal(plan.Adds, []pod.Identity{p.Identity}) || len(plan.LossRecords) != 1 ||
		!plan.LossRecords[0].Placement.Ghosts[0].MachineLost {
		t.Errorf("adds %v, marks %+v", plan.Adds, plan.LossRecords)
	}
	if to := plan.Placer().On(p.Identity, "n2").Placement; !to.Ghosts[0].MachineLost || len(to.Avoid) != 1 ||
		to.Avoid[0].Node != "n1" {
		t.Errorf("moved on: %+v", to)
	}
}

// A pod of an upgrade has as much time as its controller allows.
func TestTheControllerSetsTheDeadline(t *testing.T) {
	t.Parallel()
	for deadline, halted := range map[time.Duration]bool{time.Second: true, time.Minute: false} {
		s := snapshotOf(2)
		d := field.Duration(deadline)
		s.RC.ProgressDeadline = &d
		s.Pods = []reconcile.Pod{running(0, "n0", 5, 0), running(1, "n1", 5, 0)}
		s.Pods[0].ChangedAt, s.Pods[0].Reality = s.Now.Add(-10*time.Second), nil
		s.Pods[1].Digest = "m0"
		plan := reconcile.Compute(s)
		if plan.Status.Is(rc.Blocked) != halted || !halted && plan.Again != 50*time.Second {
			t.Errorf("%s: %+v, again after %s", deadline, plan.Status.Conditions, plan.Again)
		}
	}
}

// The time that a pod's images have arrived comes on top of its deadline, if the report is about its present revision.
func TestTheDeadlineWaitsForImages(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		pulled, older int64
		halted        bool
	}{
		"no pull": {0, 0, true}, "a short pull": {8, 0, true}, "a long pull": {30, 0, false},
		"a pull of another revision": {30, 1, true},
	} {
		s := snapshotOf(2)
		s.RC.ProgressDeadline = new(field.Duration(time.Second))
		s.RC.Service, s.Rollout = &rc.Service{Name: "web", Revision: 2}, "R"
		s.RC.InPlace = &rc.InPlace{Limit: 2}
		s.Pods = []reconcile.Pod{running(0, "n0", 5, 0), running(1, "n1", 5, 0)}
		p := &s.Pods[0]
		p.ChangedAt = s.Now.Add(-10 * time.Second)
		p.Reality.State, p.Reality.Available, p.Reality.PullSeconds = pod.StateFetching, false, tt.pulled
		p.Reality.Revision -= tt.older
		s.Pods[1].Digest = "m0"
		plan := reconcile.Compute(s)
		if plan.Status.Is(rc.Blocked) != tt.halted || !tt.halted && plan.Again != 21*time.Second {
			t.Errorf("%s: %+v, again after %s", name, plan.Status.Conditions, plan.Again)
		}
		if got := plan.Status.PullSeconds; got != tt.pulled && tt.older == 0 || tt.older > 0 && got != 0 {
			t.Errorf("%s: the status has %d seconds", name, got)
		}
	}
}

// TestAnyMoveComesToAnEnd makes nodes sick, drained, relabelled and lost while pods move and nodes carry out their
// intents. After each pass checkMoves proves that no move stays stuck.
func TestAnyMoveComesToAnEnd(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		w := spreadOut(t)
		for range rapid.IntRange(1, 12).Draw(t, "steps") {
			v := w.anyNode(t)
			switch rapid.SampledFrom([]string{
				"sick", "sick", "well", "selector", "drain", "drain", "keep", "loss",
				"back",
			}).Draw(t, "step") {
			case "sick":
				w.sick[v.Name] = true
			case "well":
				delete(w.sick, v.Name)
				w.rereportSick()
			case "selector":
				v.Ops.Labels = map[string]string{"pool": "b"}
			case "drain":
				v.Ops.Drain = &node.Drain{Since: w.now}
			case "keep":
				v.Ops = node.Ops{Labels: map[string]string{"pool": "a"}}
			case "loss":
				w.deaths++
				v.Alive, v.MachineLost, v.FreeIndex = false, true, w.deaths
			case "back":
				v.Alive, v.MachineLost, v.FreeIndex = true, false, 0
			}
			w.run(t, time.Duration(rapid.IntRange(1, 12).Draw(t, "s"))*500*time.Millisecond)
		}
		w.heal()
		for name := range w.nodes {
			w.pool(name, "a")
		}
		w.rereport()
		w.settle(t)
		if len(w.pods) != 3 || w.running() != 3 || !w.status.Is(rc.Converged) {
			t.Fatalf("%d placed, %d running, %+v", len(w.pods), w.running(), w.status)
		}
	})
}

// A pod that is kept on a node that does not match is named, with the reason. Even so, the controller may have
// converged.
func TestMisplacedPodsAreNamed(t *testing.T) {
	t.Parallel()
	for reason, change := range map[string]func(*reconcile.Snapshot){
		"its controller is static":                func(s *reconcile.Snapshot) { s.RC.Strategy = rc.Static },
		"rollout r1 is in charge":                 func(s *reconcile.Snapshot) { s.Rollout = "r1" },
		"it was found running and stays as it is": func(s *reconcile.Snapshot) { s.Pods[0].AdoptedAtGeneration = 7 },
	} {
		s := snapshotOf(2)
		s.Pods = []reconcile.Pod{running(0, "n0", 5, 0), running(1, "n1", 5, 0)}
		s.RC.NodeSelector = "pool=a"
		for name, v := range s.Nodes {
			if name != "n0" {
				v.Labels = map[string]string{"pool": "a"}
			}
		}
		change(s)
		plan := reconcile.Compute(s)
		why := ""
		for _, c := range plan.Status.Conditions {
			if c.Type == rc.Misplaced && c.True {
				why = c.Reason
			}
		}
		if !strings.Contains(why, "main.0 stays on n0, whose labels \"pool=a\" does not match: "+reason) ||
			strings.Contains(why, "main.1") {
			t.Errorf("%s: %q", reason, why)
		}
		if len(plan.Changes)+len(plan.Adds) > 0 || !plan.Status.Is(rc.Converged) {
			t.Errorf("%s: changes %v, adds %v, %+v", reason, plan.Changes, plan.Adds, plan.Status)
		}
		s.RC.Disabled, s.Previous = true, &plan.Status
		if plan = reconcile.Compute(s); plan.Status.Is(rc.Misplaced) {
			t.Errorf("%s: misplaced while nothing may be moved: %+v", reason, plan.Status)
		}
	}
}

// The text of a change names the nodes that a pod leaves and its next node. The audit trail finds the change by all of
// them.
func TestAChangeNamesItsNodes(t *testing.T) {
	t.Parallel()
	w := spreadOut(t)
	w.sick["n3"] = true
	w.pool("n0", "b")
	seen := map[reconcile.Action]string{}
	for range 30 {
		w.now = w.now.Add(500 * time.Millisecond)
		w.obeyAll()
		s := w.snapshot(false)
		plan := reconcile.Compute(s)
		for _, id := range plan.Adds {
			if name := w.nodeFor(&plan, id); name != "" {
				plan.Changes = append(plan.Changes, plan.Placer().On(id, name))
			}
		}
		for i := range plan.Changes {
			ch := &plan.Changes[i]
			if seen[ch.Action] == "" {
				seen[ch.Action] = fmt.Sprintf("%s %v", ch, ch.Nodes())
			}
			w.apply(t, ch)
		}
	}
	for action, want := range map[reconcile.Action]string{
		reconcile.Move:          "move main.0 from n0 to n3: n0 may not keep it [n0 n3]",
		reconcile.Return:        "return main.0 from n3 to n0: its move failed",
		reconcile.StopDuplicate: "stop-duplicate main.0 from n0: it is available on n4 [n0 n4]",
		reconcile.Remove:        "remove main.0 from n3: the node confirmed the stop [n0 n3]",
	} {
		if !strings.HasPrefix(seen[action], want) {
			t.Errorf("%s: %q, want %q", action, seen[action], want)
		}
	}
}
