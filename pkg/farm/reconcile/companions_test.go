package reconcile_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/farm/reconcile"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
)

// besides gives a controller a companion with the given number of available pods, and the service's limits.
func besides(s *reconcile.Snapshot, pods, least, most int) *reconcile.Companion {
	s.Epoch = "world"
	s.RC.Service = &rc.Service{Name: "web", Revision: 2, Min: least, Max: most}
	other := reconcile.Companion{RCID: "old", Status: &rc.Status{RCID: "old", Epoch: "world"}}
	for i := range pods {
		p := running(i, fmt.Sprintf("n%d", i%4), 5, 0)
		p.RCID, p.Reality.RCID = "old", "old"
		other.Pods = append(other.Pods, p)
	}
	s.Companions = []reconcile.Companion{other}
	return &s.Companions[0]
}

func stopAt(p *reconcile.Pod, s *reconcile.Snapshot) {
	p.RunState, p.StoppingSince = pod.Stopped, &s.Now
	p.Reality.State, p.Reality.Available = pod.StateStopping, false
}

func toLost(s *reconcile.Snapshot, p *reconcile.Pod) {
	v := *s.Nodes[p.Node]
	v.Name, v.Alive, v.MachineLost = "lost", false, true
	s.Nodes["lost"] = &v
	p.Node, p.Reality.Node, p.LostSince = "lost", "lost", &s.Now
}

func toUnmanaged(s *reconcile.Snapshot, p *reconcile.Pod) {
	toLost(s, p)
	s.Nodes["lost"].MachineLost, p.LostSince, p.UnmanagedSince = false, nil, &s.Now
}

// The minimum covers the whole service: only available pods of companions can stand in for pods that stop.
func TestTheMinimumCoversAllRevisions(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		beside, least int
		change        func(*reconcile.Snapshot, *reconcile.Companion)
		want          int
	}{
		"all of it is beside": {3, 3, nil, 3},
		"part of it is":       {2, 3, nil, 2},
		"none is":             {0, 3, nil, 0},
		"no minimum":          {0, 0, nil, 3},
		"one is not well": {
			3, 3, func(_ *reconcile.Snapshot, o *reconcile.Companion) { o.Pods[0].Reality.Available = false }, 2,
		},
		"one has another manifest": {
			3, 3, func(_ *reconcile.Snapshot, o *reconcile.Companion) { o.Pods[0].Reality.Digest = "m9" }, 2,
		},
		"one stops": {
			3, 3, func(s *reconcile.Snapshot, o *reconcile.Companion) { stopAt(&o.Pods[1], s) }, 2,
		},
		"one is asked to stop and still runs": {3, 3, func(_ *reconcile.Snapshot, o *reconcile.Companion) {
			o.Pods[1].RunState = pod.Stopped
		}, 2},
		"one is on a lost machine": {
			3, 3, func(s *reconcile.Snapshot, o *reconcile.Companion) { toLost(s, &o.Pods[2]) }, 2,
		},
		"one was known to be lost": {3, 3, func(s *reconcile.Snapshot, o *reconcile.Companion) {
			toLost(s, &o.Pods[2])
			s.Nodes["lost"].MachineLost = false
		}, 2},
		"one is on a node without a preparer": {
			3, 3, func(s *reconcile.Snapshot, o *reconcile.Companion) { toUnmanaged(s, &o.Pods[2]) }, 3,
		},
		"one stands by": {
			3, 3, func(_ *reconcile.Snapshot, o *reconcile.Companion) { o.Pods[0].Placement.Standby = true }, 2,
		},
		"one is registered as standing by": {
			3, 3, func(_ *reconcile.Snapshot, o *reconcile.Companion) { o.Pods[0].Reality.Standby = true }, 2,
		},
		"one is moved, and its former copy counts": {3, 3, func(_ *reconcile.Snapshot, o *reconcile.Companion) {
			p := &o.Pods[0]
			p.Placement.Ghosts, p.Ghosts = []pod.Ghost{{Node: p.Node}}, map[string]*pod.Reality{p.Node: p.Reality}
			p.Node, p.Reality = "n3", nil
		}, 3},
		"one of those that may go stands by": {
			1, 3, func(s *reconcile.Snapshot, _ *reconcile.Companion) { s.Pods[0].Placement.Standby = true }, 1,
		},
	} {
		s := row(3, 0)
		other := besides(s, c.beside, c.least, 20)
		if c.change != nil {
			c.change(s, other)
		}
		plan := reconcile.Compute(s)
		if got := len(stopped(&plan)); got != c.want {
			t.Errorf("%s: %d stop, want %d", name, got, c.want)
		}
		if plan.Status.Is(rc.WaitsForService) != (c.want < 3) {
			t.Errorf("%s: %+v", name, plan.Status.Conditions)
		}
		for _, ch := range plan.Changes {
			standby := s.Pods[ch.Identity.Index].Placement.Standby
			if ch.TakesAvailable == standby && c.least > 0 || ch.NeedsMinimum != (c.least > 0) {
				t.Errorf("%s: %+v", name, ch)
			}
		}
	}
}

// A plan counts the available pods of all revisions, and uses the service's minimum.
func TestAPlanCountsAvailablePodsOfCompanions(t *testing.T) {
	t.Parallel()
	s := row(2, 1)
	other := besides(s, 3, 3, 9)
	other.Pods[1].Reality.Available = false
	plan := reconcile.Compute(s)
	var ids []string
	for _, copied := range plan.Available {
		ids = append(ids, copied.Identity.String()+" on "+copied.Node)
	}
	want := []string{"old/main.0 on n0", "old/main.2 on n2", "rc/main.0 on n0", "rc/main.1 on n1"}
	if slices.Sort(ids); !slices.Equal(ids, want) || plan.Minimum != 3 {
		t.Errorf("available are %v, the minimum is %d", ids, plan.Minimum)
	}
}

// Without companions, or with companions that have no record, the controller's own minimum and surge apply.
func TestWithoutCompanionsTheControllersLimitsApply(t *testing.T) {
	t.Parallel()
	s := row(3, 2)
	besides(s, 0, 9, 1)
	s.Companions = nil
	plan := reconcile.Compute(s)
	if got := stopped(&plan); !slices.Equal(got, []string{"main.2"}) {
		t.Errorf("%v stop: %+v", got, plan.Changes)
	}
	for _, rollout := range []string{"", "under way"} { // if there are several revisions, it limits them together
		s = row(1, 3)
		besides(s, 0, 9, 1)
		s.Companions, s.Rollout = nil, rollout
		plan = reconcile.Compute(s)
		if got := added(&plan); len(got) != 2 {
			t.Errorf("rollout %q: %v are placed", rollout, got)
		}
	}
}

// No more pods are placed than all revisions of the service may have together. A pod that stops is among them until its
// node has confirmed the stop. A lost pod is not.
func TestTheBoundCoversAllRevisions(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		most   int
		change func(*reconcile.Snapshot, *reconcile.Companion)
		want   int
		waits  bool
	}{
		"room for all":  {7, nil, 3, false},
		"room for more": {9, nil, 3, false},
		"room for two":  {6, nil, 2, true},
		"room for none": {4, nil, 0, true},
		"another revision has less": {7, func(s *reconcile.Snapshot, o *reconcile.Companion) {
			s.Rollout, o.Service = "under way", &rc.Service{Max: 6}
		}, 2, true},
		"another revision has more": {6, func(s *reconcile.Snapshot, o *reconcile.Companion) {
			s.Rollout, o.Service = "under way", &rc.Service{Max: 7}
		}, 2, true},
		"another revision has as much": {6, func(s *reconcile.Snapshot, o *reconcile.Companion) {
			s.Rollout, o.Service = "under way", &rc.Service{Max: 6}
		}, 2, true},
		"another revision has none": {6, func(s *reconcile.Snapshot, o *reconcile.Companion) {
			s.Rollout, o.Service = "under way", &rc.Service{}
		}, 2, true},
		"only another revision has one": {0, func(s *reconcile.Snapshot, o *reconcile.Companion) {
			s.Rollout, o.Service = "under way", &rc.Service{Max: 6}
		}, 2, true},
		"more than most": {3, nil, 0, true},
		"no bound": {
			0, func(s *reconcile.Snapshot, _ *reconcile.Companion) { s.RC.MaxSurge = count(0) }, 3, false,
		},
		"one stops": {6, func(s *reconcile.Snapshot, o *reconcile.Companion) { stopAt(&o.Pods[0], s) }, 2, true},
		"one has stopped": {6, func(s *reconcile.Snapshot, o *reconcile.Companion) {
			stopAt(&o.Pods[0], s)
			o.Pods[0].Reality.State = pod.StateStopped
		}, 3, false},
		"one stopped before": {6, func(s *reconcile.Snapshot, o *reconcile.Companion) {
			stopAt(&o.Pods[0], s)
			o.Pods[0].Reality.State = pod.StateStopped
			o.Pods[0].Reality.Revision--
		}, 2, true},
		"one is lost": {
			6, func(s *reconcile.Snapshot, o *reconcile.Companion) { toLost(s, &o.Pods[0]) }, 3, false,
		},
		"one has no preparer": {
			6, func(s *reconcile.Snapshot, o *reconcile.Companion) { toUnmanaged(s, &o.Pods[0]) }, 2, true,
		},
		"one stops and has no preparer": {
			6,
			func(s *reconcile.Snapshot, o *reconcile.Companion) { stopAt(&o.Pods[0], s); toUnmanaged(s, &o.Pods[0]) },
			2, true,
		},
		"one stops on a lost machine": {
			6, func(s *reconcile.Snapshot, o *reconcile.Companion) { stopAt(&o.Pods[0], s); toLost(s, &o.Pods[0]) }, 3,
			false,
		},
		"one cannot be read": {
			7, func(_ *reconcile.Snapshot, o *reconcile.Companion) { o.Unread = 1 }, 2, true,
		},
		"a former copy stops": {7, func(_ *reconcile.Snapshot, o *reconcile.Companion) {
			o.Pods[0].Placement.Ghosts = []pod.Ghost{{Node: "n3", Revision: 4}}
		}, 2, true},
		"a former copy was left as lost": {7, func(_ *reconcile.Snapshot, o *reconcile.Companion) {
			o.Pods[0].Placement.Ghosts = []pod.Ghost{{Node: "n3", LeftBecauseLost: true}}
		}, 3, false},
		"a former copy has stopped": {
			7, func(_ *reconcile.Snapshot, o *reconcile.Companion) { leaveBehind(&o.Pods[0], 4) }, 3, false,
		},
		"one of its own stops": {
			6, func(s *reconcile.Snapshot, _ *reconcile.Companion) { stopAt(&s.Pods[0], s) }, 2, true,
		},
		"one of its own has no preparer": {
			6,
			func(s *reconcile.Snapshot, _ *reconcile.Companion) { stopAt(&s.Pods[0], s); toUnmanaged(s, &s.Pods[0]) },
			2, true,
		},
		"one of its own is on a lost one": {
			6, func(s *reconcile.Snapshot, _ *reconcile.Companion) { stopAt(&s.Pods[0], s); toLost(s, &s.Pods[0]) }, 3,
			false,
		},
	} {
		s := row(1, 4)
		other := besides(s, 3, 0, c.most)
		if c.change != nil {
			c.change(s, other)
		}
		if s.Pods[0].RunState == pod.Stopped {
			s.RC.ReplicaGroups[0].Count = count(3)
		}
		plan := reconcile.Compute(s)
		if got := len(plan.Adds); got != c.want || plan.Status.Is(rc.WaitsForService) != c.waits {
			t.Errorf("%s: %d are placed, want %d: %+v", name, got, c.want, plan.Status.Conditions)
		}
	}
}

// A pod on a node without a preparer uses a slot of the bound, and its new copy uses the same slot. Beyond the bound
// the pod is not replaced. A pod on a lost machine uses no slot, so its new copy needs one.
func TestWithinTheBoundPodsAreReplaced(t *testing.T) {
	t.Parallel()
	away := func(s *reconcile.Snapshot) { unmanage(s, time.Hour, 0, 1, 2) }
	oneLost := func(s *reconcile.Snapshot) { lose(s, time.Hour, 0); unmanage(s, time.Hour, 1, 2) }
	all := []string{"main.0", "main.1", "main.2"}
	for name, c := range map[string]struct {
		beside, most int
		change       func(*reconcile.Snapshot)
		want         []string
	}{
		"room for more":              {2, 9, away, all},
		"at the bound":               {2, 6, away, all},
		"beyond the bound":           {2, 5, away, nil},
		"far beyond":                 {7, 6, away, nil},
		"no bound":                   {7, 0, away, all},
		"one is lost, and has room":  {2, 6, oneLost, all},
		"one is lost, and has none":  {2, 5, oneLost, all[1:]},
		"one is lost, and the bound": {3, 5, oneLost, nil},
	} {
		s := row(4, 4)
		besides(s, c.beside, 0, c.most)
		v := *s.Nodes["n3"]
		v.Name = "aside"
		s.Nodes["aside"] = &v
		for i := range s.Companions[0].Pods {
			s.Companions[0].Pods[i].Node, s.Companions[0].Pods[i].Reality.Node = "aside", "aside"
		}
		c.change(s)
		plan := reconcile.Compute(s)
		if got := added(&plan); !slices.Equal(got, c.want) || plan.Status.Is(rc.WaitsForService) != (len(got) < 3) {
			t.Errorf("%s: %v are replaced, want %v: %+v", name, got, c.want, plan.Status.Conditions)
		}
	}
}

// A pod that was moved off a lost node may return there in the same plan. Then the copy that stops needs a slot, and a
// lost pod must not take this slot first. If the machine is still lost, the former copy there needs no slot.
func TestAReturningPodComesBeforeALostOne(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(v *node.View, g *pod.Ghost)
		most   int
		want   []string
	}{
		"the node lives":              {func(*node.View, *pod.Ghost) {}, 6, nil},
		"it lives, and there is room": {func(*node.View, *pod.Ghost) {}, 7, []string{"main.0"}},
		"its preparer is away":        {func(v *node.View, _ *pod.Ghost) { v.Alive = false }, 6, nil},
		"its machine is lost": {
			func(v *node.View, _ *pod.Ghost) { v.Alive, v.MachineLost = false, true }, 6, []string{"main.0"},
		},
		"it was asked to stop": {func(_ *node.View, g *pod.Ghost) { g.Revision = 6 }, 6, []string{"main.0"}},
	} {
		s := row(4, 4)
		besides(s, 2, 0, c.most)
		for i := range s.Companions[0].Pods {
			s.Companions[0].Pods[i].Node, s.Companions[0].Pods[i].Reality.Node = "n3", "n3"
		}
		former := *s.Nodes["n3"]
		former.Name = "former"
		s.Nodes["former"] = &former
		lose(s, time.Hour, 0)
		p := &s.Pods[1]
		g := pod.Ghost{Node: "former", LeftBecauseLost: true, Since: s.Now.Add(-time.Minute)}
		c.change(&former, &g)
		p.Placement.Ghosts, p.Reality.Available, p.ChangedAt = []pod.Ghost{g}, false, s.Now
		p.Ghosts = map[string]*pod.Reality{
			"former": {
				Identity: p.Identity, Node: "former", State: pod.StateRunning, Available: true, Digest: p.Digest,
				Revision: 4,
			},
		}
		plan := reconcile.Compute(s)
		if got := added(&plan); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v are replaced, want %v: %+v", name, got, c.want, plan.Changes)
		}
	}
}

// leaveBehind gives a pod a former copy on n3 that has confirmed its stop.
func leaveBehind(p *reconcile.Pod, revision int64) {
	p.Placement.Ghosts = []pod.Ghost{{Node: "n3", Revision: revision}}
	p.Ghosts = map[string]*pod.Reality{
		"n3": {Identity: p.Identity, Node: "n3", State: pod.StateStopped, Revision: revision},
	}
}

// Nothing is placed, moved or replaced while a companion may have pods that are not known yet.
func TestNothingIsAddedBesideACompanionThatHolds(t *testing.T) {
	t.Parallel()
	is := func(t rc.ConditionType) func(*reconcile.Companion) {
		return func(o *reconcile.Companion) { o.Status.Conditions = []rc.Condition{{Type: t, True: true}} }
	}
	for name, c := range map[string]struct {
		change func(*reconcile.Companion)
		why    string
	}{
		"as it should be":   {func(*reconcile.Companion) {}, ""},
		"another condition": {is(rc.Blocked), ""},
		"no status":         {func(o *reconcile.Companion) { o.Status = nil }, "no status"},
		"another epoch":     {func(o *reconcile.Companion) { o.Status.Epoch = "before" }, "has not reported"},
		"no epoch":          {func(o *reconcile.Companion) { o.Status.Epoch = "" }, "has not reported"},
		"holding":           {is(rc.Holding), "waits for its nodes"},
		"regressed":         {is(rc.Regressed), "found running"},
		"regressed no longer": {
			func(o *reconcile.Companion) { is(rc.Regressed)(o); o.Status.Conditions[0].True = false }, "",
		},
	} {
		for what, make := range map[string]func() *reconcile.Snapshot{
			"a new replica": func() *reconcile.Snapshot { return row(2, 3) },
			"a lost one": func() *reconcile.Snapshot {
				s := row(3, 3)
				long := s.Now.Add(-time.Hour)
				toLost(s, &s.Pods[0])
				s.Pods[0].LostSince = &long
				return s
			},
			"one that must leave its node": func() *reconcile.Snapshot {
				s := row(3, 3)
				s.Nodes["n0"].Ops.Unschedulable = true
				s.RC.NodeSelector = "!old"
				s.Nodes["n0"].Labels = map[string]string{"old": ""}
				return s
			},
		} {
			s := make()
			c.change(besides(s, 2, 0, 20))
			plan := reconcile.Compute(s)
			if (len(plan.Adds) == 1) != (c.why == "") || len(stopped(&plan)) > 0 {
				t.Errorf("%s, %s: %v are placed, %v stop", name, what, plan.Adds, stopped(&plan))
			}
			i := slices.IndexFunc(plan.Status.Conditions, func(cond rc.Condition) bool {
				return cond.Type == rc.WaitsForService
			})
			if c.why == "" {
				if i >= 0 && plan.Status.Conditions[i].True {
					t.Errorf("%s, %s: %+v", name, what, plan.Status.Conditions)
				}
				continue
			}
			if i < 0 || !strings.Contains(plan.Status.Conditions[i].Reason, c.why) {
				t.Errorf("%s, %s: again after %s, %+v", name, what, plan.Again, plan.Status.Conditions)
			}
		}
	}
}

// A restored snapshot brought back an old count: six pods run, two are desired. The six are kept as adopted and take
// slots, so nothing is placed beside them. When the count is changed, these pods stop.
func TestAdoptedSurplusTakesSlots(t *testing.T) {
	t.Parallel()
	s := row(2, 8)
	other := besides(s, 6, 5, 9)
	if plan := reconcile.Compute(s); len(plan.Adds) != 1 {
		t.Errorf("beside six, of nine: %v", plan.Adds)
	}
	other.Status.Conditions = []rc.Condition{{Type: rc.Regressed, True: true}}
	if plan := reconcile.Compute(s); len(plan.Adds) != 0 {
		t.Errorf("beside adopted pods: %v", plan.Adds)
	}
	mine := row(6, 2)
	for i := range mine.Pods {
		mine.Pods[i].AdoptedAtGeneration = mine.RC.Generation
	}
	besides(mine, 2, 5, 9)
	plan := reconcile.Compute(mine)
	if len(plan.Changes)+len(plan.Adds) > 0 || !plan.Status.Is(rc.Regressed) {
		t.Errorf("want the adopted pods kept: %+v", plan)
	}
	mine.RC.Generation++
	plan = reconcile.Compute(mine)
	if got := stopped(&plan); !slices.Equal(got, []string{"main.3", "main.4", "main.5"}) {
		t.Errorf("%v stop, want as many as the minimum of five allows", got)
	}
}

// A lost pod is replaced, and a pod that must leave its node gets a second copy, only within the bound of the service.
func TestTheBoundLimitsMoves(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		most        int
		drained     bool
		adds, stops int
		waits       bool
	}{
		"lost, room":       {5, false, 1, 0, false},
		"lost, no room":    {4, false, 0, 0, true},
		"drained, room":    {6, true, 1, 0, false},
		"drained, no room": {5, true, 0, 1, false},
	} {
		s := row(3, 3)
		besides(s, 2, 0, c.most)
		if long := s.Now.Add(-time.Hour); c.drained {
			s.Nodes["n2"].Ops.Drain = &node.Drain{Since: s.Now}
		} else {
			toLost(s, &s.Pods[2])
			s.Pods[2].LostSince = &long
		}
		plan := reconcile.Compute(s)
		if len(plan.Adds) != c.adds || len(stopped(&plan)) != c.stops || plan.Status.Is(rc.WaitsForService) != c.waits {
			t.Errorf("%s: adds %v, stops %v, %+v", name, plan.Adds, stopped(&plan), plan.Status.Conditions)
		}
	}
}

// Without a rollout nothing else adapts the service's limits to other counts. So the minimum is lowered to the number
// of pods that the revisions ask for together, and the bound is raised to this number.
func TestWithoutARolloutTheLimitsFollowTheCounts(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		own, beside int  // existing pods
		asked       int  // of the controller
		of          *int // of the companion; nil: its record cannot be read
		least, most int
		mutator     string
		stops, adds int
		waits       bool
		standby     bool // the companion's pods are standby
	}{
		"the other one stands by": {
			own: 5, asked: 2, of: count(5), least: 5, most: 10, stops: 3, standby: true,
		},
		"the other one stands by, a rollout": {
			own: 5, asked: 2, of: count(5), least: 5, most: 10, mutator: "web/r1", waits: true, standby: true,
		},
		"below the minimum together": {own: 5, asked: 2, of: count(0), least: 5, most: 6, stops: 3},
		"a rollout is in charge": {
			own: 5, asked: 2, of: count(0), least: 5, most: 6, mutator: "web/r1", waits: true,
		},
		"the other one cannot be read": {own: 5, asked: 2, least: 5, most: 6, waits: true},
		"the other one takes over":     {own: 5, asked: 0, of: count(5), least: 5, most: 6, waits: true},
		"the other one has taken a part over": {
			own: 5, beside: 2, asked: 0, of: count(5), least: 5, most: 9, stops: 2, waits: true,
		},
		"nothing is asked for": {own: 5, asked: 0, of: count(0), least: 5, most: 6, stops: 5},
		"the minimum is lower": {own: 5, asked: 2, of: count(2), least: 1, most: 6, stops: 3},
		"beyond the bound together": {
			own: 2, beside: 3, asked: 6, of: count(3), least: 2, most: 6, adds: 4,
		},
		"beyond the bound, a rollout": {
			own: 2, beside: 3, asked: 6, of: count(3), least: 2, most: 6, mutator: "web/r1", adds: 1, waits: true,
		},
		"beyond the bound, not read": {
			own: 2, beside: 3, asked: 6, least: 2, most: 6, adds: 1, waits: true,
		},
		"the other one has more than it asks for": {
			own: 2, beside: 5, asked: 6, of: count(0), least: 2, most: 6, waits: true,
		},
		"it leaves room for the surge alone": {
			own: 2, beside: 4, asked: 6, of: count(0), least: 2, most: 6, adds: 1, waits: true,
		},
		"no bound": {own: 2, beside: 3, asked: 6, of: count(3), least: 2, adds: 4},
	} {
		s := row(c.own, c.asked)
		other := besides(s, c.beside, c.least, c.most)
		s.Rollout, other.Asks = c.mutator, c.of
		if c.standby {
			other.Service = &rc.Service{Name: "web", Revision: 1, Min: c.least, Max: c.most, Standby: true}
		}
		plan := reconcile.Compute(s)
		if got := len(stopped(&plan)); got != c.stops || len(plan.Adds) != c.adds ||
			plan.Status.Is(rc.WaitsForService) != c.waits {
			t.Errorf("%s: %d stop and %d are added: %+v", name, got, len(plan.Adds), plan.Status.Conditions)
		}
	}
}

// A controller that lacks no pods waits for nothing. A controller that lacks pods reports how many wait.
func TestAWaitForTheServiceIsReported(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		own, asked, most int
		holds            bool
		want             string
	}{
		{own: 3, asked: 3, most: 9, holds: true},
		{own: 3, asked: 3, most: 1},
		{own: 1, asked: 5, most: 5, want: "2 replicas wait: the revisions of web may have 5 pods together"},
		{own: 1, asked: 4, most: 2, want: "3 replicas wait: the revisions of web may have 2 pods together"},
		{
			own: 1, asked: 4, most: 9, holds: true,
			want: "nothing is placed while old, another revision of web, has no status that can be read",
		},
	} {
		s := row(c.own, c.asked)
		if other := besides(s, 2, 0, c.most); c.holds {
			other.Status = nil
		}
		s.Rollout = "web/r1"
		plan := reconcile.Compute(s)
		got := ""
		for _, cond := range plan.Status.Conditions {
			if cond.Type == rc.WaitsForService && cond.True {
				got = cond.Reason
			}
		}
		if got != c.want {
			t.Errorf("%+v: %q", c, got)
		}
	}
}
