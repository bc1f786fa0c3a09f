package reconcile_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/farm/reconcile"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
)

// row is a controller with the given number of available pods: main.0 on n0, main.1 on n1 and so on.
func row(pods, desired int) *reconcile.Snapshot {
	s := snapshotOf(desired)
	for i := range pods {
		name := fmt.Sprintf("n%d", i)
		if s.Nodes[name] == nil {
			v := *s.Nodes["n0"]
			v.Name = name
			s.Nodes[name] = &v
		}
		s.Pods = append(s.Pods, running(i, name, 5, 0))
		s.Pods[i].ChangedAt = s.Now.Add(-time.Hour)
	}
	return s
}

// groups sets the desired counts of roles, in the given order.
func groups(s *reconcile.Snapshot, main int, others ...any) {
	s.RC.ReplicaGroups = []rc.ReplicaGroup{{Role: "main", Count: count(main)}}
	for i := 0; i < len(others); i += 2 {
		s.RC.ReplicaGroups = append(s.RC.ReplicaGroups, rc.ReplicaGroup{
			Role: others[i].(string), Count: count(others[i+1].(int)),
		})
	}
}

func sick(s *reconcile.Snapshot, pods ...int) {
	for _, i := range pods {
		s.Pods[i].Reality.State, s.Pods[i].Reality.Available = pod.StateUnhealthy, false
	}
}

// stopped returns the pods that a plan asks to stop, sorted.
func stopped(plan *reconcile.Plan) (names []string) {
	for _, ch := range plan.Changes {
		if ch.Action == reconcile.Stop {
			names = append(names, fmt.Sprintf("%s.%d", ch.Identity.Role, ch.Identity.Index))
		}
	}
	slices.Sort(names)
	return names
}

func added(plan *reconcile.Plan) (names []string) {
	for _, id := range plan.Adds {
		names = append(names, fmt.Sprintf("%s.%d", id.Role, id.Index))
	}
	return names
}

// Of surplus replicas, those on ineligible nodes stop first, then unavailable ones, then those that changed last, then
// those with the highest indexes.
func TestTheLeastUsefulReplicaStopsFirst(t *testing.T) {
	t.Parallel()
	drained := func(s *reconcile.Snapshot, name string) { s.Nodes[name].Ops.Unschedulable = true }
	later := func(s *reconcile.Snapshot, i int, by time.Duration) {
		s.Pods[i].ChangedAt = s.Pods[i].ChangedAt.Add(by)
	}
	for name, c := range map[string]struct {
		change func(*reconcile.Snapshot)
		want   string
	}{
		"all alike":            {func(*reconcile.Snapshot) {}, "main.2"},
		"one was changed last": {func(s *reconcile.Snapshot) { later(s, 0, time.Second) }, "main.0"},
		"two were": {
			func(s *reconcile.Snapshot) { later(s, 0, time.Second); later(s, 1, time.Second) }, "main.1",
		},
		"one is not available": {
			func(s *reconcile.Snapshot) { sick(s, 1); later(s, 0, time.Second) }, "main.1",
		},
		"one is on a closed node": {
			func(s *reconcile.Snapshot) { drained(s, "n0"); sick(s, 1); later(s, 2, time.Second) }, "main.0",
		},
		"two are, and one of them is not well": {
			func(s *reconcile.Snapshot) { drained(s, "n0"); drained(s, "n1"); sick(s, 0, 2) }, "main.0",
		},
		"one is on a node that does not match": {func(s *reconcile.Snapshot) {
			s.RC.NodeSelector = "!old"
			s.Nodes["n1"].Labels = map[string]string{"old": ""}
		}, "main.1"},
		"one is on a node without a preparer": {
			func(s *reconcile.Snapshot) { s.Nodes["n1"].Alive = false; s.Pods[1].UnmanagedSince = &s.Now }, "main.1",
		},
	} {
		s := row(3, 2)
		c.change(s)
		plan := reconcile.Compute(s)
		if got := stopped(&plan); !slices.Equal(got, []string{c.want}) {
			t.Errorf("%s: %v stop, want %s", name, got, c.want)
		}
	}
}

// Scaling down keeps the minimum (P6): available pods of all roles stop only until the minimum is left. Unavailable
// pods may stop in addition.
func TestScalingDownKeepsTheMinimum(t *testing.T) {
	t.Parallel()
	other := func(s *reconcile.Snapshot, role string, pods ...int) {
		for _, i := range pods {
			s.Pods[i].Identity.Role, s.Pods[i].Reality.Identity.Role = role, role
		}
	}
	for name, c := range map[string]struct {
		pods, desired, least int
		change               func(*reconcile.Snapshot)
		want                 []string
	}{
		"to what is desired": {5, 2, 2, nil, []string{"main.2", "main.3", "main.4"}},
		"to nothing":         {3, 0, 0, nil, []string{"main.0", "main.1", "main.2"}},
		"one is enough":      {3, 3, 3, nil, nil},
		// The nodes of main.0 and main.1 are drained, so they would stop first.
		"what is not available does not spare what is": {4, 2, 1, func(s *reconcile.Snapshot) {
			s.Nodes["n0"].Ops.Unschedulable, s.Nodes["n1"].Ops.Unschedulable = true, true
			sick(s, 2, 3)
		}, []string{"main.1", "main.3"}},
		"not one to spare": {4, 2, 2, func(s *reconcile.Snapshot) {
			s.Nodes["n0"].Ops.Unschedulable, s.Nodes["n1"].Ops.Unschedulable = true, true
			sick(s, 2, 3)
		}, []string{"main.2", "main.3"}},
		"another role is not well": {5, 0, 3, func(s *reconcile.Snapshot) {
			other(s, "side", 2, 3, 4)
			groups(s, 2, "side", 1)
			sick(s, 0)
		}, []string{"side.4"}},
		"a role that is not desired any more": {4, 0, 2, func(s *reconcile.Snapshot) {
			other(s, "old", 2, 3)
			groups(s, 2)
			sick(s, 0)
		}, []string{"old.2"}},
		"a role that is not desired, and all is well": {4, 0, 2, func(s *reconcile.Snapshot) {
			other(s, "old", 2, 3)
			groups(s, 2)
		}, []string{"old.2", "old.3"}},
		"what is forced off a node is one of those that go": {4, 2, 1, func(s *reconcile.Snapshot) {
			s.Nodes["n0"].Ops.Drain = &node.Drain{Force: true, Since: s.Now}
		}, []string{"main.0", "main.3"}},
	} {
		s := row(c.pods, c.desired)
		s.RC.MinAvailable = &c.least
		if c.change != nil {
			c.change(s)
		}
		plan := reconcile.Compute(s)
		if got := stopped(&plan); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v stop, want %v", name, got, c.want)
		}
	}
}

// New replicas get the lowest free indices, and there are never more copies than desired + surge (P6). A copy that
// stops on a living node is one of these copies, and keeps its index. A copy that stops on a node without a preparer
// only keeps its index.
func TestNewReplicasGetTheLowestFreeIndices(t *testing.T) {
	t.Parallel()
	stopping := func(s *reconcile.Snapshot, pods ...int) {
		for _, i := range pods {
			s.Pods[i].RunState, s.Pods[i].StoppingSince = pod.Stopped, &s.Now
			s.Pods[i].Reality.State, s.Pods[i].Reality.Available = pod.StateStopping, false
		}
	}
	for name, c := range map[string]struct {
		pods, desired, surge int
		change               func(*reconcile.Snapshot)
		want                 []string
	}{
		"from nothing":          {0, 3, 0, nil, []string{"main.0", "main.1", "main.2"}},
		"as many as there are":  {2, 2, 1, nil, nil},
		"after those that run":  {2, 4, 0, nil, []string{"main.2", "main.3"}},
		"where one is missing":  {3, 3, 0, func(s *reconcile.Snapshot) { s.Pods = s.Pods[1:] }, []string{"main.0"}},
		"one stops":             {3, 3, 0, func(s *reconcile.Snapshot) { stopping(s, 0) }, nil},
		"one stops, with surge": {3, 3, 1, func(s *reconcile.Snapshot) { stopping(s, 0) }, []string{"main.3"}},
		"two stop, with surge":  {3, 3, 1, func(s *reconcile.Snapshot) { stopping(s, 0, 1) }, []string{"main.3"}},
		"one stops and cannot say": {
			3, 3, 0, func(s *reconcile.Snapshot) { stopping(s, 0); s.Nodes["n0"].Alive = false }, []string{"main.3"},
		},
		"one moves": {3, 4, 0, func(s *reconcile.Snapshot) {
			s.Pods[0].Placement.Ghosts = []pod.Ghost{{Node: "n3", Revision: 4}}
		}, nil},
		"one is lost": {3, 4, 0, func(s *reconcile.Snapshot) {
			s.Nodes["n0"].Alive, s.Nodes["n0"].MachineLost, s.Pods[0].LostSince = false, true, &s.Now
		}, []string{"main.3"}},
		"one is found running": {
			1, 3, 0, func(s *reconcile.Snapshot) { s.Orphans = []reconcile.Orphan{orphan("n2", 1, 5)} },
			[]string{"main.2"},
		},
		"one is found running, with surge": {
			1, 3, 1, func(s *reconcile.Snapshot) { s.Orphans = []reconcile.Orphan{orphan("n2", 1, 5)} },
			[]string{"main.2"},
		},
		"one that was to stop is found running": {2, 3, 0, func(s *reconcile.Snapshot) {
			stopping(s, 1)
			s.Orphans = []reconcile.Orphan{orphan("n2", 1, 6)}
		}, nil}, // then it has two copies
		"one that was to stop is found running, with surge": {2, 3, 1, func(s *reconcile.Snapshot) {
			stopping(s, 1)
			s.Orphans = []reconcile.Orphan{orphan("n2", 1, 6)}
		}, []string{"main.2"}},
		"one that was to stop and cannot say is found running": {2, 3, 0, func(s *reconcile.Snapshot) {
			stopping(s, 1)
			s.Nodes["n1"].Alive = false
			s.Orphans = []reconcile.Orphan{orphan("n2", 1, 6)}
		}, []string{"main.2"}},
		"one that runs is found elsewhere, no surge": {
			2, 3, 0, func(s *reconcile.Snapshot) { s.Orphans = []reconcile.Orphan{orphan("n2", 1, 6)} }, nil,
		},
		"one that runs is found elsewhere": {
			2, 3, 1, func(s *reconcile.Snapshot) { s.Orphans = []reconcile.Orphan{orphan("n2", 1, 6)} },
			[]string{"main.2"},
		},
		"two roles": {
			1, 0, 0, func(s *reconcile.Snapshot) { groups(s, 2, "side", 2) }, []string{"main.1", "side.0", "side.1"},
		},
		"two roles, one stops": {
			2, 0, 0, func(s *reconcile.Snapshot) { groups(s, 2, "side", 2); stopping(s, 0) },
			[]string{"main.2", "side.0"},
		},
	} {
		s := row(c.pods, c.desired)
		s.RC.MaxSurge, s.EpochSince = &c.surge, s.Now // orphans outrank placements of before the epoch
		if c.change != nil {
			c.change(s)
		}
		plan := reconcile.Compute(s)
		if got := added(&plan); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v are placed, want %v", name, got, c.want)
		}
	}
}

// A controller waits for the end of a hold only if it has something to place.
func TestAHoldDelaysOnlyControllersThatLackAReplica(t *testing.T) {
	t.Parallel()
	for desired, waits := range map[int]bool{2: false, 3: true} {
		s := row(2, desired)
		s.Hold = "the records are new"
		if plan := reconcile.Compute(s); plan.Status.Is(rc.Holding) != waits || len(plan.Adds) > 0 {
			t.Errorf("%d of %d: %+v, adds %v", 2, desired, plan.Status.Conditions, plan.Adds)
		}
	}
}

// An upgrade changes one pod after the other while the minimum is kept, unavailable pods first. A pod that was upgraded
// and is not available yet has time until the deadline. After that, or when it has failed with the new manifest, the
// other pods stay as they are, and the status has the reason.
func TestAnUpgradeGoesOnOneByOne(t *testing.T) {
	t.Parallel()
	const deadline = 2 * time.Minute
	old := func(s *reconcile.Snapshot, pods ...int) {
		for _, i := range pods {
			s.Pods[i].Digest, s.Pods[i].Reality.Digest = "m0", "m0"
		}
	}
	fresh := func(s *reconcile.Snapshot, ago time.Duration, state pod.State) { // main.0, which was upgraded
		sick(s, 0)
		s.Pods[0].ChangedAt, s.Pods[0].Reality.State = s.Now.Add(-ago), state
	}
	for name, c := range map[string]struct {
		least  int
		change func(*reconcile.Snapshot)
		want   string // which is upgraded
		halted bool
		again  time.Duration
	}{
		"all are old": {
			2, func(s *reconcile.Snapshot) { old(s, 0, 1, 2) }, "main.0", false, 0,
		},
		"one is not available": {
			2, func(s *reconcile.Snapshot) { old(s, 0, 1, 2); sick(s, 2) }, "main.2", false, 0,
		},
		"one is not available, at the minimum": {
			3, func(s *reconcile.Snapshot) { old(s, 0, 1, 2); sick(s, 1) }, "main.1", false, 0,
		},
		"the minimum is all": {3, func(s *reconcile.Snapshot) { old(s, 0, 1, 2) }, "", true, 0},
		"the last one":       {2, func(s *reconcile.Snapshot) { old(s, 1) }, "main.1", false, 0},
		"the last one's node has no preparer": {2, func(s *reconcile.Snapshot) {
			old(s, 1)
			s.Nodes["n1"].Alive, s.Pods[1].UnmanagedSince = false, &s.Now
		}, "", false, 10 * time.Minute},
		"one is on its way": {
			2, func(s *reconcile.Snapshot) { old(s, 1, 2); fresh(s, time.Minute, pod.StateStarting) }, "", false,
			time.Minute,
		},
		"one has a moment left": {
			2, func(s *reconcile.Snapshot) { old(s, 1, 2); fresh(s, deadline-1, pod.StateStarting) }, "", false, 1,
		},
		"one has no time left": {
			2, func(s *reconcile.Snapshot) { old(s, 1, 2); fresh(s, deadline, pod.StateStarting) }, "", true, 0,
		},
		"one has failed": {
			2, func(s *reconcile.Snapshot) { old(s, 1, 2); fresh(s, time.Second, pod.StateFailed) }, "", true, 0,
		},
		"one had failed before": {2, func(s *reconcile.Snapshot) {
			old(s, 1, 2)
			fresh(s, time.Minute, pod.StateFailed)
			s.Pods[0].Reality.Revision--
		}, "", false, time.Minute},
		"one has failed, and nothing is old": {
			2, func(s *reconcile.Snapshot) { fresh(s, time.Second, pod.StateFailed) }, "", false, 0,
		},
	} {
		s := row(3, 3)
		s.RC.MinAvailable = &c.least
		c.change(s)
		plan := reconcile.Compute(s)
		got := ""
		for _, ch := range plan.Changes {
			if ch.Action == reconcile.Upgrade {
				got += fmt.Sprintf("%s.%d", ch.Identity.Role, ch.Identity.Index)
			}
		}
		if got != c.want || plan.Status.Is(rc.Blocked) != c.halted || plan.Again != c.again {
			t.Errorf("%s: upgrades %q, again after %s, %+v", name, got, plan.Again, plan.Status.Conditions)
		}
	}
}
