package reconcile_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/farm/reconcile"
	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
)

// lostOrdered is an ordered pair. The first pod was on a machine that has been lost for an hour, with a manifest and a
// preparer that stop it.
func lostOrdered() (s *reconcile.Snapshot, p *reconcile.Pod, v *node.View) {
	s = orderedRow(2, 2)
	p = &s.Pods[0]
	since := s.Now.Add(-time.Hour)
	lost := *s.Nodes[p.Node]
	lost.Alive, lost.MachineLost, lost.LostSeen, lost.FreeIndex, lost.EnforcesStopAfter = false, true, since, 7, true
	s.Nodes[lost.Name] = &lost
	p.RunState, p.LostSince, p.DeadIndex = pod.Stopped, &since, 7
	m := *s.Manifest
	m.Disconnect = &manifest.Disconnect{StopAfter: length(time.Minute)}
	s.Manifest = &m
	return s, p, &lost
}

// The status distinguishes the reasons why an index waits, and shows what helps.
func TestALostIndexSaysWhatHelps(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(s *reconcile.Snapshot, p *reconcile.Pod, v *node.View)
		want   []string // none: it is given up
	}{
		"its time is over": {func(*reconcile.Snapshot, *reconcile.Pod, *node.View) {}, nil},
		"only the preparer": {func(_ *reconcile.Snapshot, _ *reconcile.Pod, v *node.View) {
			v.MachineLost = false
			v.FreeIndex++
		}, []string{"only its preparer is gone: start the preparer"}},
		"the slack counts": {
			func(s *reconcile.Snapshot, _ *reconcile.Pod, _ *node.View) { s.Slack = 2 * time.Hour },
			[]string{"counts as stopped at"},
		},
		"it has given up the earlier version": {func(_ *reconcile.Snapshot, p *reconcile.Pod, _ *node.View) {
			r := *p.Reality
			r.Revision, p.Reality, p.MayRun = p.Revision, &r, []string{"gone"}
		}, nil},
		"unreadable": {func(_ *reconcile.Snapshot, p *reconcile.Pod, _ *node.View) {
			r := *p.Reality
			r.Digest, p.Reality = "0123456789", &r
		}, []string{"manifest 01234567, which it may run, cannot be read", "--i-am-sure"}},
		"never reported": {
			func(_ *reconcile.Snapshot, p *reconcile.Pod, _ *node.View) { p.Reality, p.Switching = nil, true },
			[]string{"it is not known which versions"},
		},
		"it went back, silent": {
			func(s *reconcile.Snapshot, _ *reconcile.Pod, v *node.View) { s.WentBack, v.Epoch = true, "another" },
			[]string{"a later version than the records know"},
		},
		"it went back, and the node has spoken": {
			func(s *reconcile.Snapshot, _ *reconcile.Pod, _ *node.View) { s.WentBack = true }, nil,
		},
		"no stop_after": {
			func(s *reconcile.Snapshot, _ *reconcile.Pod, _ *node.View) { s.Manifest.Disconnect = nil },
			[]string{"has no disconnect.stop_after"},
		},
		"too old": {
			func(_ *reconcile.Snapshot, _ *reconcile.Pod, v *node.View) { v.EnforcesStopAfter = false },
			[]string{"too old", "upgrade the preparer", "newer supervisor"},
		},
	} {
		s, p, v := lostOrdered()
		c.change(s, p, v)
		plan := reconcile.Compute(s)
		if removed := len(plan.Changes) == 1 &&
			plan.Changes[0].Action == reconcile.Remove; removed != (len(c.want) == 0) {
			t.Errorf("%s: %+v", name, plan.Changes)
		}
		for _, want := range c.want {
			if got := awaits(&plan); !strings.Contains(got, want) {
				t.Errorf("%s: %q, want %q", name, got, want)
			}
		}
	}
	s := orderedRow(2, 3)
	s.Epoch = "now"
	for _, v := range s.Nodes {
		v.Epoch = s.Epoch
	}
	s.Nodes["silent"] = &node.View{Node: node.Node{Name: "silent"}, MachineLost: true, LostSeen: s.Now}
	plan := reconcile.Compute(s)
	for _, want := range []string{
		"Bring the node back. Only if",
		"rcctl node forget silent --i-am-sure, which gives up every pod there",
	} {
		if got := awaits(&plan); !strings.Contains(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// The index of a lost pod is free exactly at the time that the status gives. The plan asks for a look at that time.
func TestALostIndexIsFreeAtTheTimeOfItsStatus(t *testing.T) {
	t.Parallel()
	s, p, _ := lostOrdered()
	p.LostSince = new(s.Now.Add(-30 * time.Second))
	plan := reconcile.Compute(s)
	at := s.Now.Add(plan.Again).UTC().Format(time.RFC3339)
	if len(plan.Changes) > 0 || plan.Again <= 0 || !strings.Contains(awaits(&plan), "counts as stopped at "+at) {
		t.Fatalf("again after %s: %q, %+v", plan.Again, awaits(&plan), plan.Changes)
	}
	s.Now = s.Now.Add(plan.Again)
	plan = reconcile.Compute(s)
	if len(plan.Changes) != 1 || plan.Changes[0].Action != reconcile.Remove {
		t.Errorf("at that time: %q, %+v", awaits(&plan), plan.Changes)
	}
}

// OtherDigests names the manifests that nodes may run of ordered groups, and no others.
func TestOtherDigestsOfOrderedGroups(t *testing.T) {
	t.Parallel()
	for ordered, want := range map[bool][]string{true: {"earlier", "found", "placed", "reported"}, false: {}} {
		s := orderedRow(2, 2)
		s.RC.ReplicaGroups[0].Ordered = ordered
		p := &s.Pods[0]
		r := *p.Reality
		p.Digest, p.MayRun, r.Digest = "placed", []string{"earlier", ""}, "reported"
		p.Reality = &r
		s.Nodes["n9"] = &node.View{Node: node.Node{Orphans: []pod.Orphan{
			{Identity: pod.Identity{RCID: "other", Role: p.Role}, Digest: "another controller's"},
			{Identity: pod.Identity{RCID: s.RC.ID, Role: "another"}, Digest: "another role's"},
			{Identity: pod.Identity{RCID: s.RC.ID, Role: p.Role}, Digest: "found"},
		}}}
		if got := s.OtherDigests(9); !slices.Equal(got, want) && len(got)+len(want) > 0 {
			t.Errorf("ordered %t: %v, want %v", ordered, got, want)
		}
	}
}
