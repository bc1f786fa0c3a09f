package reconcile_test

import (
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/farm/reconcile"
	"github.com/rcfarm/rcfarm/pkg/feature"
	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
)

// leavesFirst returns a controller of three pods of which main.0 has left its node, and has stopped or not.
func leavesFirst(stopped bool) *reconcile.Snapshot {
	s := unfitPod()
	leave(&s.Pods[0])
	if stopped {
		s.Pods[0].Reality = stoppedAt("n0", s.Pods[0].Revision)
	}
	return s
}

// neverThere makes a pod one that never became available, and never will.
func neverThere(p *reconcile.Pod) {
	crash(p)
	p.Reality.Hopeless, p.Reality.NeverAvailable = true, true
}

// A pod that failed with a new manifest halts the others also while it gets its second node (R6).
func TestAnUpgradeWaitsForASecondNode(t *testing.T) {
	t.Parallel()
	for _, stopped := range []bool{false, true} {
		s := leavesFirst(stopped)
		s.RC.MinAvailable, s.RC.ManifestDigest = count(1), "m2"
		s.Manifests = map[string]*manifest.Manifest{"m1": s.Manifest}
		s.Pods[0].Digest = "m2"
		s.Pods[0].Avoid[0].Digest = "m2"
		for _, ch := range reconcile.Compute(s).Changes {
			if ch.Action == reconcile.Upgrade {
				t.Errorf("stopped %v: %s", stopped, &ch)
			}
		}
	}
}

// Where another copy is known the pod is no vacancy: that copy is adopted, as for any pod that has stopped.
func TestNoSecondNodeBesideAnotherCopy(t *testing.T) {
	t.Parallel()
	s := leavesFirst(true)
	s.Orphans = []reconcile.Orphan{{Node: "n3", Orphan: pod.Orphan{Identity: s.Pods[0].Identity, Revision: 100, Digest: "m1", PodID: "p", Runs: true}}}
	plan := reconcile.Compute(s)
	if len(plan.Adds) > 0 || len(plan.Changes) != 1 || plan.Changes[0].Action != reconcile.Remove {
		t.Errorf("placed are %v, changed %v", plan.Adds, plan.Changes)
	}
	s = unfitPod()
	s.Orphans = []reconcile.Orphan{{Node: "n3", Orphan: pod.Orphan{Identity: s.Pods[0].Identity, Revision: 1, Digest: "m1", PodID: "p", Runs: true}}}
	for _, ch := range reconcile.Compute(s).Changes {
		if ch.Action == reconcile.Stop && ch.Identity == s.Pods[0].Identity && len(ch.Placement.Avoid) > 0 {
			t.Errorf("it leaves for a second node: %s", &ch)
		}
	}
}

// The node that a pod leaves is the last choice also where another pod of the manifest works there.
func TestTheNodeThatIsLeftComesLast(t *testing.T) {
	t.Parallel()
	s := leavesFirst(true)
	s.Pods[1] = running(1, "n0", 5, 0)
	if reconcile.Compute(s); !s.LastChoice()["n0"] {
		t.Errorf("the last choice is %v", s.LastChoice())
	}
}

// Four pods of eight began on a bad machine. Three have just had their second nodes; while those may become available
// the fourth is not hopeless, and no stage fails for it.
func TestAFourthPodIsNotHopelessYet(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		since    time.Duration
		hopeless bool
	}{"others start": {0, false}, "their time is over": {2 * time.Hour, true}} {
		s := snapshotOf(8)
		s.RC.Service = &rc.Service{Name: "web", Revision: 1}
		for i := range 8 {
			p := running(i, "n1", 5, 0)
			p.Reality.Available, p.Reality.State, p.Reality.NeverAvailable = false, pod.StateRunning, true
			p.ChangedAt = s.Now.Add(-c.since)
			switch {
			case i < 3:
				p.Node, p.Reality.Node = "n2", "n2"
				p.Avoid = []pod.Avoided{{Node: "n0", Digest: p.Digest, Since: s.Now}}
			case i == 3:
				p.Node, p.Reality.Node = "n0", "n0"
				neverThere(&p)
			}
			s.Pods = append(s.Pods, p)
		}
		for _, f := range reconcile.Compute(s).Status.Failing {
			if f.Pod == "main.3" && f.Hopeless != c.hopeless {
				t.Errorf("%s: %+v", name, f)
			}
		}
	}
}

// Nobody waits for ever for a node that does not confirm a stop.
func TestALateStopHoldsUpNothing(t *testing.T) {
	t.Parallel()
	s := leavesFirst(false)
	neverThere(&s.Pods[1])
	if plan := reconcile.Compute(s); len(plan.Adds) > 0 || len(plan.Changes) > 0 || plan.Again <= 0 {
		t.Errorf("at first: placed are %v, changed %v, again after %s", plan.Adds, plan.Changes, plan.Again)
	}
	s.Now = s.Now.Add(24 * time.Hour)
	if plan := reconcile.Compute(s); len(plan.Adds) == 0 && len(plan.Changes) == 0 {
		t.Error("a day later nothing takes its place")
	}
}

// A pod that leaves keeps its place among the replicas when its intent is written again.
func TestARepairOfAPodThatLeaves(t *testing.T) {
	t.Parallel()
	s := leavesFirst(false)
	s.Pods[0].Intents = map[string]*pod.Intent{}
	if plan := reconcile.Compute(s); len(plan.Adds) > 0 {
		t.Errorf("placed are %v", plan.Adds)
	}
}

// A pod that becomes available before the stop is written is not stopped, whatever the minimum.
func TestASecondNodeIsForWhatWasRead(t *testing.T) {
	t.Parallel()
	s := unfitPod()
	s.RC.MinAvailable = count(0)
	plan := reconcile.Compute(s)
	if len(plan.Changes) != 1 || len(plan.Changes[0].NeedsReports) != 1 || plan.Changes[0].NeedsReports[0] != "n0" {
		t.Errorf("the changes are %+v", plan.Changes)
	}
}

// A pod that came back to its first node, and is stopped there for another reason, is no vacancy: it is removed, and
// another takes its place.
func TestAStopForAnotherReason(t *testing.T) {
	t.Parallel()
	for _, stopped := range []bool{false, true} {
		s := leavesFirst(stopped)
		s.Pods[0].Avoid[0].Since = s.Pods[0].StoppingSince.Add(-time.Minute)
		plan := reconcile.Compute(s)
		switch {
		case !stopped && (len(plan.Adds) != 1 || plan.Adds[0] == s.Pods[0].Identity):
			t.Errorf("while it stops %v are added", plan.Adds)
		case stopped && (len(plan.Changes) != 1 || plan.Changes[0].Action != reconcile.Remove):
			t.Errorf("when it has stopped: added are %v, changed %v", plan.Adds, plan.Changes)
		}
	}
}

// While the manifest cannot be read a pod that has left its node waits. It is not forgotten: it would get a second
// second node.
func TestAVacancyWithoutAManifest(t *testing.T) {
	t.Parallel()
	for _, stopped := range []bool{false, true} {
		s := leavesFirst(stopped)
		m := s.Manifest
		s.Manifest = nil
		if plan := reconcile.Compute(s); len(plan.Adds) > 0 || len(plan.Changes) > 0 {
			t.Errorf("stopped %v: added are %v, changed %v", stopped, plan.Adds, plan.Changes)
		}
		s.Manifest = m
		if plan := reconcile.Compute(s); stopped && (len(plan.Adds) != 1 || plan.Adds[0] != s.Pods[0].Identity) {
			t.Errorf("added are %v", plan.Adds)
		}
	}
}

// Nor does it hold up pods of other roles, whose manifests can be read: neither their second nodes nor their upgrade.
func TestAVacancyWithoutAManifestHoldsUpNothing(t *testing.T) {
	t.Parallel()
	of := func(change func(s *reconcile.Snapshot)) *reconcile.Snapshot {
		s := leavesFirst(true)
		m := s.Manifest
		s.Manifest, s.Manifests = nil, map[string]*manifest.Manifest{"m3": m}
		s.RC.ReplicaGroups = append(s.RC.ReplicaGroups, rc.ReplicaGroup{Role: "other", Count: count(1)})
		s.RC.GroupManifests = map[string]string{"other": "m3"}
		p := running(0, "n1", 5, 0)
		p.Role, p.Reality.Role, p.Digest, p.Reality.Digest = "other", "other", "m3", "m3"
		s.Pods = append(s.Pods, p)
		change(s)
		return s
	}
	s := of(func(s *reconcile.Snapshot) { neverThere(&s.Pods[3]) })
	if plan := reconcile.Compute(s); len(plan.Changes) != 1 || plan.Changes[0].Action != reconcile.Stop || plan.Changes[0].Identity.Role != "other" {
		t.Errorf("second nodes: changed are %v", plan.Changes)
	}
	s = of(func(s *reconcile.Snapshot) {
		s.Pods[3].Digest, s.Pods[3].Reality.Digest, s.RC.MinAvailable = "m4", "m4", count(0)
	})
	if plan := reconcile.Compute(s); len(plan.Changes) != 1 || plan.Changes[0].Action != reconcile.Upgrade {
		t.Errorf("upgrades: changed are %v", plan.Changes)
	}
}

// A status needs the feature only where a node does that says of a pod that it was never available: under an older
// gate none does, and a status that needs more could not be written.
func TestAStatusNeedsNoMoreThanReports(t *testing.T) {
	t.Parallel()
	for _, never := range []bool{true, false} {
		s := unfitPod()
		s.RC.Strategy = rc.Static
		s.Pods[0].Reality.NeverAvailable = never
		if st := reconcile.Compute(s).Status; st.Hopeless != never || feature.NeedOf(&st).Zero() == never {
			t.Errorf("never available %t: hopeless %t, needs %+v", never, st.Hopeless, feature.NeedOf(&st))
		}
	}
}

// The time of those that may tell whether a manifest works ends without any event: the controller is looked at again
// then.
func TestAHopelessPodIsLookedAtInTime(t *testing.T) {
	t.Parallel()
	s := snapshotOf(5)
	for i := range 5 {
		p := running(i, "n1", 5, 0)
		p.ChangedAt, p.Reality.Available, p.Reality.State, p.Reality.NeverAvailable = s.Now, false, pod.StateRunning, true
		p.Avoid = []pod.Avoided{{Node: "n0", Digest: p.Digest, Since: s.Now}}
		s.Pods = append(s.Pods, p)
	}
	s.Pods[4].Avoid = nil
	neverThere(&s.Pods[4])
	plan := reconcile.Compute(s)
	if plan.Status.Hopeless || plan.Again <= 0 {
		t.Fatalf("hopeless %t, again after %s", plan.Status.Hopeless, plan.Again)
	}
	s.Now = s.Now.Add(plan.Again)
	if plan = reconcile.Compute(s); !plan.Status.Hopeless {
		t.Error("it is not hopeless when the others have had their time")
	}
}
