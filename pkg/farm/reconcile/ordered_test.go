package reconcile_test

import (
	"strings"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/farm/reconcile"
	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
)

func length(d time.Duration) *field.Duration { return new(field.Duration(d)) }

// Every term counts, the longest manifest counts, and one without stop_after says that time alone never suffices.
func TestSurelyStopped(t *testing.T) {
	t.Parallel()
	stops := func(after time.Duration) *manifest.Manifest {
		return &manifest.Manifest{Disconnect: &manifest.Disconnect{StopAfter: length(after)}}
	}
	full := stops(time.Minute)
	full.Ports = []manifest.Port{{Name: "http", Port: 80}}
	full.Service = &manifest.Service{Drain: length(3 * time.Second)}
	full.Hooks = &manifest.Hooks{BeforeStop: &manifest.Hook{Timeout: length(30 * time.Second)}}
	full.Launchables = []manifest.Launchable{{Name: "a"}, {Name: "b", StopGrace: length(7 * time.Second)}}
	const hooks = 2 * manifest.DefaultHookTimeout
	for name, c := range map[string]struct {
		manifests []*manifest.Manifest
		want      time.Duration
		ever      bool
	}{
		"stop_after alone":   {[]*manifest.Manifest{stops(time.Minute)}, time.Minute + hooks + time.Second, true},
		"every term":         {[]*manifest.Manifest{full}, time.Minute + hooks + (1+3+30+10+7)*time.Second, true},
		"the longest of two": {[]*manifest.Manifest{stops(time.Hour), stops(time.Minute)}, time.Hour + hooks + time.Second, true},
		"one does not say":   {[]*manifest.Manifest{stops(time.Hour), {}}, 0, false},
		"one is not known":   {[]*manifest.Manifest{stops(time.Hour), nil}, 0, false},
		"none":               {nil, 0, false},
	} {
		if got, ever := reconcile.SurelyStopped(c.manifests, time.Second); ever != c.ever || ever && got != c.want {
			t.Errorf("%s: %s, %t; want %s", name, got, ever, c.want)
		}
	}
}

// orderedRow is a row whose group is ordered.
func orderedRow(pods, desired int) *reconcile.Snapshot {
	s := row(pods, desired)
	s.RC.MinAvailable = count(0)
	s.RC.ReplicaGroups[0].Ordered = true
	return s
}

// A lost pod is told to stop, and its index waits until its copy has surely stopped; the status says what for, and what helps.
func TestALostIndexWaits(t *testing.T) {
	t.Parallel()
	s := orderedRow(2, 2)
	gone := *s.Nodes[s.Pods[0].Node]
	gone.Alive, gone.MachineLost, gone.FreeIndex = false, true, 7
	s.Nodes[gone.Name] = &gone
	since := s.Now.Add(-time.Hour)
	s.Pods[0].LostSince, s.Pods[0].DeadIndex = &since, 7
	plan := reconcile.Compute(s)
	if len(plan.Adds) > 0 || len(plan.Changes) != 1 || plan.Changes[0].Action != reconcile.Stop || plan.Changes[0].Placement.LostSince == nil {
		t.Fatalf("%+v", plan)
	}
	s.Pods[0].Placement = *plan.Changes[0].Placement
	plan = reconcile.Compute(s)
	reason := ""
	for _, c := range plan.Status.Conditions {
		if c.Type == rc.AwaitsStop && c.True {
			reason = c.Reason
		}
	}
	if len(plan.Adds)+len(plan.Changes) > 0 || !strings.Contains(reason, "no disconnect.stop_after") || !strings.Contains(reason, "--node "+gone.Name+" --i-am-sure") {
		t.Errorf("%q, %+v", reason, plan)
	}
	m := *s.Manifest
	m.Disconnect = &manifest.Disconnect{StopAfter: length(time.Minute)}
	s.Manifest = &m
	if plan = reconcile.Compute(s); len(plan.Changes) != 1 || plan.Changes[0].Action != reconcile.Remove || len(plan.Changes[0].NeedsDead) != 1 {
		t.Errorf("after stop_after: %+v", plan.Changes)
	}
	gone.MachineLost, s.Pods[0].LostSince = false, nil
	if plan = reconcile.Compute(s); len(plan.Changes) > 0 && plan.Changes[0].Action == reconcile.Remove || !plan.Status.Is(rc.AwaitsStop) {
		t.Errorf("without a preparer alone: %+v", plan)
	}
}

// An index without a placement may run on a node that has not spoken since the records are what they are, unless the controller is younger.
func TestAnIndexWaitsForSilentNodes(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(s *reconcile.Snapshot, silent *node.View)
		want   int
	}{
		"silent":                    {func(*reconcile.Snapshot, *node.View) {}, 0},
		"the controller is younger": {func(s *reconcile.Snapshot, _ *node.View) { s.Newer = true }, 1},
		"it has spoken":             {func(s *reconcile.Snapshot, v *node.View) { v.Epoch = s.Epoch }, 1},
		"it said that it runs it": {func(s *reconcile.Snapshot, v *node.View) {
			v.Epoch, v.Orphans = s.Epoch, []pod.Orphan{{Identity: pod.Identity{RCID: "rc", Role: "main", Index: 2}}}
		}, 0},
		"it has stopped by now": {func(s *reconcile.Snapshot, _ *node.View) {
			s.Manifest.Disconnect = &manifest.Disconnect{StopAfter: length(time.Second)}
		}, 1},
		"only its preparer is silent": {func(s *reconcile.Snapshot, v *node.View) {
			s.Manifest.Disconnect, v.MachineLost = &manifest.Disconnect{StopAfter: length(time.Second)}, false
		}, 0},
	} {
		s := orderedRow(2, 3)
		m := *s.Manifest
		s.Manifest, s.EpochSince = &m, s.Now.Add(-time.Hour)
		silent := &node.View{Node: node.Node{Name: "silent", Epoch: "another"}, MachineLost: true, FreeIndex: 9}
		s.Nodes["silent"] = silent
		c.change(s, silent)
		if plan := reconcile.Compute(s); len(plan.Adds) != c.want || (c.want == 0) != plan.Status.Is(rc.AwaitsStop) {
			t.Errorf("%s: %v, %+v", name, plan.Adds, plan.Status.Conditions)
		}
	}
}
