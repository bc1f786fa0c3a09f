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

// leavesFirst returns a controller of three pods, of which main.0 leaves its node for a second one. stopped is whether
// it has stopped.
func leavesFirst(stopped bool) *reconcile.Snapshot {
	s := unfitPod()
	leave(&s.Pods[0])
	if stopped {
		s.Pods[0].Reality = stoppedAt("n0", s.Pods[0].Revision)
	}
	return s
}

// neverThere makes the state of a pod that never became available, and never will.
func neverThere(p *reconcile.Pod) {
	crash(p)
	p.Reality.Hopeless, p.Reality.NeverAvailable = true, true
}

// A pod that failed with a new manifest also halts the upgrade of the others while it gets its second node (R6).
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

// If another copy of a pod is known, the pod is not vacant: the copy is adopted, as for any pod that has stopped.
func TestNoSecondNodeBesideAnotherCopy(t *testing.T) {
	t.Parallel()
	s := leavesFirst(true)
	s.Orphans = []reconcile.Orphan{
		{
			Node:   "n3",
			Orphan: pod.Orphan{Identity: s.Pods[0].Identity, Revision: 100, Digest: "m1", PodID: "p", Runs: true},
		},
	}
	plan := reconcile.Compute(s)
	if len(plan.Adds) > 0 || len(plan.Changes) != 1 || plan.Changes[0].Action != reconcile.Remove {
		t.Errorf("placed are %v, changed %v", plan.Adds, plan.Changes)
	}
	s = unfitPod()
	s.Orphans = []reconcile.Orphan{
		{
			Node:   "n3",
			Orphan: pod.Orphan{Identity: s.Pods[0].Identity, Revision: 1, Digest: "m1", PodID: "p", Runs: true},
		},
	}
	for _, ch := range reconcile.Compute(s).Changes {
		if ch.Action == reconcile.Stop && ch.Identity == s.Pods[0].Identity && len(ch.Placement.Avoid) > 0 {
			t.Errorf("it leaves for a second node: %s", &ch)
		}
	}
}

// The node that a pod leaves is the last choice, also if another pod of the manifest is available there.
func TestTheFirstNodeIsTheLastChoice(t *testing.T) {
	t.Parallel()
	s := leavesFirst(true)
	s.Pods[1] = running(1, "n0", 5, 0)
	if last := lastChoice(s); !last["n0"] {
		t.Errorf("the last choice is %v", last)
	}
}

// Four pods of eight began on a bad machine. Three have just got their second nodes. While these may become available
// for the first time, the fourth is not hopeless, and no stage fails because of it.
func TestAFourthPodIsNotHopelessYet(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		since    time.Duration
		never    bool // the others were never available
		hopeless bool
	}{
		"others start":       {0, true, false},
		"their time is over": {2 * time.Hour, true, true},
		"they were available once, and their time is over": {2 * time.Hour, false, true},
	} {
		s := snapshotOf(8)
		s.RC.Service = &rc.Service{Name: "web", Revision: 1}
		for i := range 8 {
			p := running(i, "n1", 5, 0)
			p.Reality.Available, p.Reality.State, p.Reality.NeverAvailable = false, pod.StateRunning, c.never
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

// A stop that its node never confirms delays nothing for ever.
func TestALateStopDelaysNothing(t *testing.T) {
	t.Parallel()
	s := leavesFirst(false)
	neverThere(&s.Pods[1])
	if plan := reconcile.Compute(s); len(plan.Adds) > 0 || len(plan.Changes) > 0 || plan.Again <= 0 {
		t.Errorf("at first: placed are %v, changed %v, again after %s", plan.Adds, plan.Changes, plan.Again)
	}
	s.Now = s.Now.Add(24 * time.Hour)
	if plan := reconcile.Compute(s); len(plan.Adds) == 0 && len(plan.Changes) == 0 {
		t.Error("a day later nothing replaces it")
	}
}

// A pod that leaves for its second node is still one of the replicas when its intent is written again.
func TestARepairedPodStillLeavesItsNode(t *testing.T) {
	t.Parallel()
	s := leavesFirst(false)
	s.Pods[0].Intents = map[string]*pod.Intent{}
	if plan := reconcile.Compute(s); len(plan.Adds) > 0 {
		t.Errorf("placed are %v", plan.Adds)
	}
}

// A pod that becomes available before its stop is written does not stop, whatever the minimum is.
func TestAPodThatBecomesAvailableKeepsItsNode(t *testing.T) {
	t.Parallel()
	s := unfitPod()
	s.RC.MinAvailable = count(0)
	plan := reconcile.Compute(s)
	if len(plan.Changes) != 1 || len(plan.Changes[0].NeedsReports) != 1 || plan.Changes[0].NeedsReports[0] != "n0" {
		t.Errorf("the changes are %+v", plan.Changes)
	}
}

// A pod that came back to its first node, and stops there for another reason, is not vacant: it is removed, and another
// pod replaces it.
func TestAStopForAnotherReasonIsNoVacancy(t *testing.T) {
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

// While the manifest cannot be read, a pod that has left its node waits. It is not forgotten, because it would then get
// another second node.
func TestAVacantPodWaitsForItsManifest(t *testing.T) {
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

// A vacant pod whose manifest cannot be read does not delay pods of other roles, neither their second nodes nor their
// upgrade.
func TestAVacantPodWithoutAManifestDelaysNothing(t *testing.T) {
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
	if plan := reconcile.Compute(s); len(plan.Changes) != 1 || plan.Changes[0].Action != reconcile.Stop ||
		plan.Changes[0].Identity.Role != "other" {
		t.Errorf("second nodes: changed are %v", plan.Changes)
	}
	s = of(func(s *reconcile.Snapshot) {
		s.Pods[3].Digest, s.Pods[3].Reality.Digest, s.RC.MinAvailable = "m4", "m4", count(0)
	})
	if plan := reconcile.Compute(s); len(plan.Changes) != 1 || plan.Changes[0].Action != reconcile.Upgrade {
		t.Errorf("upgrades: changed are %v", plan.Changes)
	}
}

// A status needs the feature only if a node reports that a pod was never available. Under an older gate no node reports
// this, and a status that needs the feature could not be written.
func TestAStatusNeedsTheFeatureOnlyIfReportsDo(t *testing.T) {
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

// The time of the pods that may show whether a manifest works ends without any event, so the plan asks for a look then.
func TestAHopelessPodIsLookedAtInTime(t *testing.T) {
	t.Parallel()
	s := snapshotOf(5)
	for i := range 5 {
		p := running(i, "n1", 5, 0)
		p.ChangedAt, p.Reality.Available = s.Now, false
		p.Reality.State, p.Reality.NeverAvailable = pod.StateRunning, true
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
