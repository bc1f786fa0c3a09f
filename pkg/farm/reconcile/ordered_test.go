package reconcile_test

import (
	"fmt"
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

// All terms are added, the longest manifest decides, and with a manifest without stop_after no time is long enough.
func TestSurelyStoppedAddsAllTimes(t *testing.T) {
	t.Parallel()
	stops := func(after time.Duration) *manifest.Manifest {
		return &manifest.Manifest{Disconnect: &manifest.Disconnect{StopAfter: length(after)}}
	}
	full := stops(time.Minute)
	full.Ports = []manifest.Port{{Name: "http", Port: 80}}
	full.Service = &manifest.Service{Drain: length(3 * time.Second)}
	full.Hooks = &manifest.Hooks{
		BeforeStop: &manifest.Hook{Timeout: length(30 * time.Second)}, AfterStop: &manifest.Hook{},
		AfterLaunch: &manifest.Hook{Timeout: length(time.Hour)},
	}
	full.Launchables = []manifest.Launchable{
		{Name: "a"},
		{Name: "b", StopGrace: length(7 * time.Second), Artifact: manifest.Artifact{Kind: manifest.ArtifactTar}},
	}
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
		"the longest of two": {
			[]*manifest.Manifest{stops(time.Hour), stops(time.Minute)}, time.Hour + margin + time.Second, true,
		},
		"one does not say": {[]*manifest.Manifest{stops(time.Hour), {}}, 0, false},
		"one is not known": {[]*manifest.Manifest{stops(time.Hour), nil}, 0, false},
		"none":             {nil, 0, false},
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

// awaits returns what indices wait for, from the status.
func awaits(plan *reconcile.Plan) string {
	for _, c := range plan.Status.Conditions {
		if c.Type == rc.AwaitsStop && c.True {
			return c.Reason
		}
	}
	return ""
}

// A lost pod is asked to stop, and its index waits until its copy has surely stopped. The status shows what the index
// waits for, and what helps.
func TestALostIndexWaitsForItsStop(t *testing.T) {
	t.Parallel()
	s := orderedRow(2, 2)
	gone := *s.Nodes[s.Pods[0].Node]
	since := s.Now.Add(-time.Hour)
	gone.Alive, gone.MachineLost, gone.LostSeen, gone.FreeIndex = false, true, since, 7
	s.Nodes[gone.Name] = &gone
	s.Pods[0].LostSince, s.Pods[0].DeadIndex = &since, 7
	plan := reconcile.Compute(s)
	if len(plan.Adds) > 0 || len(plan.Changes) != 1 || plan.Changes[0].Action != reconcile.Stop ||
		plan.Changes[0].Placement.LostSince == nil {
		t.Fatalf("%+v", plan)
	}
	s.Pods[0].Placement = *plan.Changes[0].Placement
	plan = reconcile.Compute(s)
	reason := awaits(&plan)
	if len(plan.Adds)+len(plan.Changes) > 0 || !strings.Contains(reason, "no disconnect.stop_after") ||
		!strings.Contains(reason, "--node "+gone.Name+" --i-am-sure") {
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
	if plan = reconcile.Compute(s); len(plan.Changes) > 0 || !strings.Contains(awaits(&plan), "counts as stopped at") ||
		plan.Again <= 0 {
		t.Errorf("before its time: %q, %+v", awaits(&plan), plan.Changes)
	}
	*s.Pods[0].LostSince = late
	gone.FreeIndex = 8
	isRemoval := func(ch reconcile.Change) bool { return ch.Action == reconcile.Remove }
	if plan = reconcile.Compute(s); slices.ContainsFunc(plan.Changes, isRemoval) {
		t.Errorf("the record is about another loss: %+v", plan.Changes)
	}
	gone.FreeIndex = 7
	gone.LostSeen = s.Now.Add(-time.Second)
	if plan = reconcile.Compute(s); len(plan.Changes) > 0 || !strings.Contains(awaits(&plan), "counts as stopped at") ||
		plan.Again <= 0 {
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
	if plan = reconcile.Compute(s); len(plan.Changes) != 1 || plan.Changes[0].Action != reconcile.Mark ||
		plan.Changes[0].Placement.LostSince != nil ||
		plan.Changes[0].Placement.UnmanagedSince == nil || !strings.Contains(awaits(&plan), "the machine lives") {
		t.Errorf("its agent lives again: %q, %+v", awaits(&plan), plan.Changes)
	}
	gone.MachineLost, gone.LostSeen, gone.AgentLives = true, since, false
	if plan = reconcile.Compute(s); len(plan.Changes) != 1 || plan.Changes[0].Action != reconcile.Remove ||
		len(plan.Changes[0].NeedsDead) != 1 {
		t.Errorf("after stop_after: %+v", plan.Changes)
	}
	gone.MachineLost, s.Pods[0].LostSince = false, nil
	if plan = reconcile.Compute(s); len(plan.Changes) > 0 && plan.Changes[0].Action == reconcile.Remove ||
		!plan.Status.Is(rc.AwaitsStop) {
		t.Errorf("only its preparer is gone: %+v", plan)
	}
}

// An index without a placement may run on a node that has not spoken in this epoch, unless the controller was made in
// this epoch.
func TestAnIndexWaitsForSilentNodes(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(s *reconcile.Snapshot, silent *node.View)
		want   int
	}{
		"silent":                    {func(*reconcile.Snapshot, *node.View) {}, 0},
		"the controller is younger": {func(s *reconcile.Snapshot, _ *node.View) { s.Newer = true }, 1},
		"it has spoken":             {func(s *reconcile.Snapshot, v *node.View) { v.Epoch = s.Epoch }, 1},
		"it reported that it runs it": {func(s *reconcile.Snapshot, v *node.View) {
			v.Epoch, v.Orphans = s.Epoch, []pod.Orphan{{Identity: pod.Identity{RCID: "rc", Role: "main", Index: 2}}}
		}, 0},
		"it reported that, and has stopped by now": {func(s *reconcile.Snapshot, v *node.View) {
			s.Manifest.Disconnect = &manifest.Disconnect{StopAfter: length(time.Second)}
			v.Epoch, v.Orphans = s.Epoch, []pod.Orphan{
				{Identity: pod.Identity{RCID: "rc", Role: "main", Index: 2}, Digest: s.RC.ManifestDigest},
			}
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
		"its pages are not read": {
			func(s *reconcile.Snapshot, v *node.View) { v.Epoch, v.OrphansUnread = s.Epoch, true }, 0,
		},
		"it has stopped by now": {func(s *reconcile.Snapshot, _ *node.View) {
			s.Manifest.Disconnect = &manifest.Disconnect{StopAfter: length(time.Second)}
		}, 1},
		"it may run another version": {func(s *reconcile.Snapshot, _ *node.View) {
			s.Manifest.Disconnect, s.WentBack = &manifest.Disconnect{StopAfter: length(time.Second)}, true
		}, 0},
		"it has spoken since the store went back": {func(s *reconcile.Snapshot, v *node.View) {
			s.Manifest.Disconnect, s.WentBack = &manifest.Disconnect{StopAfter: length(time.Second)}, true
			v.Epoch, v.Orphans = s.Epoch, []pod.Orphan{
				{Identity: pod.Identity{RCID: "rc", Role: "main", Index: 2}, Digest: s.RC.ManifestDigest},
			}
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
				Identity: pod.Identity{RCID: "other", Role: "main"}, Node: "silent", RunState: pod.Running,
				LostSince: &s.EpochSince, DeadIndex: 9,
			}}}}}
		}, 1},
		"only placements know its loss, and its agent lives": {func(s *reconcile.Snapshot, v *node.View) {
			s.Manifest.Disconnect = &manifest.Disconnect{StopAfter: length(time.Second)}
			v.MachineLost, v.LostSeen, v.DeadSeen, v.AgentLives = false, time.Time{}, s.EpochSince, true
			s.Companions = []reconcile.Companion{{RCID: "other", Pods: []reconcile.Pod{{Placement: pod.Placement{
				Identity: pod.Identity{RCID: "other", Role: "main"}, Node: "silent", RunState: pod.Running,
				LostSince: &s.EpochSince, DeadIndex: 9,
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
		silent := &node.View{
			Node: node.Node{Name: "silent", Epoch: "another", EnforcesStopAfter: true}, MachineLost: true,
			LostSeen: s.EpochSince, FreeIndex: 9,
		}
		s.Nodes["silent"] = silent
		c.change(s, silent)
		if plan := reconcile.Compute(s); len(plan.Adds) != c.want || (c.want == 0) != plan.Status.Is(rc.AwaitsStop) {
			t.Errorf("%s: %v, %+v", name, plan.Adds, plan.Status.Conditions)
		}
	}
}

// An available pod stays on its drained node while another pod of its group is not available. The status reports this.
func TestADrainWaitsForOrderedSiblings(t *testing.T) {
	t.Parallel()
	s := orderedRow(2, 3)
	s.Epoch, s.EpochSince = "now", s.Now.Add(-time.Hour)
	for _, v := range s.Nodes {
		v.Epoch = s.Epoch
	}
	s.Nodes["silent"] = &node.View{
		Node: node.Node{Name: "silent", Epoch: "another"}, MachineLost: true, LostSeen: s.Now, FreeIndex: 9,
	}
	drained := *s.Nodes[s.Pods[0].Node]
	drained.Ops.Drain = &node.Drain{Since: s.Now.Add(-time.Hour)}
	s.Nodes[drained.Name] = &drained
	plan := reconcile.Compute(s)
	reported := slices.ContainsFunc(plan.Status.Conditions, func(c rc.Condition) bool {
		return c.True && strings.Contains(c.Reason, "main.0 must leave "+drained.Name)
	})
	if len(plan.Changes) > 0 || !reported {
		t.Errorf("%+v, %+v", plan.Changes, plan.Status.Conditions)
	}
	s.RC.ReplicaGroups[0].Count = count(2) // now all pods of the group are available
	if plan := reconcile.Compute(s); len(plan.Changes) != 1 || plan.Changes[0].Identity != s.Pods[0].Identity ||
		plan.Changes[0].Action != reconcile.Stop {
		t.Errorf("with all pods available: %+v, %+v", plan.Changes, plan.Status.Conditions)
	}
}

// An ordered pod that must leave its node stops first. If the pod is available, and the other pods are fewer than the
// minimum, the pod stays, and the status says so.
func TestAnOrderedPodLeavesItsNodeWithinTheMinimum(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		minimum int
		ill     []int
		leaves  bool
	}{
		"enough are left":     {2, nil, true},
		"one is missing":      {3, nil, false},
		"it is not available": {3, []int{0}, true},
	} {
		s := orderedRow(3, 3)
		s.RC.MinAvailable = &c.minimum
		sick(s, c.ill...)
		s.Nodes["n0"].Ops.Drain = &node.Drain{Since: s.Now}
		plan := reconcile.Compute(s)
		if got := slices.Equal(stopped(&plan), []string{"main.0"}); got != c.leaves || !got && len(plan.Changes) > 0 {
			t.Errorf("%s: %+v", name, plan.Changes)
		}
		why := reasonOf(&plan, rc.Blocked)
		if strings.Contains(why, "main.0 must leave n0 and stops first, because its group is ordered, "+
			"but 3 available replicas and a minimum of 3 leave no spare pod") == c.leaves {
			t.Errorf("%s: the status says %q", name, why)
		}
	}
}

// While a node keeps an index, the status says what the node has not done.
func TestTheStatusSaysHowANodeKeepsAnIndex(t *testing.T) {
	t.Parallel()
	id := pod.Identity{RCID: "rc", Role: "main", Index: 2}
	for name, c := range map[string]struct {
		change func(*node.View)
		want   string
	}{
		"it is silent": {func(*node.View) {}, "silent may run it, and has not said what it runs in this epoch; "},
		"it is silent, and listed the pod": {
			func(v *node.View) { v.Orphans = []pod.Orphan{{Identity: id}} }, "silent last reported that it runs it; ",
		},
		"it is back": {
			func(v *node.View) { v.Alive = true },
			"silent is back and has not said yet what it runs; the log of its preparer says why",
		},
		"it is back, and lists the pod": {
			func(v *node.View) { v.Alive, v.Orphans = true, []pod.Orphan{{Identity: id}} },
			"silent last reported that it runs it",
		},
	} {
		s := spoken(2, 3)
		addSilent(s)
		c.change(s.Nodes["silent"])
		plan := reconcile.Compute(s)
		want := "main.2 is not placed: " + c.want
		if got := awaits(&plan); len(plan.Adds) > 0 || !strings.HasPrefix(got, want) {
			t.Errorf("%s: adds %v; %q, want %q", name, plan.Adds, got, want)
		}
	}
}

// An index waits until the copy on a silent node counts as stopped. The status gives that time, and the next look comes
// at that time. Then the index is placed.
func TestAnIndexIsPlacedWhenTheSilentCopyCountsAsStopped(t *testing.T) {
	t.Parallel()
	s := orderedRow(2, 3)
	m := *s.Manifest
	m.Disconnect = &manifest.Disconnect{StopAfter: length(time.Second)}
	s.Manifest, s.Epoch, s.EpochSince = &m, "now", s.Now.Add(-time.Hour)
	for _, v := range s.Nodes {
		v.Epoch = s.Epoch
	}
	s.Nodes["silent"] = &node.View{
		Node: node.Node{Name: "silent", Epoch: "another", EnforcesStopAfter: true}, MachineLost: true,
		LostSeen: s.Now, FreeIndex: 9,
	}
	plan := reconcile.Compute(s)
	if len(plan.Adds) > 0 || plan.Again <= 0 || !strings.Contains(awaits(&plan), "its copy counts as stopped at ") {
		t.Fatalf("%v, again after %s: %q", plan.Adds, plan.Again, awaits(&plan))
	}
	s.Now = s.Now.Add(plan.Again)
	if plan := reconcile.Compute(s); len(plan.Adds) != 1 {
		t.Errorf("at that time: %v, %q", plan.Adds, awaits(&plan))
	}
}

// A copy is known from an intent alone. If the intent runs the pod, the copy is adopted with its share of the node. If
// the intent stops the pod, the copy stops. While another intent cannot be read, the copy waits.
func TestACopyIsKnownFromItsIntent(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		state  pod.RunState
		unread string
		want   reconcile.Action // empty: nothing changes
	}{
		"it runs":                   {pod.Running, "", reconcile.Adopt},
		"it stops":                  {pod.Stopped, "", reconcile.StopDuplicate},
		"another cannot be read":    {pod.Running, "garbage", ""},
		"it stops, another garbage": {pod.Stopped, "garbage", ""},
	} {
		s := orderedRow(1, 2)
		m := *s.Manifest
		m.Launchables = []manifest.Launchable{{Name: "a", Resources: manifest.Resources{CPU: 500, Memory: 1 << 20}}}
		s.Manifest, s.UnreadIntent = &m, c.unread
		id := pod.Identity{RCID: "rc", Role: "main", Index: 1}
		s.AddIntent("n2", &pod.Intent{Identity: id, PodID: "p", Digest: "m1", Revision: 4, State: c.state})
		plan := reconcile.Compute(s)
		if c.want == "" {
			if len(plan.Changes) > 0 || !strings.Contains(awaits(&plan), c.unread) {
				t.Errorf("%s: %+v, %q", name, plan.Changes, awaits(&plan))
			}
			continue
		}
		if len(plan.Changes) != 1 || plan.Changes[0].Action != c.want || plan.Changes[0].Placement.Node != "n2" {
			t.Errorf("%s: %+v", name, plan.Changes)
			continue
		}
		if claim := plan.Changes[0].Reserve[0].Claim; claim == nil || claim.CPU != 500 || claim.Memory != 1<<20 {
			t.Errorf("%s: reserves %+v", name, claim)
		}
	}
}

// A copy without a placement must stop, and the breaker does not let it stop yet. Its index gets no other copy.
func TestNoPodIsPlacedBesideACopyThatMustStop(t *testing.T) {
	t.Parallel()
	s := orderedRow(1, 2)
	s.Breaker = "tripped"
	id := pod.Identity{RCID: "rc", Role: "main", Index: 1}
	s.AddIntent("n2", &pod.Intent{Identity: id, PodID: "p", Digest: "m1", Revision: 4, State: pod.Stopped})
	plan := reconcile.Compute(s)
	if len(plan.Adds)+len(plan.Changes) > 0 || !plan.Status.Is(rc.BreakerTripped) {
		t.Errorf("adds %v, changes %+v, conditions %+v", plan.Adds, plan.Changes, plan.Status.Conditions)
	}
}

// If a node lists a pod as an orphan, the node's list says how the pod runs, and an intent for the same pod adds
// nothing. An intent for another pod on that node adds a copy.
func TestAnIntentAddsOnlyCopiesThatItsNodeDoesNotList(t *testing.T) {
	t.Parallel()
	for index, want := range map[int]int{1: 1, 2: 2} {
		s := orderedRow(1, 3)
		s.Orphans = []reconcile.Orphan{orphan("n2", 1, 9)}
		s.AddIntent("n2", &pod.Intent{
			Identity: pod.Identity{RCID: "rc", Role: "main", Index: index}, Revision: 4, State: pod.Stopped,
		})
		if len(s.Orphans) != want || s.Orphans[0].Revision != 9 {
			t.Errorf("an intent for main.%d: %+v", index, s.Orphans)
		}
	}
}

// A copy that stops uses a slot. An index is placed when a slot is free.
func TestAnIndexWaitsForASlot(t *testing.T) {
	t.Parallel()
	for surge, want := range map[int]int{0: 0, 1: 1} {
		s := orderedRow(2, 2)
		s.RC.MaxSurge = &surge
		s.Pods[1].Role, s.Pods[1].Identity.Role = "old", "old"
		stopAt(&s.Pods[1], s)
		if plan := reconcile.Compute(s); len(plan.Adds) != want {
			t.Errorf("surge %d: %v are added, want %d", surge, plan.Adds, want)
		}
	}
}

// While a former copy may live, an ordered pod that does not run is started neither by an upgrade nor by another name.
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
				p.Placement.Ghosts, p.Ghosts = []pod.Ghost{{Node: "n9", Revision: 7}}, map[string]*pod.Reality{
					"n9": nil,
				}
			}
			if plan := reconcile.Compute(s); len(plan.Changes) != want {
				t.Errorf("%s with %d ghosts: %+v", name, ghosts, plan.Changes)
			}
		}
	}
}

// If a group becomes ordered while a pod of it moves, one of the copies stops: the new one if the former one is needed.
func TestAMoveEndsIfItsGroupBecomesOrdered(t *testing.T) {
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
	if len(plan.Changes) != 1 || plan.Changes[0].Action != reconcile.Return || plan.Changes[0].Placement.Node != "n9" ||
		plan.Changes[0].Placement.Ghosts[0].Revision == 0 {
		t.Errorf("%+v", plan.Changes)
	}
}

// A node that got intents with several versions, one after the other, may run any of them.
func TestALostNodeMayRunAnyVersionOfItsIntents(t *testing.T) {
	t.Parallel()
	upgraded := func(digest, runs string, former ...string) *reconcile.Snapshot {
		s := orderedRow(2, 2)
		p := &s.Pods[0]
		p.Digest, p.Switching, p.Placement.MayRun = digest, true, former
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
		t.Errorf("it has carried out its intent: %+v", plan.Changes)
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
	if plan := reconcile.Compute(s); len(plan.Changes) > 0 ||
		!strings.Contains(awaits(&plan), "no disconnect.stop_after") {
		t.Errorf("%q, %+v", awaits(&plan), plan.Changes)
	}
	if s.Manifests["m9"] = &m; len(reconcile.Compute(s).Changes) != 1 {
		t.Error("all versions stop")
	}
}

// After a loss of the records one node lists a copy that had been given up, and another node lists the copy that
// replaced it. The copy with the lower revision stops. Its stop has a new revision, but this must not stop the other
// copy.
func TestTheStopOfAnOldCopyDoesNotStopTheOtherOne(t *testing.T) {
	t.Parallel()
	s := orderedRow(2, 2)
	replaced := s.Pods[0]
	s.Pods = s.Pods[1:]
	s.Orphans = []reconcile.Orphan{orphan("n0", 0, 9), orphan("n1", 0, 5)}
	plan := reconcile.Compute(s)
	if len(plan.Changes) != 1 || plan.Changes[0].Action != reconcile.StopDuplicate ||
		plan.Changes[0].Placement.Node != "n1" {
		t.Fatalf("of two copies: %+v", plan.Changes)
	}
	stops := reconcile.Pod{Placement: *plan.Changes[0].Placement, Index: 77}
	was := *replaced.Reality
	was.Node, was.Revision = "n1", 5
	stops.Reality = &was
	s.Pods = append([]reconcile.Pod{stops}, s.Pods...)
	if plan := reconcile.Compute(s); len(plan.Changes) > 0 {
		t.Fatalf("while the old copy stops: %+v", plan.Changes)
	}
	done := was
	done.State, done.Available, done.Revision = pod.StateStopped, false, stops.Revision
	s.Pods[0].Reality = &done
	s.Orphans = s.Orphans[:1]
	if plan := reconcile.Compute(s); len(plan.Changes) != 1 || plan.Changes[0].Action != reconcile.Remove ||
		plan.Changes[0].Identity.Index != 0 {
		t.Fatalf("when it has stopped: %+v", plan.Changes)
	}
	s.Pods = s.Pods[1:]
	if plan := reconcile.Compute(s); len(plan.Changes) != 1 || plan.Changes[0].Action != reconcile.Adopt ||
		plan.Changes[0].Placement.Node != "n0" {
		t.Fatalf("the other copy: %+v", plan.Changes)
	}
}

// Of three copies without a placement, the copy with the lowest revision stops first.
func TestTheLowestOfThreeCopiesStopsFirst(t *testing.T) {
	t.Parallel()
	for _, lowest := range []string{"n1", "n2"} {
		s := orderedRow(1, 2)
		s.Orphans = []reconcile.Orphan{orphan("n0", 1, 9), orphan("n1", 1, 6), orphan("n2", 1, 6)}
		for i := range s.Orphans {
			if s.Orphans[i].Node == lowest {
				s.Orphans[i].Revision = 5
			}
		}
		plan := reconcile.Compute(s)
		if len(plan.Changes) == 0 || plan.Changes[0].Action != reconcile.StopDuplicate ||
			plan.Changes[0].Placement.Node != lowest {
			t.Errorf("%s has the lowest revision: %+v", lowest, plan.Changes)
		}
	}
}

// A node runs an ordered pod at a higher revision than the placement has. The copy is adopted there, but not while a
// former copy on another node has not confirmed its stop.
func TestAHigherRevisionOfAnOrderedPodWaitsForTheFormerCopy(t *testing.T) {
	t.Parallel()
	for ghosts, want := range map[int]bool{0: true, 1: false} {
		s := orderedRow(1, 1)
		s.Orphans = []reconcile.Orphan{orphan("n0", 0, 9)}
		s.Orphans[0].Runs = true
		for range ghosts {
			s.Pods[0].Placement.Ghosts = []pod.Ghost{{Node: "n2", Revision: 4}}
			s.Pods[0].Ghosts = map[string]*pod.Reality{"n2": nil}
		}
		plan := reconcile.Compute(s)
		isAdoption := func(ch reconcile.Change) bool { return ch.Action == reconcile.Adopt }
		adopted := slices.ContainsFunc(plan.Changes, isAdoption)
		if adopted != want {
			t.Errorf("%d former copies: adopted is %t; %+v", ghosts, adopted, plan.Changes)
		}
	}
}

// A node lists an ordered pod that is placed there. The farm adopts the copy only if its revision is higher than the
// revision of the placement. Otherwise the node has not read its intent yet.
func TestAnOrderedPodIsAdoptedOnItsNodeAtAHigherRevision(t *testing.T) {
	t.Parallel()
	for revision, want := range map[int64]bool{4: false, 5: false, 6: true} {
		s := orderedRow(1, 1)
		s.Orphans = []reconcile.Orphan{orphan("n0", 0, revision)}
		if !want {
			none(t, fmt.Sprintf("at revision %d", revision), s)
			continue
		}
		if ch := only(t, s, reconcile.Adopt); ch.Placement.Node != "n0" || ch.Placement.Revision <= revision {
			t.Errorf("at revision %d: %+v", revision, ch.Placement)
		}
	}
}

// The farm asked a copy without a placement to stop, because another copy runs. While the copy may still stop, nothing
// happens to the other copy. If the copy runs at a higher revision than its stop, it does not stop. Then the other copy
// must stop.
func TestAStopPassedByAHigherRevisionIsGivenUp(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		listed int64 // the revision at which n1 lists the copy; its stop has revision 20
		other  bool  // n0 lists another copy
		want   reconcile.Action
		on     string
	}{
		"its node has not read the stop": {19, true, "", ""},
		"at the revision of the stop":    {20, true, "", ""},
		"at a higher revision":           {21, false, reconcile.Adopt, "n1"},
		"at a higher one, with another":  {21, true, reconcile.StopDuplicate, "n0"},
	} {
		p := running(0, "n1", 20, 0)
		p.RunState, p.Reality = pod.Stopped, nil
		s := orderedRow(0, 1)
		s.Pods, s.Orphans = []reconcile.Pod{p}, []reconcile.Orphan{orphan("n1", 0, c.listed)}
		if c.other {
			s.Orphans = append(s.Orphans, orphan("n0", 0, 9))
		}
		if c.want == "" {
			none(t, name, s)
			continue
		}
		changes := reconcile.Compute(s).Changes
		if len(changes) != 1 || changes[0].Action != c.want || changes[0].Intents[0].Node != c.on {
			t.Errorf("%s: %+v", name, changes)
		}
	}
}

// If the controller is deleted, both copies stop, also the one that has no placement yet.
func TestBothCopiesOfADeletedControllerStop(t *testing.T) {
	t.Parallel()
	s := orderedRow(2, 2)
	s.Pods = s.Pods[1:]
	s.Orphans = []reconcile.Orphan{orphan("n0", 0, 9), orphan("n1", 0, 5)}
	plan := reconcile.Compute(s)
	s.Pods = append([]reconcile.Pod{{Placement: *plan.Changes[0].Placement, Index: 77}}, s.Pods...)
	deleted := s.Now
	s.RC.DeletedAt = &deleted
	plan = reconcile.Compute(s)
	for _, ch := range plan.Changes {
		if ch.Identity.Index == 0 && ch.Action == reconcile.StopDuplicate && ch.Intents[0].Node == "n0" {
			return
		}
	}
	t.Errorf("%+v", plan.Changes)
}
