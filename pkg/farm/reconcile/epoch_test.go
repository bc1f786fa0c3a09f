package reconcile_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/farm/reconcile"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
)

// spoken is an ordered row in an epoch that began an hour ago. All nodes have spoken, and the pods were placed in this
// epoch.
func spoken(pods, desired int) *reconcile.Snapshot {
	s := orderedRow(pods, desired)
	s.Epoch, s.EpochSince = "now", s.Now.Add(-time.Hour)
	for _, v := range s.Nodes {
		v.Epoch = s.Epoch
	}
	for i := range s.Pods {
		s.Pods[i].Placement.Epoch = s.Epoch
	}
	return s
}

// addSilent adds a node that is lost and has not spoken in the epoch.
func addSilent(s *reconcile.Snapshot) {
	s.Nodes["silent"] = &node.View{
		Node: node.Node{Name: "silent", Epoch: "another"}, MachineLost: true, LostSeen: s.Now, FreeIndex: 9,
	}
}

// A node may list a pod that it does not run yet. The adoption starts this pod, so it waits until no other node may run
// the pod. A running pod is adopted in any case.
func TestAHeldOrphanIsAdoptedIfNoOtherCopyMayLive(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(s *reconcile.Snapshot, o *reconcile.Orphan)
		adopts bool
		epoch  string
	}{
		"it is held, another is silent": {func(s *reconcile.Snapshot, _ *reconcile.Orphan) { addSilent(s) }, false, ""},
		"it is held, no node is silent": {func(*reconcile.Snapshot, *reconcile.Orphan) {}, true, "now"},
		"it runs, another is silent": {
			func(s *reconcile.Snapshot, o *reconcile.Orphan) { addSilent(s); o.Runs = true }, true, "",
		},
		"it runs, no node is silent": {
			func(_ *reconcile.Snapshot, o *reconcile.Orphan) { o.Runs = true }, true, "now",
		},
		"it ran before it began anew, another is silent": {func(s *reconcile.Snapshot, o *reconcile.Orphan) {
			addSilent(s)
			o.Runs = true
			s.Nodes["n3"].Epoch = ""
		}, false, ""},
		"it is held alone, and has not spoken": {
			func(s *reconcile.Snapshot, _ *reconcile.Orphan) { s.Nodes["n3"].Epoch = "" }, true, "now",
		},
		"it is placed here, another is silent": {func(s *reconcile.Snapshot, o *reconcile.Orphan) {
			addSilent(s)
			o.Index, o.Node, s.Pods[0].Placement.Epoch = 0, "n0", "before"
			s.Pods[0].Reality = nil
		}, false, ""},
	} {
		s := spoken(2, 3)
		o := orphan("n3", 2, 7)
		c.change(s, &o)
		s.Orphans = []reconcile.Orphan{o}
		plan := reconcile.Compute(s)
		var adopted *reconcile.Change
		for i := range plan.Changes {
			if plan.Changes[i].Identity == o.Identity {
				adopted = &plan.Changes[i]
			}
		}
		switch {
		case c.adopts != (adopted != nil) || c.adopts == plan.Status.Is(rc.AwaitsStop):
			t.Errorf("%s: %v, awaits %q", name, plan.Changes, awaits(&plan))
		case !c.adopts:
			if reason := awaits(&plan); !strings.Contains(reason, "silent") ||
				!strings.Contains(reason, "is not started on "+o.Node) {
				t.Errorf("%s: the status says %q", name, reason)
			}
		case adopted.Placement.Epoch != c.epoch || adopted.Intents[0].Intent.Epoch != c.epoch ||
			c.epoch != "" && !adopted.NeedsSchema:
			t.Errorf("%s: %+v", name, adopted)
		}
	}
}

// The intent of an ordered pod is written again in the present epoch, when no other node may run the pod.
func TestAnOrderedPodGetsAnIntentOfTheEpoch(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change  func(s *reconcile.Snapshot, p *reconcile.Pod)
		want    string // the epoch that the pod is given
		renewed bool
		awaits  bool
	}{
		"it has an intent of this epoch": {
			func(_ *reconcile.Snapshot, p *reconcile.Pod) { p.Placement.Epoch = "now" }, "", false, false,
		},
		"it runs": {func(*reconcile.Snapshot, *reconcile.Pod) {}, "now", true, false},
		"it is held": {
			func(_ *reconcile.Snapshot, p *reconcile.Pod) { p.Reality.State = pod.StatePending }, "now", true, false,
		},
		"it is held, another is silent": {func(s *reconcile.Snapshot, p *reconcile.Pod) {
			addSilent(s)
			p.Reality.State, p.Reality.Available = pod.StatePending, false
		}, "", false, true},
		"it runs, another is silent": {
			func(s *reconcile.Snapshot, _ *reconcile.Pod) { addSilent(s) }, "", false, false,
		},
		"it is held, another has it": {func(_ *reconcile.Snapshot, p *reconcile.Pod) {
			p.Reality.State, p.Reality.Available = pod.StatePending, false
			p.Placement.Ghosts, p.Ghosts = []pod.Ghost{{Node: "n9", Revision: 7}}, map[string]*pod.Reality{"n9": nil}
		}, "", false, true},
		"the hold lasts": {func(s *reconcile.Snapshot, _ *reconcile.Pod) { s.Hold = "new" }, "", false, false},
		"it has not spoken": {
			func(s *reconcile.Snapshot, _ *reconcile.Pod) { s.Nodes["n0"].Epoch = "" }, "", false, false,
		},
		"it is not alive": {
			func(s *reconcile.Snapshot, _ *reconcile.Pod) { s.Nodes["n0"].Alive = false }, "", false, false,
		},
		"it is not ordered now": {
			func(s *reconcile.Snapshot, _ *reconcile.Pod) { s.RC.ReplicaGroups[0].Ordered = false }, "", true, false,
		},
		"it never was ordered": {func(s *reconcile.Snapshot, p *reconcile.Pod) {
			s.RC.ReplicaGroups[0].Ordered, p.Placement.Epoch = false, ""
		}, "", false, false},
	} {
		s := spoken(2, 2)
		n0 := *s.Nodes["n0"]
		s.Nodes["n0"] = &n0
		p := &s.Pods[0]
		p.Placement.Epoch = "before"
		s.Pods, s.RC.ReplicaGroups[0].Count = s.Pods[:1], count(1)
		c.change(s, p)
		plan := reconcile.Compute(s)
		renewed := len(plan.Changes) == 1 && plan.Changes[0].Action == reconcile.Repair
		if renewed != c.renewed || plan.Status.Is(rc.AwaitsStop) != c.awaits {
			t.Errorf("%s: %v, awaits %q", name, plan.Changes, awaits(&plan))
			continue
		}
		if renewed {
			if ch := plan.Changes[0]; ch.Placement.Epoch != c.want || ch.Intents[0].Intent.Epoch != c.want ||
				ch.Placement.Revision <= p.Revision || !ch.NeedsSchema {
				t.Errorf("%s: %+v", name, ch)
			}
		}
	}
}

// A lost intent is written again. If its node does not run the pod, this happens only when no other node may run it.
func TestRepairStartsNoOrderedPodBesideAnotherCopy(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		silent, runs bool
		other        *reconcile.Orphan
		epoch        string // of the repaired placement; empty: it is not repaired
		awaits       bool
	}{
		"held, another is silent":           {silent: true, awaits: true},
		"held, no node is silent":           {epoch: "now"},
		"runs, another is silent":           {silent: true, runs: true, epoch: "before"},
		"held, another pod's copy is found": {other: new(orphan("n3", 1, 4)), epoch: "now"},
		"held, its copy is found elsewhere": {other: new(orphan("n3", 0, 4))},
	} {
		s := spoken(2, 2)
		s.Pods[0].Placement.Epoch, s.Pods[0].Intents = "before", map[string]*pod.Intent{}
		o := orphan("n0", 0, 5)
		o.Runs = c.runs
		s.Orphans = []reconcile.Orphan{o}
		if c.other != nil {
			s.Orphans = append(s.Orphans, *c.other)
		}
		if c.silent {
			addSilent(s)
		}
		plan, epoch := reconcile.Compute(s), ""
		for _, ch := range plan.Changes {
			if ch.Action == reconcile.Repair && ch.Identity == s.Pods[0].Identity {
				epoch = ch.Placement.Epoch
			}
		}
		if epoch != c.epoch || plan.Status.Is(rc.AwaitsStop) != c.awaits {
			t.Errorf("%s: epoch %q, %v, awaits %q", name, epoch, plan.Changes, awaits(&plan))
		}
	}
}

// An upgrade would stop an ordered pod, and its node would not start it again in this epoch. So the upgrade waits, and
// the status reports this.
func TestAnUpgradeWaitsForTheEpoch(t *testing.T) {
	t.Parallel()
	for epoch, want := range map[string]int{"before": 0, "now": 1} {
		s := spoken(2, 2)
		s.Pods[0].Digest, s.Pods[0].Placement.Epoch = "former", epoch
		s.Pods[0].Reality.Digest = "former"
		addSilent(s)
		plan := reconcile.Compute(s)
		if len(plan.Changes) != want || plan.Status.Is(rc.Blocked) != (want == 0) {
			t.Errorf("%s: %v, %+v", epoch, plan.Changes, plan.Status.Conditions)
		}
	}
}

// A placement has the epoch if its group is ordered.
func TestAPlacedOrderedPodHasTheEpoch(t *testing.T) {
	t.Parallel()
	for _, ordered := range []bool{true, false} {
		s := spoken(2, 3)
		s.RC.ReplicaGroups[0].Ordered = ordered
		want := map[bool]string{true: "now"}[ordered]
		plan := reconcile.Compute(s)
		ch := plan.Placer().On(plan.Adds[0], "n3")
		if ch.Placement.Epoch != want || ch.Intents[0].Intent.Epoch != want {
			t.Errorf("ordered %t: %+v", ordered, ch.Placement)
		}
	}
}

// While an ordered pod must not leave its drained node, pods of other groups of the controller leave theirs.
func TestADrainOfOtherGroupsGoesOn(t *testing.T) {
	t.Parallel()
	s := spoken(2, 3)
	addSilent(s) // main.2 waits for this node
	s.RC.ReplicaGroups = append(s.RC.ReplicaGroups, rc.ReplicaGroup{Role: "side", Count: count(1)})
	other := running(0, "n1", 5, 0)
	other.Role, other.Reality.Role = "side", "side"
	s.Pods = append(s.Pods, other)
	for _, name := range []string{"n0", "n1"} {
		v := *s.Nodes[name]
		v.Ops.Drain = &node.Drain{Since: s.Now.Add(-time.Hour)}
		s.Nodes[name] = &v
	}
	plan := reconcile.Compute(s)
	if !slices.Equal(plan.Adds, []pod.Identity{other.Identity}) || !plan.Status.Is(rc.Blocked) {
		t.Errorf("adds %v, %v, %+v", plan.Adds, plan.Changes, plan.Status.Conditions)
	}
}
