package reconcile_test

import (
	"slices"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/farm/reconcile"
	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
)

func count(n int) *int { return &n }

func snapshotOf(desired int) *reconcile.Snapshot {
	s := &reconcile.Snapshot{
		Now: time.Unix(1_700_000_000, 0), Owner: "f1", Nodes: map[string]*node.View{},
		Manifest: &manifest.Manifest{Version: 1, ID: "p", MinReady: new(field.Duration)},
		RC: rc.RC{
			ID: "rc", ManifestDigest: "m1", Generation: 7, Strategy: rc.Dynamic,
			ReplicaGroups: []rc.ReplicaGroup{{Role: "main", Count: count(desired)}},
		},
	}
	for _, name := range []string{"n0", "n1", "n2", "n3"} {
		s.Nodes[name] = &node.View{Node: node.Node{Name: name, Capacity: node.Capacity{Slots: 9}}, Alive: true}
	}
	return s
}

// given are the labels of a pod whose controller and manifest have none.
func given(podID string) map[string]string {
	return map[string]string{pod.RCIDLabel: "rc", pod.PodIDLabel: podID}
}

func running(index int, on string, revision, adoptedAt int64) reconcile.Pod {
	id := pod.Identity{RCID: "rc", Role: "main", Index: index}
	return reconcile.Pod{
		Placement: pod.Placement{
			Identity: id, Node: on, PodID: "p", Digest: "m1", RunState: pod.Running, Revision: revision,
			AdoptedAtGeneration: adoptedAt, Labels: given("p"),
		},
		Index: 9, Ghosts: map[string]*pod.Reality{},
		Reality: &pod.Reality{
			Identity: id, Node: on, Digest: "m1", Revision: revision, State: pod.StateReady, Available: true,
		},
	}
}

// An older snapshot has 2 replicas; 4 run. The two in the snapshot must not stop because two others were adopted.
func TestAdoptedSurplusStopsNoPod(t *testing.T) {
	s := snapshotOf(2)
	s.Pods = []reconcile.Pod{
		running(0, "n0", 5, 0), running(1, "n1", 5, 0), running(2, "n2", 6, 7), running(3, "n3", 6, 7),
	}
	for _, ch := range reconcile.Compute(s).Changes {
		t.Errorf("P4, R2: %s", &ch)
	}
}

// A stop in an older store is not confirmed by that store, because a later intent may have asked the node to run the
// pod again. It is confirmed when the node has spoken.
func TestAStopIsConfirmedInThePresentEpoch(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		edit func(*reconcile.Snapshot)
		gone bool
	}{
		"the epoch is the node's": {func(*reconcile.Snapshot) {}, true},
		"held, it has spoken":     {func(s *reconcile.Snapshot) { s.Hold = "n3 has not spoken" }, true},
		"held, it has not spoken": {
			func(s *reconcile.Snapshot) { s.Hold, s.Nodes["n0"].Epoch = "n0 has not spoken", "e0" }, false,
		},
		"held, it has spoken in part": {
			func(s *reconcile.Snapshot) { s.Hold, s.Nodes["n0"].OrphansUnread = "n0 has not spoken", true }, false,
		},
		"held, nothing is known of the node": {
			func(s *reconcile.Snapshot) { s.Hold = "n0 has not spoken"; delete(s.Nodes, "n0") }, false,
		},
		"the store was lost, it is silent": {func(s *reconcile.Snapshot) { s.Nodes["n0"].Epoch = "e0" }, true},
		"the store went back, it is silent": {
			func(s *reconcile.Snapshot) { s.WentBack, s.Nodes["n0"].Epoch = true, "e0" }, false,
		},
		"the store went back, it has spoken": {func(s *reconcile.Snapshot) { s.WentBack = true }, true},
		"the store went back, it is forgotten": {
			func(s *reconcile.Snapshot) { s.WentBack = true; delete(s.Nodes, "n0") }, true,
		},
	} {
		for what, ghost := range map[string]bool{"pod": false, "former copy": true} {
			s := snapshotOf(1)
			s.Epoch = "e1"
			for _, v := range s.Nodes {
				v.Epoch = s.Epoch
			}
			p := running(0, "n0", 5, 0)
			p.RunState, p.Reality.State, p.Reality.Available = pod.Stopped, pod.StateStopped, false
			if ghost {
				p = running(0, "n1", 6, 0)
				p.Placement.Ghosts = []pod.Ghost{{Node: "n0", Revision: 5}}
				p.Ghosts["n0"] = &pod.Reality{
					Identity: p.Identity, Node: "n0", Digest: "m1", Revision: 5, State: pod.StateStopped,
				}
			}
			s.Pods = []reconcile.Pod{p}
			c.edit(s)
			plan := reconcile.Compute(s)
			isRemoval := func(ch reconcile.Change) bool { return ch.Action == reconcile.Remove }
			if got := slices.ContainsFunc(plan.Changes, isRemoval); got != c.gone {
				t.Errorf("%s, %s: removed %v, want %v: %v", name, what, got, c.gone, plan.Changes)
			}
		}
	}
}

// During a hold nothing may be started, because the identity may run on a node that has not spoken yet.
func TestRepairStartsNothingWhileHolding(t *testing.T) {
	for name, change := range map[string]func(*reconcile.Pod){
		"stopped at a higher revision": func(p *reconcile.Pod) {
			p.Reality.State, p.Reality.Available, p.Reality.Revision = pod.StateStopped, false, 50
		},
		"no intent and nothing reported": func(p *reconcile.Pod) {
			p.Reality, p.Intents = nil, map[string]*pod.Intent{}
		},
	} {
		s := snapshotOf(1)
		s.Hold = "the records are new"
		p := running(0, "n0", 5, 0)
		change(&p)
		s.Pods = []reconcile.Pod{p}
		for _, ch := range reconcile.Compute(s).Changes {
			for _, in := range ch.Intents {
				if in.Intent != nil && in.Intent.State == pod.Running {
					t.Errorf("R1, %s: %s, intent %+v", name, &ch, *in.Intent)
				}
			}
		}
		s.Hold = ""
		for _, ch := range reconcile.Compute(s).Changes {
			if ch.Placement != nil && ch.Placement.RunState == pod.Running && !ch.NeedsSchema {
				t.Errorf("%s: without a hold it must start, on condition that the epoch stays: %s", name, &ch)
			}
		}
	}
}

// The higher revision wins, but the only available copy does not stop for a copy that may never become available.
func TestAdoptingAWinnerKeepsTheAvailableCopyUntilTheWinnerIs(t *testing.T) {
	s := snapshotOf(2)
	least := 2
	s.RC.MinAvailable = &least
	s.Pods = []reconcile.Pod{running(0, "n0", 5, 0), running(1, "n1", 5, 0)}
	s.Orphans = []reconcile.Orphan{
		{Node: "n2", Orphan: pod.Orphan{Identity: s.Pods[0].Identity, PodID: "p", Digest: "m1", Revision: 9}},
	}
	for _, ch := range reconcile.Compute(s).Changes {
		for _, in := range ch.Intents {
			if in.Intent != nil && in.Intent.State == pod.Stopped {
				t.Errorf("P6: %s stops the available copy on %s", &ch, in.Node)
			}
		}
	}
}

// A deleted controller that came back with a restore may have pods on nodes that have not spoken yet, so it is not
// finished.
func TestNoControllerIsFinishedWhileHolding(t *testing.T) {
	s := snapshotOf(2)
	s.RC.DeletedAt = &s.Now
	s.Hold = "the records are new"
	if reconcile.Compute(s).Finish {
		t.Error("P7: the controller is removed before its nodes can have reported its pods")
	}
}

// desired + surge is one limit for all roles of the controller.
func TestAdoptedPodsOfAllRolesShareOneLimit(t *testing.T) {
	s := snapshotOf(2)
	zero := 0
	s.RC.MaxSurge = &zero
	s.RC.ReplicaGroups = append(s.RC.ReplicaGroups, rc.ReplicaGroup{Role: "other", Count: count(2)})
	for i := range 4 {
		s.Orphans = append(s.Orphans, reconcile.Orphan{Node: "n1", Orphan: pod.Orphan{
			Identity: pod.Identity{RCID: "rc", Role: "other", Index: i}, PodID: "p", Digest: "m1", Revision: 9,
		}})
	}
	plan := reconcile.Compute(s)
	if n := len(plan.Changes) + len(plan.Adds); n > 4 {
		t.Errorf("P6: %d adopted and %d added, desired + surge is 4", len(plan.Changes), len(plan.Adds))
	}
}

// If a pod stops because it is unavailable, the change must not land after the pod became available and the minimum
// needs it.
func TestStoppingAnUnavailablePodNeedsTheMinimum(t *testing.T) {
	s := snapshotOf(2)
	least := 2
	s.RC.MinAvailable = &least
	sick := running(2, "n2", 5, 0)
	sick.Reality.Available = false
	s.Pods = []reconcile.Pod{running(0, "n0", 5, 0), running(1, "n1", 5, 0), sick}
	for _, ch := range reconcile.Compute(s).Changes {
		if !ch.NeedsMinimum || ch.TakesAvailable || len(ch.NeedsReports) > 0 {
			t.Errorf("P6: %s would land although its pod became available and another one failed: %+v", &ch, ch)
		}
	}
	if plan := reconcile.Compute(s); len(plan.Available) != 2 || plan.Minimum != 2 {
		t.Errorf("available are %v, the minimum is %d", plan.Available, plan.Minimum)
	}
	// Below the minimum no pod may stop that has become available since.
	s.Pods[1].Reality.Available = false
	for _, ch := range reconcile.Compute(s).Changes {
		if ch.NeedsMinimum || !slices.Equal(ch.NeedsReports, []string{ch.Placement.Node}) {
			t.Errorf("P6: %s would land although its pod became available: %+v", &ch, ch)
		}
	}
}

// The minimum names the node where each pod is available. For a pod that moves this is the node that it leaves, unless
// its copy there was asked to stop.
func TestTheMinimumNamesTheAvailableCopies(t *testing.T) {
	t.Parallel()
	for asked, want := range map[int64][]string{0: {"n0", "n1", "n2"}, 4: {"n1", "n2"}} {
		s := row(3, 3)
		onItsWay(s, 0, time.Minute)
		s.Pods[0].Placement.Ghosts[0].Revision = asked
		s.RC.MinAvailable, s.RC.ReplicaGroups = count(1), []rc.ReplicaGroup{{Role: "main", Count: count(1)}}
		plan := reconcile.Compute(s)
		var got []string
		for _, c := range plan.Available {
			got = append(got, c.Node)
		}
		if !slices.Equal(got, want) {
			t.Errorf("asked to stop at %d: %v, want %v; changes %v", asked, got, want, plan.Changes)
		}
	}
}

// If one copy of a pod stops because another one is available, the change depends on the report of that other one, also
// without a minimum.
func TestAFormerCopyStopsOnlyWithTheReportOfTheOther(t *testing.T) {
	for least := range 2 {
		s := snapshotOf(1)
		s.RC.MinAvailable = &least
		p := running(0, "n1", 5, 0)
		p.Placement.Ghosts = []pod.Ghost{{Node: "n0", Since: s.Now}}
		p.Ghosts = map[string]*pod.Reality{"n0": {Digest: "m1", Revision: 4, State: pod.StateReady, Available: true}}
		s.Pods = []reconcile.Pod{p}
		plan := reconcile.Compute(s)
		if len(plan.Changes) != 1 || plan.Changes[0].Action != reconcile.StopDuplicate ||
			plan.Changes[0].NeedsMinimum || !slices.Equal(plan.Changes[0].NeedsReports, []string{"n1"}) {
			t.Errorf("minimum %d: %+v", least, plan.Changes)
		}
	}
}

// The old version runs, on its port, until the node has installed the new one (P5).
func TestAnUpgradeKeepsTheOldPortsUntilTheNodeHasSwitched(t *testing.T) {
	s := snapshotOf(1)
	least := 0
	s.RC.MinAvailable = &least
	s.Manifest.Ports = []manifest.Port{{Name: "http", Port: 8081}}
	p := running(0, "n0", 5, 0)
	p.Digest, p.Reality.Digest, p.Ports = "m0", "m0", map[string]int{"http": 8080}
	s.Pods = []reconcile.Pod{p}
	for _, ch := range reconcile.Compute(s).Changes {
		if r := ch.Reserve[0]; !r.Keep {
			t.Errorf("P3, P5: %s reserves %v only while 8080 is still in use", &ch, r.Claim.Ports)
		}
	}
}

// A pod that runs has the ports of its own manifest, not the ports of the older placement.
func TestRepairToAHigherRevisionKeepsThePorts(t *testing.T) {
	s := snapshotOf(1)
	p := running(0, "n0", 5, 0)
	p.Ports = map[string]int{"http": 8080}
	p.Reality.Digest, p.Reality.Revision = "m2", 9
	s.Pods = []reconcile.Pod{p}
	for _, ch := range reconcile.Compute(s).Changes {
		if ch.Placement.Digest == "m2" && ch.Placement.Ports["http"] == 8080 {
			t.Errorf("P3: %s gives manifest m2 the ports of m1; the node then lists no orphan to repair it with", &ch)
		}
	}
}

// A pod that must leave its node, and may not because of the minimum, is reported as blocked, and the controller has
// not converged.
func TestAPodThatMayNotLeaveIsReported(t *testing.T) {
	s := snapshotOf(1)
	least := 1
	none := 0
	s.RC.MinAvailable, s.RC.MaxSurge = &least, &none
	s.Pods = []reconcile.Pod{running(0, "n0", 5, 0)}
	s.Nodes["n0"].Ops.Drain = &node.Drain{}
	plan := reconcile.Compute(s)
	if len(plan.Changes)+len(plan.Adds) != 0 || !plan.Status.Is(rc.Blocked) || plan.Status.Is(rc.Converged) {
		t.Errorf("changes %v, adds %v, status %+v", plan.Changes, plan.Adds, plan.Status)
	}
}

// If one more copy is allowed and all pods are available, even the only replica moves: its new copy comes first.
func TestTheOnlyReplicaMovesWithASurge(t *testing.T) {
	s := snapshotOf(1)
	least := 1
	s.RC.MinAvailable = &least
	s.Pods = []reconcile.Pod{running(0, "n0", 5, 0)}
	s.Nodes["n0"].Ops.Drain = &node.Drain{}
	if plan := reconcile.Compute(s); len(plan.Changes) != 0 || len(plan.Adds) != 1 {
		t.Errorf("changes %v, adds %v", plan.Changes, plan.Adds)
	}
	// At the minimum no available pod moves while another one is unavailable.
	s = snapshotOf(2)
	s.RC.MinAvailable = &least
	s.Pods = []reconcile.Pod{running(0, "n0", 5, 0), running(1, "n1", 5, 0)}
	s.Pods[1].Reality.Available = false
	s.Nodes["n0"].Ops.Drain = &node.Drain{}
	if plan := reconcile.Compute(s); len(plan.Changes)+len(plan.Adds) != 0 {
		t.Errorf("changes %v, adds %v", plan.Changes, plan.Adds)
	}
}

// If a resync finds that no stop of a former copy is missing, it waits for nothing.
func TestAResyncWithoutMissingStopsWaitsForNothing(t *testing.T) {
	for _, missing := range []bool{false, true} {
		for want, change := range map[rc.ConditionType]func(*reconcile.Snapshot){
			rc.Holding:        func(s *reconcile.Snapshot) { s.Hold = "the records are new" },
			rc.BreakerTripped: func(s *reconcile.Snapshot) { s.Breaker = "tripped" },
		} {
			s := snapshotOf(1)
			s.Pods = []reconcile.Pod{running(0, "n0", 5, 0)}
			p := &s.Pods[0]
			p.Placement.Ghosts = []pod.Ghost{{Node: "n1", Revision: 4}}
			here, there := p.Intent(), p.GhostIntent(p.Placement.Ghosts[0])
			p.Intents = map[string]*pod.Intent{"n0": &here, "n1": &there}
			if missing {
				delete(p.Intents, "n1")
			}
			change(s)
			if plan := reconcile.Compute(s); len(plan.Changes) != 0 || plan.Status.Is(want) != missing {
				t.Errorf("missing %t: changes %v, conditions %+v", missing, plan.Changes, plan.Status.Conditions)
			}
		}
	}
}
