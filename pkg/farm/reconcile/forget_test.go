package reconcile_test

import (
	"slices"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/farm/reconcile"
	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
)

func forget(id, on string, p *reconcile.Pod) reconcile.Request {
	return reconcile.Request{ID: id, Forget: true, Node: on, Pod: p.Identity, NodeIndex: 5, Declared: 5}
}

// A copy is forgotten on condition that its node is still dead. A second request about the pod waits for the next pass.
func TestForgettingNeedsADeadNode(t *testing.T) {
	t.Parallel()
	s := snapshotOf(1)
	p := running(0, "n0", 5, 0)
	p.Placement.Ghosts = []pod.Ghost{{Node: "n1", Revision: 4}}
	s.Pods = []reconcile.Pod{p}
	s.Requests = []reconcile.Request{
		forget("first", "n1", &p), forget("second", "n0", &p),
		{ID: "node lives", Forget: true, Alive: true, Node: "n0", Pod: p.Identity},
	}
	plan := reconcile.Compute(s)
	if len(plan.Changes) != 1 ||
		!slices.Equal(plan.Changes[0].NeedsDead, []reconcile.DeadNode{{Name: "n1", Index: 5}}) {
		t.Errorf("changes %+v", plan.Changes)
	}
	if got := answers(&plan); !slices.Equal(got, []string{"first", "node lives"}) {
		t.Errorf("answered %v", got)
	}
	if len(plan.Void) != 1 || plan.Void[0].Request != "node lives" || !plan.Status.Is(rc.RequestVoid) {
		t.Errorf("void %v, status %+v", plan.Void, plan.Status)
	}
}

// A request that would stop a former copy waits while nothing may be stopped.
func TestForgettingWaitsForTheBreaker(t *testing.T) {
	t.Parallel()
	for _, breaker := range []string{"tripped", ""} {
		s := snapshotOf(1)
		s.Breaker = breaker
		p := running(0, "n0", 5, 0)
		p.Placement.Ghosts = []pod.Ghost{{Node: "n1", Revision: 4}}
		s.Nodes["n0"].Alive = false
		s.Pods = []reconcile.Pod{p}
		s.Requests = []reconcile.Request{forget("r", "n0", &p)}
		plan := reconcile.Compute(s)
		i := slices.IndexFunc(plan.Changes, func(ch reconcile.Change) bool {
			return ch.NeedsDead != nil && ch.Action != reconcile.Mark
		})
		if waits := breaker != ""; waits != (i < 0) || waits != (len(answers(&plan)) == 0) {
			t.Errorf("breaker %q: answered %v, changes %+v", breaker, answers(&plan), plan.Changes)
		}
	}
}

// moved is a controller with one pod on n0. n0 has died, and an operator declares the pod there gone. Former copies are
// on other nodes. The former copies with revision zero are reported as available, with another manifest.
func moved(ghosts ...pod.Ghost) *reconcile.Snapshot {
	s := snapshotOf(1)
	least := 1
	s.RC.MinAvailable = &least
	s.Nodes["n0"].Alive, s.Nodes["n0"].MachineLost = false, true
	p := running(0, "n0", 5, 0)
	p.Placement.Ghosts, p.Reality = ghosts, nil
	for _, g := range ghosts {
		r := running(0, g.Node, 4, 0).Reality
		r.Digest = "m0"
		if g.Revision != 0 {
			r.State, r.Available = pod.StateStopping, false
		}
		p.Ghosts[g.Node] = r
	}
	s.Pods = []reconcile.Pod{p}
	s.Requests = []reconcile.Request{forget("r", "n0", &p)}
	return s
}

// carriedOut applies a change to the pod, and keeps the reports of its nodes.
func carriedOut(s *reconcile.Snapshot, ch *reconcile.Change) {
	p := &s.Pods[0]
	reports := p.Ghosts
	p.Placement, p.Reality, p.Ghosts = *ch.Placement, reports[ch.Placement.Node], map[string]*pod.Reality{}
	for _, g := range p.Placement.Ghosts {
		p.Ghosts[g.Node] = reports[g.Node]
	}
	s.Requests = nil
	s.Now = s.Now.Add(time.Second)
}

// A pod that moves is available on its former node. If its new node dies and is declared gone, nothing stops on the
// former node, so neither the breaker nor a hold prevents that the former copy becomes the pod.
func TestForgettingTheNewCopyKeepsTheOldOne(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*reconcile.Snapshot){
		"alone":        func(*reconcile.Snapshot) {},
		"with breaker": func(s *reconcile.Snapshot) { s.Breaker = "tripped" },
		"holding":      func(s *reconcile.Snapshot) { s.Hold = "the records are new" },
		"disabled":     func(s *reconcile.Snapshot) { s.RC.Disabled = true },
		"unavailable":  func(s *reconcile.Snapshot) { s.Pods[0].Ghosts["n1"].Available = false },
	} {
		ports := map[string]int{"http": 20001}
		s := moved(pod.Ghost{Node: "n1", Ports: ports})
		s.Nodes["n1"].Ops.Drain = &node.Drain{Since: s.Now}
		change(s)
		ch := only(t, s, reconcile.Return)
		p := ch.Placement
		if p.Node != "n1" || p.RunState != pod.Running || p.Digest != "m0" || p.Revision <= 5 || len(p.Ghosts) != 0 ||
			p.LostSince != nil || p.StoppingSince != nil {
			t.Errorf("%s: the placement is %+v", name, *p)
		}
		wantPorts(t, name, p.Ports, ports)
		if len(ch.Intents) != 2 || ch.Intents[0] != (reconcile.IntentChange{Node: "n0"}) ||
			ch.Intents[1].Node != "n1" || !sameIntent(*ch.Intents[1].Intent, p.Intent()) {
			t.Errorf("%s: the intents are %+v", name, ch.Intents)
		}
		if ch.NeedsDead == nil || ch.NeedsBreaker || !ch.NeedsSchema || !slices.Equal(ch.Answers, []string{"r"}) ||
			len(ch.Reserve) != 1 || ch.Reserve[0].Node != "n0" {
			t.Errorf("%s: the change is %+v", name, ch)
		}
	}
}

func sameIntent(a, b pod.Intent) bool {
	return a.Digest == b.Digest && a.State == b.State && a.Revision == b.Revision
}

// A placement names the present death of a machine. Otherwise a node that came back since would still be lost because
// of its earlier death.
func TestAFormerCopyOnALostMachineBecomesALostPod(t *testing.T) {
	t.Parallel()
	s := moved(pod.Ghost{Node: "n1"})
	v := s.Nodes["n1"]
	v.Alive, v.MachineLost, v.FreeIndex = false, true, 9
	ch := only(t, s, reconcile.Return)
	want := []reconcile.DeadNode{{Name: "n0", Index: 5}, {Name: "n1", Index: 9}}
	if ch.Placement.LostSince == nil || !slices.Equal(ch.NeedsDead, want) {
		t.Errorf("it depends on the deaths %v, want %v: %+v", ch.NeedsDead, want, ch.Placement)
	}
}

// A former copy that becomes the pod again on a drained node leaves that node later.
func TestAFormerCopyLeavesItsDrainedNodeLater(t *testing.T) {
	t.Parallel()
	for _, force := range []bool{false, true} {
		s := moved(pod.Ghost{Node: "n1"})
		s.Pods[0].Ghosts["n1"].Digest = "m1"
		s.Nodes["n1"].Ops.Drain = &node.Drain{Since: s.Now, Force: force}
		ch := only(t, s, reconcile.Return)
		carriedOut(s, &ch)
		plan := reconcile.Compute(s)
		if force && (len(plan.Changes) != 1 || plan.Changes[0].Action != reconcile.Stop) {
			t.Errorf("the drain is forced: %v, adds %v", plan.Changes, plan.Adds)
		}
		if !force && (len(plan.Changes) != 0 || !slices.Equal(plan.Adds, []pod.Identity{s.Pods[0].Identity})) {
			t.Errorf("changes %v, adds %v, want another move", plan.Changes, plan.Adds)
		}
	}
}

// Of several former copies that run, the available one becomes the pod. A copy that was asked to stop never becomes the
// pod.
func TestTheAvailableFormerCopyIsKept(t *testing.T) {
	t.Parallel()
	s := moved(pod.Ghost{Node: "n1", Revision: 4}, pod.Ghost{Node: "n2"}, pod.Ghost{Node: "n3"})
	s.Pods[0].Ghosts["n2"].Available = false
	ch := only(t, s, reconcile.Return)
	if left := ghostsOf(ch.Placement); ch.Placement.Node != "n3" || !slices.Equal(left, []string{"n1", "n2"}) ||
		ch.Placement.Ghosts[0].Revision != 4 || ch.Placement.Ghosts[1].Revision != 0 {
		t.Errorf("the placement is %+v", *ch.Placement)
	}
	carriedOut(s, &ch)
	plan := reconcile.Compute(s)
	if got := stops(&plan); !slices.Equal(got, []string{"n2"}) {
		t.Errorf("then %v stop, want the other copies that run", got)
	}

	s = moved(pod.Ghost{Node: "n1", Since: s.Now}, pod.Ghost{Node: "n2"})
	s.Nodes["n1"].Alive, s.Nodes["n1"].MachineLost = false, true
	if ch = only(t, s, reconcile.Return); ch.Placement.Node != "n2" {
		t.Errorf("it is given back to %s, whose machine is lost", ch.Placement.Node)
	}
}

func ghostsOf(p *pod.Placement) (names []string) {
	for _, g := range p.Ghosts {
		names = append(names, g.Node)
	}
	return names
}

// A copy that was asked to stop continues to stop.
func TestForgettingRestartsNoCopyThatStops(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*reconcile.Pod){
		"the former copy": func(p *reconcile.Pod) { p.Placement.Ghosts[0].Revision = 4 },
		"the pod":         func(p *reconcile.Pod) { p.RunState, p.Placement.Ghosts[0].Revision = pod.Stopped, 5 },
		"no copy, but one has stopped": func(p *reconcile.Pod) {
			p.Ghosts["n1"].State, p.Ghosts["n1"].Available = pod.StateStopped, false
		},
	} {
		s := moved(pod.Ghost{Node: "n1"})
		change(&s.Pods[0])
		plan := reconcile.Compute(s)
		if got := stops(&plan); !slices.Equal(got, []string{"n1"}) {
			t.Fatalf("%s was asked to stop: stops on %v", name, got)
		}
		if ch := plan.Changes[0]; ch.Placement.RunState != pod.Stopped || ch.Placement.Node != "n1" ||
			!ch.NeedsBreaker || ch.Placement.StoppingSince == nil {
			t.Errorf("%s was asked to stop: %+v", name, ch)
		}
	}
}

// During a hold no pod starts on a node, unless the node reports that it runs the pod.
func TestForgettingStartsNothingWhileHolding(t *testing.T) {
	t.Parallel()
	s := moved(pod.Ghost{Node: "n1"})
	delete(s.Pods[0].Ghosts, "n1")
	s.Hold = "the records are new"
	plan := reconcile.Compute(s)
	if got := answers(&plan); len(got) != 0 || !plan.Status.Is(rc.Holding) {
		t.Errorf("R1: answered %v with %v", got, plan.Changes)
	}
	s.Hold = ""
	if ch := only(t, s, reconcile.Return); !ch.NeedsSchema || ch.Placement.Digest != "m1" {
		t.Errorf("then %+v", ch)
	}
	intent := s.Pods[0].Intent()
	intent.Digest = "m0"
	s.Pods[0].Intents = map[string]*pod.Intent{"n1": &intent}
	if ch := only(t, s, reconcile.Return); ch.Placement.Digest != "m0" {
		t.Errorf("it restarts with another manifest than its intent has: %+v", ch.Placement)
	}
}

// If the former node is dead too, the pod is lost there. The placements show since when (P7).
func TestAPodReturnedToADeadNodeCountsFromItsLoss(t *testing.T) {
	t.Parallel()
	start := moved().Now
	ago := func(d time.Duration) time.Time { return start.Add(-d) }
	other := func(s *reconcile.Snapshot) *reconcile.Pod { // another pod on the same node
		*s.RC.ReplicaGroups[0].Count = 2
		s.Pods = append(s.Pods, running(1, "n1", 5, 0))
		return &s.Pods[1]
	}
	for name, c := range map[string]struct {
		gone, wasLost bool
		change        func(*reconcile.Snapshot)
		want          time.Time
		replaced      bool
	}{
		"it was moved because of that": {
			gone: true, wasLost: true, want: ago(time.Minute + 30*time.Second), replaced: true,
		},
		"which took as long as the controller allows": {
			gone: true, wasLost: true, want: ago(2 * time.Minute), replaced: true,
			change: func(s *reconcile.Snapshot) { after := field.Duration(time.Minute); s.RC.NodeLoss.After = &after },
		},
		"it was moved because the preparer was gone": {
			wasLost: true, want: ago(11 * time.Minute), replaced: true,
		},
		"it was moved for another reason": {
			gone: true, want: start,
		},
		"its preparer went after that": {
			want: start,
		},
		"another pod there remembers": {
			gone: true, want: ago(20 * time.Second),
			change: func(s *reconcile.Snapshot) { at := ago(20 * time.Second); other(s).LostSince = &at },
		},
		"another pod there remembers that of the preparer": {
			want:   ago(20 * time.Second),
			change: func(s *reconcile.Snapshot) { at := ago(20 * time.Second); other(s).UnmanagedSince = &at },
		},
	} {
		s := moved(pod.Ghost{Node: "n1", LeftBecauseLost: c.wasLost, MachineLost: c.gone, Since: ago(time.Minute)})
		s.Nodes["n1"].Alive, s.Nodes["n1"].MachineLost = false, c.gone
		if c.change != nil {
			c.change(s)
		}
		plan := reconcile.Compute(s)
		p := plan.Changes[0].Placement
		got, none := p.UnmanagedSince, p.LostSince
		if c.gone {
			got, none = none, got
		}
		if p.Node != "n1" || p.RunState != pod.Running || none != nil || got == nil || !got.Equal(c.want) ||
			len(stops(&plan)) != 0 {
			t.Errorf("%s: lost since %v, without a preparer since %v, want %v: %+v", name, p.LostSince,
				p.UnmanagedSince, c.want, *p)
			continue
		}
		carriedOut(s, &plan.Changes[0])
		if plan = reconcile.Compute(s); slices.Contains(plan.Adds, s.Pods[0].Identity) != c.replaced {
			t.Errorf("%s: adds %v, changes %v", name, plan.Adds, plan.Changes)
		}
	}
}

// A restored store may have a pod on a node that remembers its stop, with a former copy that still runs. The former
// copy becomes the pod. If it has stopped too, nothing is left of the pod. If its reported stop has a revision that is
// too low, it is asked to stop.
func TestAConfirmedStopReturnsAPodThatMoved(t *testing.T) {
	t.Parallel()
	for stop, left := range map[int64]bool{0: true, 4: false, 9: false} {
		s := moved(pod.Ghost{Node: "n1"})
		s.Nodes["n0"].Alive, s.Nodes["n0"].MachineLost, s.Requests = true, false, nil
		p := &s.Pods[0]
		p.Reality = &pod.Reality{Identity: p.Identity, Node: "n0", Digest: "m1", Revision: 9, State: pod.StateStopped}
		if !left {
			r := p.Ghosts["n1"]
			r.State, r.Available, r.Revision = pod.StateStopped, false, stop
		}
		ch := only(t, s, reconcile.Remove)
		if stop == 9 {
			if ch.Placement != nil || len(ch.Intents) != 2 || ch.Intents[0].Intent != nil ||
				ch.Intents[1].Intent != nil || len(ch.Reserve) != 2 {
				t.Errorf("both have stopped: %+v", ch)
			}
			continue
		}
		if ch.Placement == nil || ch.Placement.Node != "n1" || (ch.Placement.RunState == pod.Running) != left ||
			ch.Placement.Revision <= 9 || ch.NeedsBreaker == left {
			t.Errorf("left %t: the change is %+v", left, ch)
		}
	}
}

// A restored store may have a former copy that its node has stopped since. The copy's intent and share are removed: a
// node that dies forgets the stop, and would start the copy again beside the pod.
func TestAStoppedFormerCopyIsForgotten(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		state  pod.State
		stop   int64 // revision of the report
		intent *pod.Intent
		gone   bool
	}{
		"after all that is known":   {pod.StateStopped, 6, nil, true},
		"in the pod's own revision": {pod.StateStopped, 5, nil, false},
		"after its intent": {
			pod.StateStopped, 4, &pod.Intent{State: pod.Running, Revision: 3}, true,
		},
		"before its intent": {
			pod.StateStopped, 3, &pod.Intent{State: pod.Running, Revision: 3}, false,
		},
		"its intent is to stop": {
			pod.StateStopped, 4, &pod.Intent{State: pod.Stopped, Revision: 3}, false,
		},
		"it is stopping": {
			pod.StateStopping, 6, &pod.Intent{State: pod.Running, Revision: 3}, false,
		},
		"it runs at a higher revision than its": {
			pod.StateReady, 4, &pod.Intent{State: pod.Running, Revision: 3}, false,
		},
	} {
		for _, hold := range []string{"", "the records are new"} {
			s := moved(pod.Ghost{Node: "n1"}, pod.Ghost{Node: "n2"})
			s.Nodes["n0"].Alive, s.Nodes["n0"].MachineLost, s.Requests, s.Hold = true, false, nil, hold
			p := &s.Pods[0]
			p.Reality = running(0, "n0", 5, 0).Reality
			p.Reality.Available = false
			p.Ghosts["n1"].State, p.Ghosts["n1"].Available, p.Ghosts["n1"].Revision = c.state, false, c.stop
			if c.intent != nil {
				intent, stays := p.Intent(), p.Intent()
				stays.Revision = 3
				p.Intents = map[string]*pod.Intent{"n0": &intent, "n1": c.intent, "n2": &stays}
			}
			plan := reconcile.Compute(s)
			at := slices.IndexFunc(plan.Changes, func(ch reconcile.Change) bool {
				return ch.Action == reconcile.Remove
			})
			if gone := at >= 0; gone != c.gone {
				t.Errorf("%s, hold %q: %v", name, hold, plan.Changes)
			}
			if at < 0 {
				continue
			}
			ch := plan.Changes[at]
			if ch.Placement == nil || ch.Placement.Node != "n0" || ch.Placement.Revision != 5 ||
				!slices.Equal(ghostsOf(ch.Placement), []string{"n2"}) {
				t.Errorf("%s, hold %q: it leaves %+v", name, hold, ch.Placement)
			}
			if in, res := ch.Intents, ch.Reserve; len(in) != 1 || in[0].Node != "n1" || in[0].Intent != nil ||
				len(res) != 1 || res[0].Node != "n1" || res[0].Claim != nil {
				t.Errorf("%s, hold %q: intents %+v, shares %+v", name, hold, in, res)
			}
		}
	}
}

// A copy that runs at a higher revision than an older store has is adopted. The pod does not return to another copy,
// and the adopted copy is not stopped.
func TestACopyNewerThanTheStoreIsAdopted(t *testing.T) {
	t.Parallel()
	for _, revision := range []int64{0, 4} { // of the former copy in the store
		s := moved(pod.Ghost{Node: "n1", Revision: revision})
		s.Orphans = []reconcile.Orphan{
			{Node: "n1", Orphan: pod.Orphan{Identity: s.Pods[0].Identity, PodID: "p", Digest: "m0", Revision: 9}},
		}
		if ch := only(t, s, reconcile.Adopt); ch.Placement.Node != "n1" ||
			ch.Placement.AdoptedAtGeneration != s.RC.Generation || len(ch.Answers) != 0 {
			t.Errorf("R2, revision %d: %+v", revision, ch)
		}
	}
	for revision, found := range map[int64]bool{9: true, 5: false} { // its node does not list it yet
		s := moved(pod.Ghost{Node: "n1"})
		s.Pods[0].Ghosts["n1"].Revision = revision
		if ch := only(t, s, reconcile.Return); (ch.Placement.AdoptedAtGeneration == s.RC.Generation) != found ||
			ch.Placement.Revision <= revision {
			t.Errorf("R2, revision %d: %+v", revision, ch.Placement)
		}
	}
}

// If the machine of the copy with the higher revision is lost, the copy with the lower revision is not stopped, because
// only this copy is available. The last report of the lost machine makes no difference.
func TestTheLoserStaysWhileTheWinnersMachineIsLost(t *testing.T) {
	t.Parallel()
	for _, lost := range []bool{true, false} {
		s := moved(pod.Ghost{Node: "n1"})
		p := &s.Pods[0]
		s.Requests, p.Reality = nil, running(0, "n0", 5, 0).Reality
		s.Nodes["n0"].MachineLost = lost
		s.Orphans = []reconcile.Orphan{
			{Node: "n1", Orphan: pod.Orphan{Identity: p.Identity, PodID: "p", Digest: "m0", Revision: 4}},
		}
		plan := reconcile.Compute(s)
		if got := stops(&plan); slices.Contains(got, "n1") == lost || plan.Status.Available != 1 {
			t.Errorf("lost %t: stops on %v, status %+v", lost, got, plan.Status)
		}
	}
}

// A request is about the death that the operator saw. If it was void, the status shows this for a while.
func TestForgettingIsVoidOnceTheNodeWasBack(t *testing.T) {
	t.Parallel()
	s := snapshotOf(1)
	p := running(0, "n0", 5, 0)
	s.Nodes["n0"].Alive, s.Nodes["n0"].FreeIndex = false, 9
	p.UnmanagedSince, p.DeadIndex = &s.Now, 9
	s.Pods = []reconcile.Pod{p}
	r := forget("r", "n0", &p)
	r.NodeIndex = 9
	s.Requests = []reconcile.Request{r}
	plan := reconcile.Compute(s)
	if len(plan.Changes) != 0 || len(plan.Void) != 1 || !slices.Equal(answers(&plan), []string{"r"}) ||
		!plan.Status.Is(rc.RequestVoid) {
		t.Errorf("void %v, changes %v, status %+v", plan.Void, plan.Changes, plan.Status)
	}
	s.Requests, s.Previous, s.Now = nil, &plan.Status, s.Now.Add(time.Minute)
	if plan = reconcile.Compute(s); !plan.Status.Is(rc.RequestVoid) || plan.Again > 9*time.Minute {
		t.Errorf("a minute later: look again after %s, status %+v", plan.Again, plan.Status)
	}
	s.Previous, s.Now = &plan.Status, s.Now.Add(10*time.Minute)
	if plan = reconcile.Compute(s); plan.Status.Is(rc.RequestVoid) {
		t.Errorf("at last: %+v", plan.Status)
	}
}
