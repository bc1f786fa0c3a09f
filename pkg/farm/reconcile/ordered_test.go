package reconcile_test

import (
	"slices"
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
	full.Hooks = &manifest.Hooks{BeforeStop: &manifest.Hook{Timeout: length(30 * time.Second)}, AfterStop: &manifest.Hook{}, AfterLaunch: &manifest.Hook{}}
	full.Launchables = []manifest.Launchable{{Name: "a"}, {Name: "b", StopGrace: length(7 * time.Second), Artifact: manifest.Artifact{Kind: manifest.ArtifactTar}}}
	const hook, margin = manifest.DefaultHookTimeout, manifest.StopMargin
	long := stops(time.Minute)
	long.Launchables = []manifest.Launchable{{Name: "a", StopGrace: length(20 * time.Second)}, {Name: "b"}}
	for name, c := range map[string]struct {
		manifests []*manifest.Manifest
		want      time.Duration
		ever      bool
	}{
		"stop_after alone":      {[]*manifest.Manifest{stops(time.Minute)}, time.Minute + margin + time.Second, true},
		"stop graces at a time": {[]*manifest.Manifest{long}, time.Minute + margin + (1+20)*time.Second, true},
		"every term":            {[]*manifest.Manifest{full}, time.Minute + 2*hook + (1+3+30+10)*time.Second, true},
		"the longest of two":    {[]*manifest.Manifest{stops(time.Hour), stops(time.Minute)}, time.Hour + margin + time.Second, true},
		"one does not say":      {[]*manifest.Manifest{stops(time.Hour), {}}, 0, false},
		"one is not known":      {[]*manifest.Manifest{stops(time.Hour), nil}, 0, false},
		"none":                  {nil, 0, false},
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

// awaits returns what indices wait for, as the status says.
func awaits(plan *reconcile.Plan) string {
	for _, c := range plan.Status.Conditions {
		if c.Type == rc.AwaitsStop && c.True {
			return c.Reason
		}
	}
	return ""
}

// A lost pod is told to stop, and its index waits until its copy has surely stopped; the status says what for, and what helps.
func TestALostIndexWaits(t *testing.T) {
	t.Parallel()
	s := orderedRow(2, 2)
	gone := *s.Nodes[s.Pods[0].Node]
	since := s.Now.Add(-time.Hour)
	gone.Alive, gone.MachineLost, gone.LostSeen, gone.FreeIndex = false, true, since, 7
	s.Nodes[gone.Name] = &gone
	s.Pods[0].LostSince, s.Pods[0].DeadIndex = &since, 7
	plan := reconcile.Compute(s)
	if len(plan.Adds) > 0 || len(plan.Changes) != 1 || plan.Changes[0].Action != reconcile.Stop || plan.Changes[0].Placement.LostSince == nil {
		t.Fatalf("%+v", plan)
	}
	s.Pods[0].Placement = *plan.Changes[0].Placement
	plan = reconcile.Compute(s)
	reason := awaits(&plan)
	if len(plan.Adds)+len(plan.Changes) > 0 || !strings.Contains(reason, "no disconnect.stop_after") || !strings.Contains(reason, "--node "+gone.Name+" --i-am-sure") {
		t.Errorf("%q, %+v", reason, plan)
	}
	m := *s.Manifest
	m.Disconnect = &manifest.Disconnect{StopAfter: length(time.Minute)}
	s.Manifest = &m
	if plan = reconcile.Compute(s); len(plan.Changes) > 0 || !strings.Contains(awaits(&plan), "too old") {
		t.Errorf("an older preparer: %q, %+v", awaits(&plan), plan.Changes)
	}
	gone.EnforcesStopAfter = true
	late := *s.Pods[0].LostSince
	*s.Pods[0].LostSince = s.Now.Add(-30 * time.Second)
	if plan = reconcile.Compute(s); len(plan.Changes) > 0 || !strings.Contains(awaits(&plan), "counts as stopped at") || plan.Again <= 0 {
		t.Errorf("before its time: %q, %+v", awaits(&plan), plan.Changes)
	}
	*s.Pods[0].LostSince = late
	gone.FreeIndex = 8
	if plan = reconcile.Compute(s); slices.ContainsFunc(plan.Changes, func(ch reconcile.Change) bool { return ch.Action == reconcile.Remove }) {
		t.Errorf("what is known is about another loss: %+v", plan.Changes)
	}
	gone.FreeIndex = 7
	gone.LostSeen = s.Now.Add(-time.Second)
	if plan = reconcile.Compute(s); len(plan.Changes) > 0 || !strings.Contains(awaits(&plan), "counts as stopped at") || plan.Again <= 0 {
		t.Errorf("a clock has jumped: %q, %+v", awaits(&plan), plan.Changes)
	}
	gone.LostSeen, s.Steady = since, since.Add(time.Second)
	if plan = reconcile.Compute(s); len(plan.Changes) > 0 {
		t.Errorf("the clock of this farm has jumped: %+v", plan.Changes)
	}
	s.Steady = time.Time{}
	gone.MachineLost, gone.LostSeen, gone.DeadSeen = false, time.Time{}, s.Now.Add(-time.Second)
	if plan = reconcile.Compute(s); len(plan.Changes) > 0 || !strings.Contains(awaits(&plan), "counts as stopped at") {
		t.Errorf("another farm saw the loss: %q, %+v", awaits(&plan), plan.Changes)
	}
	gone.MachineLost, gone.DeadSeen, gone.AgentLives = false, since, true
	if plan = reconcile.Compute(s); len(plan.Changes) != 1 || plan.Changes[0].Action != reconcile.Mark || plan.Changes[0].Placement.LostSince != nil ||
		plan.Changes[0].Placement.UnmanagedSince == nil || !strings.Contains(awaits(&plan), "the machine lives") {
		t.Errorf("its agent lives again: %q, %+v", awaits(&plan), plan.Changes)
	}
	gone.MachineLost, gone.LostSeen, gone.AgentLives = true, since, false
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
		"it said that, and has stopped by now": {func(s *reconcile.Snapshot, v *node.View) {
			s.Manifest.Disconnect = &manifest.Disconnect{StopAfter: length(time.Second)}
			v.Epoch, v.Orphans = s.Epoch, []pod.Orphan{{Identity: pod.Identity{RCID: "rc", Role: "main", Index: 2}, Digest: s.RC.ManifestDigest}}
		}, 1},
		"it is back and has not spoken": {func(_ *reconcile.Snapshot, v *node.View) {
			v.Alive, v.MachineLost, v.Epoch, v.FreeIndex = true, false, "", 0
		}, 0},
		"it is back, and the controller is younger": {func(s *reconcile.Snapshot, v *node.View) {
			v.Alive, v.MachineLost, v.Epoch, v.FreeIndex, s.Newer = true, false, "", 0, true
		}, 1},
		"it is back and has spoken": {func(s *reconcile.Snapshot, v *node.View) {
			v.Alive, v.MachineLost, v.Epoch, v.FreeIndex = true, false, s.Epoch, 0
		}, 1},
		"its pages are not read": {func(s *reconcile.Snapshot, v *node.View) { v.Epoch, v.OrphansUnread = s.Epoch, true }, 0},
		"it has stopped by now": {func(s *reconcile.Snapshot, _ *node.View) {
			s.Manifest.Disconnect = &manifest.Disconnect{StopAfter: length(time.Second)}
		}, 1},
		"it may run another version": {func(s *reconcile.Snapshot, _ *node.View) {
			s.Manifest.Disconnect, s.WentBack = &manifest.Disconnect{StopAfter: length(time.Second)}, true
		}, 0},
		"it has spoken since the store went back": {func(s *reconcile.Snapshot, v *node.View) {
			s.Manifest.Disconnect, s.WentBack = &manifest.Disconnect{StopAfter: length(time.Second)}, true
			v.Epoch, v.Orphans = s.Epoch, []pod.Orphan{{Identity: pod.Identity{RCID: "rc", Role: "main", Index: 2}, Digest: s.RC.ManifestDigest}}
		}, 1},
		"it was in touch until now": {func(s *reconcile.Snapshot, v *node.View) {
			s.Manifest.Disconnect, v.LostSeen = &manifest.Disconnect{StopAfter: length(time.Second)}, s.Now
		}, 0},
		"it is not known since when it is lost": {func(s *reconcile.Snapshot, v *node.View) {
			s.Manifest.Disconnect, v.LostSeen = &manifest.Disconnect{StopAfter: length(time.Second)}, time.Time{}
		}, 0},
		"only placements know its loss": {func(s *reconcile.Snapshot, v *node.View) {
			s.Manifest.Disconnect = &manifest.Disconnect{StopAfter: length(time.Second)}
			v.MachineLost, v.LostSeen, v.DeadSeen = false, time.Time{}, s.EpochSince
			s.Companions = []reconcile.Companion{{RCID: "other", Pods: []reconcile.Pod{{Placement: pod.Placement{
				Identity: pod.Identity{RCID: "other", Role: "main"}, Node: "silent", RunState: pod.Running, LostSince: &s.EpochSince, DeadIndex: 9,
			}}}}}
		}, 1},
		"only placements know its loss, and its agent lives": {func(s *reconcile.Snapshot, v *node.View) {
			s.Manifest.Disconnect = &manifest.Disconnect{StopAfter: length(time.Second)}
			v.MachineLost, v.LostSeen, v.DeadSeen, v.AgentLives = false, time.Time{}, s.EpochSince, true
			s.Companions = []reconcile.Companion{{RCID: "other", Pods: []reconcile.Pod{{Placement: pod.Placement{
				Identity: pod.Identity{RCID: "other", Role: "main"}, Node: "silent", RunState: pod.Running, LostSince: &s.EpochSince, DeadIndex: 9,
			}}}}}
		}, 0},
		"its supervisors cannot stop it": {func(s *reconcile.Snapshot, v *node.View) {
			s.Manifest.Disconnect, v.EnforcesStopAfter = &manifest.Disconnect{StopAfter: length(time.Second)}, false
		}, 0},
		"only its preparer is silent": {func(s *reconcile.Snapshot, v *node.View) {
			s.Manifest.Disconnect, v.MachineLost = &manifest.Disconnect{StopAfter: length(time.Second)}, false
		}, 0},
	} {
		s := orderedRow(2, 3)
		m := *s.Manifest
		s.Manifest, s.Epoch, s.EpochSince = &m, "now", s.Now.Add(-time.Hour)
		for _, v := range s.Nodes {
			v.Epoch = s.Epoch
		}
		silent := &node.View{Node: node.Node{Name: "silent", Epoch: "another", EnforcesStopAfter: true}, MachineLost: true, LostSeen: s.EpochSince, FreeIndex: 9}
		s.Nodes["silent"] = silent
		c.change(s, silent)
		if plan := reconcile.Compute(s); len(plan.Adds) != c.want || (c.want == 0) != plan.Status.Is(rc.AwaitsStop) {
			t.Errorf("%s: %v, %+v", name, plan.Adds, plan.Status.Conditions)
		}
	}
}

// An available pod stays on its drained node while a sibling is not available. The status says so.
func TestADrainWaitsForOrderedSiblings(t *testing.T) {
	t.Parallel()
	s := orderedRow(2, 3)
	s.Epoch, s.EpochSince = "now", s.Now.Add(-time.Hour)
	for _, v := range s.Nodes {
		v.Epoch = s.Epoch
	}
	s.Nodes["silent"] = &node.View{Node: node.Node{Name: "silent", Epoch: "another"}, MachineLost: true, LostSeen: s.Now, FreeIndex: 9}
	drained := *s.Nodes[s.Pods[0].Node]
	drained.Ops.Drain = &node.Drain{Since: s.Now.Add(-time.Hour)}
	s.Nodes[drained.Name] = &drained
	plan := reconcile.Compute(s)
	says := slices.ContainsFunc(plan.Status.Conditions, func(c rc.Condition) bool {
		return c.True && strings.Contains(c.Reason, "main.0 must leave "+drained.Name)
	})
	if len(plan.Changes) > 0 || !says {
		t.Errorf("%+v, %+v", plan.Changes, plan.Status.Conditions)
	}
}

// An ordered pod that does not run is not started by an upgrade, or by another name, while a former copy may live.
func TestAnOrderedPodIsNotStartedBesideAFormerCopy(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(s *reconcile.Snapshot){
		"upgrade": func(s *reconcile.Snapshot) { s.Pods[0].Digest = "former" },
		"name":    func(s *reconcile.Snapshot) { s.Pods[0].Placement.Standby = true },
	} {
		for ghosts, want := range map[int]int{0: 1, 1: 0} {
			s := orderedRow(2, 2)
			change(s)
			p := &s.Pods[0]
			p.Reality = nil
			if ghosts > 0 {
				p.Placement.Ghosts, p.Ghosts = []pod.Ghost{{Node: "n9", Revision: 7}}, map[string]*pod.Reality{"n9": nil}
			}
			if plan := reconcile.Compute(s); len(plan.Changes) != want {
				t.Errorf("%s with %d ghosts: %+v", name, ghosts, plan.Changes)
			}
		}
	}
}

// Where a group becomes ordered while a pod of it moves, one of the copies stops: the new one where the former one is needed.
func TestAMoveEndsWhenItsGroupBecomesOrdered(t *testing.T) {
	t.Parallel()
	s := orderedRow(2, 2)
	s.RC.MinAvailable = count(2)
	p := &s.Pods[0]
	former := *p.Reality
	former.Node = "n9"
	v := *s.Nodes[p.Node]
	v.Name = "n9"
	s.Nodes["n9"] = &v
	p.Reality = nil
	p.Placement.Ghosts, p.Ghosts = []pod.Ghost{{Node: "n9"}}, map[string]*pod.Reality{"n9": &former}
	s.Nodes["n9"].Ops.Drain = &node.Drain{Since: s.Now}
	plan := reconcile.Compute(s)
	if len(plan.Changes) != 1 || plan.Changes[0].Action != reconcile.Return || plan.Changes[0].Placement.Node != "n9" || plan.Changes[0].Placement.Ghosts[0].Revision == 0 {
		t.Errorf("%+v", plan.Changes)
	}
}

// A node that was told to run several versions, one after the other, may run any of them.
func TestALostNodeMayRunAnyVersionThatItWasTold(t *testing.T) {
	t.Parallel()
	upgraded := func(told, runs string, told2 ...string) *reconcile.Snapshot {
		s := orderedRow(2, 2)
		p := &s.Pods[0]
		p.Digest, p.Switching, p.Placement.MayRun = told, true, told2
		r := *p.Reality
		r.Digest, r.Revision, r.Available = runs, p.Revision-1, false
		p.Reality = &r
		return s
	}
	for name, c := range map[string]struct {
		s    *reconcile.Snapshot
		want []string
	}{
		"the second upgrade": {upgraded("m2", "m0"), []string{"m2"}},
		"the third":          {upgraded("m3", "m0", "m2"), []string{"m2", "m3"}},
		"it follows":         {upgraded("m2", "m2", "m9"), []string{"m9", "m2"}},
		"too many":           {upgraded("m9", "m0", "m2", "m3", "m4", "m5", "m6", "m7", "m8"), []string{""}},
	} {
		plan := reconcile.Compute(c.s)
		if len(plan.Changes) != 1 || !slices.Equal(plan.Changes[0].Placement.MayRun, c.want) {
			t.Errorf("%s: %+v", name, plan.Changes)
		}
	}
	s := upgraded("m2", "m2", "m9")
	s.Pods[0].Reality.Revision = s.Pods[0].Revision
	if plan := reconcile.Compute(s); len(plan.Changes) != 1 || len(plan.Changes[0].Placement.MayRun) != 0 {
		t.Errorf("it has done as it was told: %+v", plan.Changes)
	}
	s = upgraded("m1", "m1", "m9")
	since := s.Now.Add(-time.Hour)
	p := &s.Pods[0]
	v := *s.Nodes[p.Node]
	v.Alive, v.MachineLost, v.LostSeen, v.FreeIndex, v.EnforcesStopAfter = false, true, since, 7, true
	s.Nodes[v.Name] = &v
	p.RunState, p.LostSince, p.DeadIndex = pod.Stopped, &since, 7
	m := *s.Manifest
	m.Disconnect = &manifest.Disconnect{StopAfter: length(time.Minute)}
	s.Manifest, s.Manifests = &m, map[string]*manifest.Manifest{"m9": {}}
	if plan := reconcile.Compute(s); len(plan.Changes) > 0 || !strings.Contains(awaits(&plan), "no disconnect.stop_after") {
		t.Errorf("%q, %+v", awaits(&plan), plan.Changes)
	}
	if s.Manifests["m9"] = &m; len(reconcile.Compute(s).Changes) != 1 {
		t.Error("all versions stop")
	}
}
