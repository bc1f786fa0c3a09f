package reconcile_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/farm/reconcile"
	"github.com/rcfarm/rcfarm/pkg/pod"
)

func orphan(on string, index int, revision int64) reconcile.Orphan {
	return reconcile.Orphan{Node: on, Orphan: pod.Orphan{
		Identity: pod.Identity{RCID: "rc", Role: "main", Index: index}, PodID: "p", Digest: "m1", Revision: revision,
	}}
}

// The higher revision wins (R2). If a copy has the same revision or a lower one, the placement is kept.
func TestTheHigherRevisionIsAdopted(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		orphan reconcile.Orphan
		want   reconcile.Action // "" for nothing
	}{
		"here, lower":       {orphan("n0", 0, 4), ""},
		"here, the same":    {orphan("n0", 0, 5), ""},
		"here, higher":      {orphan("n0", 0, 6), reconcile.Adopt},
		"elsewhere, lower":  {orphan("n1", 0, 4), reconcile.StopDuplicate},
		"elsewhere, same":   {orphan("n1", 0, 5), reconcile.StopDuplicate},
		"elsewhere, higher": {orphan("n1", 0, 6), reconcile.Adopt},
		"without placement": {orphan("n1", 1, 3), reconcile.Adopt},
	} {
		s := one(func(s *reconcile.Snapshot, _ *reconcile.Pod) { s.Orphans = []reconcile.Orphan{c.orphan} })
		if c.want == "" {
			none(t, name, s)
			continue
		}
		plan := reconcile.Compute(s)
		at := slices.IndexFunc(plan.Changes, func(ch reconcile.Change) bool { return ch.Identity == c.orphan.Identity })
		if at < 0 || plan.Changes[at].Action != c.want {
			t.Errorf("%s: %v, want %s", name, plan.Changes, c.want)
			continue
		}
		if ch := plan.Changes[at]; c.want == reconcile.Adopt &&
			(ch.Placement.Node != c.orphan.Node || ch.Placement.Revision <= c.orphan.Revision ||
				ch.Placement.AdoptedAtGeneration != 7) {
			t.Errorf("%s: %+v", name, ch.Placement)
		}
	}
}

// A pod that an owner placed in this epoch is not adopted elsewhere, even at a higher revision: no store has lost
// anything since, so no owner wrote that revision. The copy is a duplicate, and stops.
func TestAPodPlacedInThisEpochIsNotAdoptedElsewhere(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		edit func(*reconcile.Snapshot, *reconcile.Pod)
		want reconcile.Action // "" for nothing
	}{
		"placed in this epoch": {func(*reconcile.Snapshot, *reconcile.Pod) {}, reconcile.StopDuplicate},
		"not available": {
			func(_ *reconcile.Snapshot, p *reconcile.Pod) { p.Reality.Available = false }, "",
		},
		"found, not placed": {
			func(_ *reconcile.Snapshot, p *reconcile.Pod) { p.AdoptedAtGeneration = 6 }, reconcile.Adopt,
		},
		"placed before the epoch": {
			func(s *reconcile.Snapshot, p *reconcile.Pod) { p.ChangedAt = s.EpochSince.Add(-time.Minute) },
			reconcile.Adopt,
		},
		"so soon that clocks may be wrong": {
			func(s *reconcile.Snapshot, p *reconcile.Pod) { p.ChangedAt = s.EpochSince.Add(s.Slack) }, reconcile.Adopt,
		},
		"ordered, of another epoch": {func(s *reconcile.Snapshot, p *reconcile.Pod) {
			s.RC.ReplicaGroups[0].Ordered = true
			p.Placement.Epoch = "e0"
		}, reconcile.Stop},
		"ordered, of an owner that writes no epoch": {
			func(s *reconcile.Snapshot, _ *reconcile.Pod) { s.RC.ReplicaGroups[0].Ordered = true }, reconcile.Stop,
		},
		"ordered, of this epoch": {func(s *reconcile.Snapshot, p *reconcile.Pod) {
			s.RC.ReplicaGroups[0].Ordered = true
			p.Placement.Epoch, p.ChangedAt = s.Epoch, s.EpochSince.Add(-time.Minute)
		}, reconcile.StopDuplicate},
	} {
		s := one(func(s *reconcile.Snapshot, p *reconcile.Pod) {
			s.Orphans, s.Epoch = []reconcile.Orphan{orphan("n1", 0, 6)}, "e1"
			for _, v := range s.Nodes {
				v.Epoch = s.Epoch
			}
			s.Slack, s.EpochSince = 15*time.Second, s.Now.Add(-time.Hour)
			p.ChangedAt = s.EpochSince.Add(s.Slack + time.Millisecond)
			c.edit(s, p)
		})
		if c.want == "" {
			none(t, name, s)
			continue
		}
		changes := reconcile.Compute(s).Changes
		if len(changes) != 1 || changes[0].Action != c.want {
			t.Errorf("%s: %v, want %s", name, changes, c.want)
			continue
		}
		if ch := changes[0]; c.want == reconcile.StopDuplicate &&
			(ch.Placement.Node != "n0" || ch.Placement.RunState != pod.Running || ch.Intents[0].Node != "n1" ||
				ch.Intents[0].Intent.Revision <= 6 ||
				!strings.HasSuffix(ch.Reason, "runs on n1 at revision 6; the pod has revision 5")) {
			t.Errorf("%s: %v %+v", name, ch, ch.Placement)
		}
	}
}

// If a former copy is adopted, it becomes the pod, and the other former copies are still former copies. The pod gets
// the labels of its controller, and of its manifest if that can be read.
func TestAdoptingAFormerCopyKeepsTheOthers(t *testing.T) {
	t.Parallel()
	for _, readable := range []bool{true, false} {
		s := one(func(s *reconcile.Snapshot, p *reconcile.Pod) {
			p.Placement.Ghosts = []pod.Ghost{{Node: "n1", Revision: 4}, {Node: "n2", Revision: 4}}
			s.Orphans = []reconcile.Orphan{orphan("n1", 0, 6)}
			s.Manifest.Labels = map[string]string{"tier": "web"}
			s.RC.PodLabels = map[string]string{"team": "a"}
			if !readable {
				s.Manifest = nil
			}
		})
		ch := only(t, s, reconcile.Adopt)
		var at []string
		for _, g := range ch.Placement.Ghosts {
			at = append(at, g.Node)
		}
		if !slices.Equal(at, []string{"n2", "n0"}) {
			t.Errorf("former copies on %v, want the other former copy and the copy that lost", at)
		}
		if l := ch.Placement.Labels; (l["tier"] == "web") != readable || l["team"] != "a" {
			t.Errorf("readable %t: labels %v", readable, l)
		}
	}
}

// A second copy is asked to stop once. It is asked again if it runs at the revision of that stop, because its node
// cannot have read the intent.
func TestASecondCopyIsAskedToStopAboveItsRevision(t *testing.T) {
	t.Parallel()
	for asked, again := range map[int64]bool{0: true, 4: true, 3: true, 9: false} {
		s := one(func(s *reconcile.Snapshot, p *reconcile.Pod) {
			p.Placement.Ghosts = []pod.Ghost{{Node: "n1", Revision: asked}, {Node: "n2", Revision: 2}}
			if asked == 0 {
				p.Placement.Ghosts = p.Placement.Ghosts[1:]
			}
			s.Orphans = []reconcile.Orphan{orphan("n1", 0, 4)}
		})
		if !again {
			none(t, "asked at a higher revision", s)
			continue
		}
		ch := only(t, s, reconcile.StopDuplicate)
		if len(ch.Placement.Ghosts) != 2 || ch.Placement.Ghosts[0].Node != "n2" ||
			ch.Placement.Ghosts[1].Node != "n1" || ch.Placement.Ghosts[1].Revision <= 4 {
			t.Errorf("asked at %d before: former copies %+v", asked, ch.Placement.Ghosts)
		}
	}
}

// A deleted controller is not finished while a placement is left or is being made.
func TestADeletedControllerEndsWithItsLastPod(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(*reconcile.Snapshot)
		finish bool
	}{
		"nothing is left": {func(*reconcile.Snapshot) {}, true},
		"a pod is left":   {func(s *reconcile.Snapshot) { s.Pods = []reconcile.Pod{running(0, "n0", 5, 0)} }, false},
		"an orphan is found": {
			func(s *reconcile.Snapshot) { s.Orphans = []reconcile.Orphan{orphan("n1", 0, 5)} }, false,
		},
		"a share is left": {func(s *reconcile.Snapshot) {
			s.UnusedShares = []reconcile.UnusedShare{{Node: "n1", Pod: orphan("n1", 0, 5).Identity}}
		}, false},
		"a pod stops": {func(s *reconcile.Snapshot) {
			p := running(0, "n0", 5, 0)
			p.RunState, p.Reality.State = pod.Stopped, pod.StateStopping
			s.Pods = []reconcile.Pod{p}
		}, false},
	} {
		s := snapshotOf(1)
		s.RC.DeletedAt = &s.Now
		c.change(s)
		if plan := reconcile.Compute(s); plan.Finish != c.finish {
			t.Errorf("%s: finish %t, changes %v", name, plan.Finish, plan.Changes)
		}
	}
}

// If a node runs a replica, its share is not given back, even if the replica is placed elsewhere. Shares of other
// replicas are given back.
func TestSharesOfOrphansAreKept(t *testing.T) {
	t.Parallel()
	id := orphan("n1", 3, 5).Identity
	sick := func(s *reconcile.Snapshot) { // otherwise another copy would stop because of it
		p := running(3, "n0", 5, 7)
		p.Reality.Available = false
		s.Pods = []reconcile.Pod{p}
	}
	for name, c := range map[string]struct {
		change   func(*reconcile.Snapshot)
		released bool
	}{
		"no node runs it": {func(*reconcile.Snapshot) {}, true},
		"its node runs it": {
			func(s *reconcile.Snapshot) { s.Orphans = []reconcile.Orphan{orphan("n1", 3, 5)} }, false,
		},
		// adopted first
		"another node runs it": {
			func(s *reconcile.Snapshot) { s.Orphans = []reconcile.Orphan{orphan("n2", 3, 5)} }, false,
		},
		"a copy that lost": {
			func(s *reconcile.Snapshot) { sick(s); s.Orphans = []reconcile.Orphan{orphan("n1", 3, 4)} }, false,
		},
		"a copy that lost, elsewhere": {
			func(s *reconcile.Snapshot) { sick(s); s.Orphans = []reconcile.Orphan{orphan("n2", 3, 4)} }, true,
		},
		"its node runs another": {
			func(s *reconcile.Snapshot) { s.Orphans = []reconcile.Orphan{orphan("n1", 4, 5)} }, true,
		},
		"its node's record lists it": {
			func(s *reconcile.Snapshot) { s.Nodes["n1"].Orphans = []pod.Orphan{{Identity: id}} }, false,
		},
		"the record is about others": {func(s *reconcile.Snapshot) {
			s.Nodes["n1"].Orphans = []pod.Orphan{{Identity: orphan("n1", 4, 5).Identity}}
		}, true},
		// it is not known what this node runs
		"its node has no record": {func(s *reconcile.Snapshot) { delete(s.Nodes, "n1") }, false},
	} {
		s := snapshotOf(0)
		s.UnusedShares = []reconcile.UnusedShare{{Node: "n1", Pod: id}}
		c.change(s)
		plan := reconcile.Compute(s)
		at := slices.IndexFunc(plan.Changes, func(ch reconcile.Change) bool { return ch.Action == reconcile.Release })
		if (at >= 0) != c.released {
			t.Errorf("%s: %v", name, plan.Changes)
		}
		if at >= 0 && len(s.Pods) == 0 &&
			(plan.Changes[at].Placement != nil || plan.Changes[at].Index != 0 ||
				plan.Changes[at].Reserve[0].Node != "n1" || plan.Changes[at].Reserve[0].Claim != nil) {
			t.Errorf("%s: %+v", name, plan.Changes[at])
		}
	}
}

// A pod that runs elsewhere at a higher revision is adopted there before a former copy becomes the pod. At the same
// revision it is not adopted.
func TestAHigherRevisionElsewhereComesBeforeAFormerCopy(t *testing.T) {
	t.Parallel()
	for revision, passed := range map[int64]bool{4: true, 5: true, 6: false} {
		s := one(func(s *reconcile.Snapshot, p *reconcile.Pod) {
			p.Placement.Ghosts = []pod.Ghost{{Node: "n1"}}
			p.Ghosts["n1"] = &pod.Reality{
				Identity: p.Identity, Node: "n1", Digest: "m1", Revision: 4, State: pod.StateReady, Available: true,
			}
			s.Nodes["n0"].Alive = false
			s.Orphans = []reconcile.Orphan{orphan("n2", 0, revision)}
			s.Requests = []reconcile.Request{forget("r", "n0", p)}
		})
		plan := reconcile.Compute(s)
		if got := slices.Contains(answers(&plan), "r"); got != passed {
			t.Errorf("it runs elsewhere at revision %d: %v, answered %t", revision, plan.Changes, got)
		}
	}
}
