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

// Defects that runs under faults have found. See docs/testing.md.

// onNodes returns a snapshot of a controller whose pods are on n0, n1 and so on.
func onNodes(desired int, pods ...reconcile.Pod) *reconcile.Snapshot {
	s := &reconcile.Snapshot{
		Now: time.Unix(1_700_000_000, 0), Manifest: &manifest.Manifest{Version: 1, ID: "p"},
		Nodes: map[string]*node.View{},
		RC: rc.RC{
			ID: "rc", ManifestDigest: "m1", Generation: 2, Strategy: rc.Dynamic,
			ReplicaGroups: []rc.ReplicaGroup{{Role: "main", Count: &desired}},
		},
	}
	for i, p := range pods {
		p.Identity = pod.Identity{RCID: "rc", Role: "main", Index: i}
		p.Placement.Node = "n" + string(rune('0'+i))
		if p.Reality != nil {
			p.Reality.Identity, p.Reality.Node = p.Identity, p.Placement.Node
		}
		s.Nodes[p.Placement.Node] = &node.View{
			Node: node.Node{Name: p.Placement.Node, Capacity: node.Capacity{Slots: 9}}, Alive: true,
		}
		s.Pods = append(s.Pods, p)
	}
	return s
}

func aPod(state pod.RunState, revision int64, digest string, r *pod.Reality) reconcile.Pod {
	return reconcile.Pod{
		Placement: pod.Placement{RunState: state, Revision: revision, Digest: digest, Labels: given("")}, Index: 7,
		Reality: r,
	}
}

func only(t *testing.T, s *reconcile.Snapshot, action reconcile.Action) reconcile.Change {
	t.Helper()
	plan := reconcile.Compute(s)
	if len(plan.Changes) != 1 || plan.Changes[0].Action != action {
		t.Fatalf("the changes are %v, want one %s", plan.Changes, action)
	}
	return plan.Changes[0]
}

// A pod that was adopted after its controller was deleted must stop. Otherwise it would run for ever, because the
// generation of a deleted controller cannot change.
func TestAnAdoptedPodOfADeletedControllerStops(t *testing.T) {
	t.Parallel()
	p := aPod(pod.Running, 5, "m1", &pod.Reality{Digest: "m1", Revision: 5, State: pod.StateReady, Available: true})
	p.AdoptedAtGeneration = 2
	s := onNodes(1, p)
	s.RC.DeletedAt = &s.Now
	only(t, s, reconcile.Stop)
}

// The node remembers a stop that the restored store does not have. Another pod may have its port by now, so the pod is
// not started again.
func TestAStopThatOnlyTheNodeRemembersIsConfirmed(t *testing.T) {
	t.Parallel()
	s := onNodes(1, aPod(pod.Running, 5, "m1", &pod.Reality{Digest: "m1", Revision: 6, State: pod.StateStopped}))
	s.Hold = "the records are new"
	ch := only(t, s, reconcile.Remove)
	if ch.Placement != nil || len(ch.Intents) != 1 || ch.Intents[0].Intent != nil || len(ch.Reserve) != 1 ||
		ch.Reserve[0].Claim != nil {
		t.Errorf("the change is %+v", ch)
	}
}

// The report that confirms a stop may be older than the store: the node may run the pod, and report it a moment after
// the look. So if the record does not have the stop, or the store went back, the change depends on the report being
// unchanged. If the record has the stop, the change depends only on the record.
func TestAStopIsForgottenOnlyAsReported(t *testing.T) {
	t.Parallel()
	stopped := func(placed pod.RunState, revision int64) *reconcile.Snapshot {
		return onNodes(1, aPod(placed, 5, "m1", &pod.Reality{
			Digest: "m1", Revision: revision, State: pod.StateStopped,
		}))
	}
	left := func(ghost pod.Ghost, revision int64) *reconcile.Snapshot {
		s := onNodes(2, aPod(pod.Running, 5, "m1", &pod.Reality{
			Digest: "m1", Revision: 5, State: pod.StateReady, Available: true,
		}))
		p := &s.Pods[0]
		p.Placement.Ghosts = []pod.Ghost{ghost}
		p.Ghosts = map[string]*pod.Reality{
			ghost.Node: {
				Identity: p.Identity, Node: ghost.Node, Digest: "m1", Revision: revision, State: pod.StateStopped,
			},
		}
		return s
	}
	for name, c := range map[string]struct {
		s    *reconcile.Snapshot
		back bool
		want []string
	}{
		"a stop that was asked for":                      {stopped(pod.Stopped, 5), false, nil},
		"a stop that was asked for, the store went back": {stopped(pod.Stopped, 5), true, []string{"n0"}},
		"a later stop than was asked for":                {stopped(pod.Stopped, 6), false, []string{"n0"}},
		"a stop that only the node knows":                {stopped(pod.Running, 6), false, []string{"n0"}},
		"a former copy":                                  {left(pod.Ghost{Node: "n1", Revision: 4}, 4), false, nil},
		"a former copy, stopped later": {
			left(pod.Ghost{Node: "n1", Revision: 4}, 9), false, []string{"n1"},
		},
		"a former copy, the store went back": {
			left(pod.Ghost{Node: "n1", Revision: 4}, 4), true, []string{"n1"},
		},
		"a former copy that only its node knows has gone": {left(pod.Ghost{Node: "n1"}, 9), false, []string{"n1"}},
	} {
		c.s.WentBack, c.s.Epoch = c.back, "e1"
		for _, v := range c.s.Nodes {
			v.Epoch = c.s.Epoch
		}
		if ch := only(t, c.s, reconcile.Remove); !slices.Equal(ch.NeedsReports, c.want) {
			t.Errorf("%s: %s depends on the reports of %v, want %v", name, &ch, ch.NeedsReports, c.want)
		}
	}
}

// Two of three pods are available, which is the minimum. The third is upgraded or stopped because it is not available.
// If it becomes available and another pod fails before the write, the change would leave one pod too few. So the write
// must depend on the minimum.
func TestTakingAnUnavailablePodNeedsTheMinimum(t *testing.T) {
	t.Parallel()
	ready := func() *pod.Reality {
		return &pod.Reality{Digest: "m1", Revision: 5, State: pod.StateReady, Available: true}
	}
	three := func(digest string) []reconcile.Pod {
		return []reconcile.Pod{
			aPod(pod.Running, 5, "m1", ready()), aPod(pod.Running, 5, "m1", ready()), aPod(pod.Running, 5, digest, nil),
		}
	}
	if ch := only(t, onNodes(3, three("m0")...), reconcile.Upgrade); ch.Identity.Index != 2 || !ch.NeedsMinimum ||
		ch.TakesAvailable {
		t.Errorf("the upgrade is %+v", ch)
	}
	if ch := only(t, onNodes(2, three("m1")...), reconcile.Stop); ch.Identity.Index != 2 || !ch.NeedsMinimum ||
		ch.TakesAvailable {
		t.Errorf("the stop is %+v", ch)
	}
}

// A lost pod that is not desired any more is stopped, not replaced. To replace it would exceed desired and surge (P6).
func TestALostPodThatIsNotDesiredIsNotReplaced(t *testing.T) {
	t.Parallel()
	for desired, marked := range []bool{true, false} {
		s := onNodes(desired, aPod(pod.Running, 5, "m1", nil), aPod(pod.Running, 5, "m1", nil))
		long := s.Now.Add(-time.Hour)
		s.RC.NodeLoss.After = new(field.Duration)
		for i := range s.Pods {
			if v := s.Nodes[s.Pods[i].Placement.Node]; marked {
				s.Pods[i].LostSince, v.Alive, v.MachineLost = &long, false, true
			} else {
				v.Alive, v.MachineLost = false, true
			}
		}
		if plan := reconcile.Compute(s); len(plan.Adds) > 0 || len(plan.Changes) == 0 {
			t.Errorf("%d desired: the plan places %v and changes %v", desired, plan.Adds, plan.Changes)
		}
	}
}
