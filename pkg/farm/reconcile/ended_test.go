package reconcile_test

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/rcfarm/rcfarm/pkg/farm/reconcile"
	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
)

// once returns a manifest of a pod whose processes have these restart policies.
func once(policies ...manifest.RestartPolicy) *manifest.Manifest {
	m := &manifest.Manifest{Version: 1, ID: "p", MinReady: new(field.Duration)}
	for _, policy := range policies {
		m.Launchables = append(m.Launchables, manifest.Launchable{Restart: &manifest.Restart{Policy: policy}})
	}
	return m
}

// jobs is a controller of pods that run once, one on each node.
func jobs(pods, desired int) *reconcile.Snapshot {
	s := row(pods, desired)
	s.Manifest = once(manifest.RestartNever)
	return s
}

// ends makes a pod's processes end with an exit status.
func ends(s *reconcile.Snapshot, i, code int) {
	r := s.Pods[i].Reality
	r.Available, r.State, r.LastExit = false, pod.StateEnded, &pod.Exit{Launchable: "main", Code: code}
	if code != 0 {
		r.State, r.Hopeless, r.AllEnded = pod.StateFailed, true, true
	}
}

// leaves are reasons for which a pod on n0 would have to leave its node, or be placed elsewhere.
var leaves = map[string]func(s *reconcile.Snapshot){
	"drained": func(s *reconcile.Snapshot) { s.Nodes["n0"].Ops.Drain = &node.Drain{Since: s.Now.Add(-time.Hour)} },
	"drained by force": func(s *reconcile.Snapshot) {
		s.Nodes["n0"].Ops.Drain = &node.Drain{Since: s.Now.Add(-time.Hour)}
		forced(s, -time.Minute)
	},
	"not selected": func(s *reconcile.Snapshot) {
		s.RC.NodeSelector = "pool=a"
		for name, v := range s.Nodes {
			v.Labels = map[string]string{"pool": map[bool]string{true: "b", false: "a"}[name == "n0"]}
		}
	},
	"lost": func(s *reconcile.Snapshot) { lose(s, time.Hour, 0) },
	"lost, and not marked": func(s *reconcile.Snapshot) {
		lose(s, 0, 0)
		s.RC.NodeLoss.After, s.Pods[0].LostSince = new(field.Duration), nil
	},
	"its preparer is away": func(s *reconcile.Snapshot) { unmanage(s, time.Hour, 0) },
	"stuck after it moved": func(s *reconcile.Snapshot) {
		s.Pods[0].ChangedAt = s.Now.Add(-time.Hour)
		s.Pods[0].Placement.Ghosts = []pod.Ghost{{Node: "n2", LeftBecauseLost: true, Since: s.Now.Add(-time.Hour)}}
		s.Nodes["n2"].Alive, s.Nodes["n2"].MachineLost = false, true
	},
	"ordered, and lost": func(s *reconcile.Snapshot) {
		s.RC.ReplicaGroups[0].Ordered = true
		lose(s, time.Hour, 0)
	},
}

// elsewhere reports whether a plan stops the pod on n0 or places it elsewhere.
func elsewhere(s *reconcile.Snapshot, plan *reconcile.Plan) bool {
	id := s.Pods[0].Identity
	return slices.Contains(plan.Adds, id) || slices.ContainsFunc(plan.Changes, func(ch reconcile.Change) bool {
		return ch.Identity == id &&
			(ch.Placement == nil || ch.Placement.RunState != pod.Running || ch.Placement.Node != "n0")
	})
}

// A pod that runs once and has ended stays where it ran, even if its node is lost or drained: another node would run it
// again.
func TestAnEndedPodStaysWhereItRan(t *testing.T) {
	t.Parallel()
	for reason, leave := range leaves {
		for how, c := range map[string]struct {
			end   func(s *reconcile.Snapshot)
			moves bool
		}{
			"it runs": {func(s *reconcile.Snapshot) {
				s.Pods[0].Reality.State, s.Pods[0].Reality.Available = pod.StateRunning, false
			}, true},
			"it has ended":  {func(s *reconcile.Snapshot) { ends(s, 0, 0) }, false},
			"it has failed": {func(s *reconcile.Snapshot) { ends(s, 0, 3) }, false},
			"before its revision was moved": {
				func(s *reconcile.Snapshot) { ends(s, 0, 0); s.Pods[0].Reality.Revision-- }, false,
			},
			"one process of two runs on": {func(s *reconcile.Snapshot) {
				ends(s, 0, 3)
				s.Manifest, s.Pods[0].Reality.AllEnded = once(manifest.RestartNever, manifest.RestartNever), false
			}, true},
			"another process is restarted": {func(s *reconcile.Snapshot) {
				ends(s, 0, 0)
				s.Manifest = once(manifest.RestartNever, manifest.RestartAlways)
			}, true},
			"another state": {
				func(s *reconcile.Snapshot) { ends(s, 0, 3); s.Pods[0].Reality.State = pod.StateStarting }, true,
			},
			"the digest of before": {
				func(s *reconcile.Snapshot) { ends(s, 0, 0); s.Pods[0].Reality.Digest = "m0" }, true,
			},
			"nothing is reported": {func(s *reconcile.Snapshot) { s.Pods[0].Reality = nil }, true},
		} {
			s := jobs(1, 1)
			leave(s)
			c.end(s)
			plan := reconcile.Compute(s)
			moves := elsewhere(s, &plan)
			if moves != c.moves {
				t.Errorf("%s, %s: it leaves its node: %v, want %v; adds %v, changes %v", reason, how, moves, c.moves,
					plan.Adds, plan.Changes)
			}
			if !c.moves &&
				(reasonOf(&plan, rc.Blocked) != "" &&
					(reason != "stuck after it moved" || s.Pods[0].Reality.State == pod.StateEnded) ||
					reasonOf(&plan, rc.Misplaced) != "") {
				t.Errorf("%s, %s: %+v", reason, how, plan.Status.Conditions)
			}
		}
	}
}

// A pod that has ended with status 0 is as it should be, also on a drained or lost node. Any other status is reported.
func TestAnEndedPodCountsAsConverged(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(s *reconcile.Snapshot)
		want   bool
		reason string
	}{
		"one has ended, one is available": {
			func(s *reconcile.Snapshot) { ends(s, 0, 0) }, true, "1 of 2 replicas available, 1 ended with status 0",
		},
		"both have ended": {
			func(s *reconcile.Snapshot) { ends(s, 0, 0); ends(s, 1, 0) }, true,
			"0 of 2 replicas available, 2 ended with status 0",
		},
		"none has": {func(*reconcile.Snapshot) {}, true, "2 of 2 replicas available"},
		"one has failed": {func(s *reconcile.Snapshot) {
			ends(s, 0, 0)
			ends(s, 1, 3)
			s.Pods[1].Reality.Message = "main ended with exit status 3"
		}, false, "0 of 2 replicas available, 1 ended with status 0, 2 placed; " +
			"waiting for main.1 on n1 (failed: main ended with exit status 3)"},
		"it is on a drained node": {
			func(s *reconcile.Snapshot) { ends(s, 0, 0); leaves["drained"](s) }, true,
			"1 of 2 replicas available, 1 ended with status 0",
		},
		"it is on a lost node": {
			func(s *reconcile.Snapshot) { ends(s, 0, 0); leaves["lost"](s) }, true,
			"1 of 2 replicas available, 1 ended with status 0",
		},
		"one is missing": {
			func(s *reconcile.Snapshot) { ends(s, 0, 0); s.Pods = s.Pods[:1] }, false,
			"0 of 2 replicas available, 1 ended with status 0, 1 placed",
		},
		"one is too many": {
			func(s *reconcile.Snapshot) { ends(s, 0, 0); s.RC.ReplicaGroups[0].Count = count(1) }, false,
			"1 of 1 replicas available, 1 ended with status 0, 2 placed",
		},
		"it is restarted": {
			func(s *reconcile.Snapshot) { ends(s, 0, 0); s.Manifest = once(manifest.RestartAlways) }, false,
			"1 of 2 replicas available, 2 placed; waiting for main.0 on n0 (ended)",
		},
	} {
		s := jobs(2, 2)
		c.change(s)
		plan := reconcile.Compute(s)
		i := slices.IndexFunc(plan.Status.Conditions, func(cond rc.Condition) bool { return cond.Type == rc.Converged })
		if got := plan.Status.Conditions[i]; got.True != c.want || got.Reason != c.reason {
			t.Errorf("%s: converged %v: %s; want %v: %s", name, got.True, got.Reason, c.want, c.reason)
		}
	}
}

// A new manifest, a lower count and a deletion change an ended pod like any other pod.
func TestAnEndedPodIsChangedLikeAnyOther(t *testing.T) {
	t.Parallel()
	deleted := func(s *reconcile.Snapshot) { s.RC.DeletedAt = &s.Now }
	fewer := func(s *reconcile.Snapshot) { s.RC.ReplicaGroups[0].Count = count(0) }
	changed := func(s *reconcile.Snapshot) {
		s.RC.ManifestDigest, s.Manifests = "m2", map[string]*manifest.Manifest{"m1": s.Manifest}
	}
	for name, c := range map[string]struct {
		change, leave func(s *reconcile.Snapshot)
		want          reconcile.Action // empty: it is placed elsewhere
	}{
		"deleted":                        {deleted, nil, reconcile.Stop},
		"deleted, on a drained node":     {deleted, leaves["drained"], reconcile.Stop},
		"fewer":                          {fewer, nil, reconcile.Stop},
		"fewer, on a drained node":       {fewer, leaves["drained"], reconcile.Stop},
		"fewer, on a lost node":          {fewer, leaves["lost"], reconcile.Stop},
		"changed":                        {changed, nil, reconcile.Upgrade},
		"changed, on a drained node":     {changed, leaves["drained"], ""},
		"changed, on a lost node":        {changed, leaves["lost"], ""},
		"changed, not selected any more": {changed, leaves["not selected"], ""},
	} {
		for _, code := range []int{0, 3} {
			s := jobs(1, 1)
			ends(s, 0, code)
			c.change(s)
			if c.leave != nil {
				c.leave(s)
			}
			switch plan := reconcile.Compute(s); {
			case plan.Status.Is(rc.Converged):
				t.Errorf("%s, status %d: the controller has converged", name, code)
			case c.want == "" && !slices.Contains(plan.Adds, s.Pods[0].Identity), c.want != "" &&
				(len(plan.Changes) != 1 || plan.Changes[0].Action != c.want):
				t.Errorf("%s, status %d: adds %v, changes %v, want %q", name, code, plan.Adds, plan.Changes, c.want)
			}
		}
	}
}

// An ended pod is not available for the minimum (P6). A pod that has done its work delays no other pod.
func TestAnEndedPodIsNotAvailable(t *testing.T) {
	t.Parallel()
	s := jobs(3, 3)
	s.RC.MinAvailable = count(2)
	ends(s, 0, 0)
	s.RC.ReplicaGroups[0].Count = count(2)
	plan := reconcile.Compute(s)
	if len(plan.Changes) != 1 || plan.Changes[0].Identity.Index != 0 || plan.Changes[0].Action != reconcile.Stop {
		t.Errorf("fewer: %v, want that main.0 stops", plan.Changes)
	}
	s = jobs(3, 3)
	s.RC.MinAvailable = count(2)
	ends(s, 0, 0)
	s.Nodes["n1"].Ops.Drain, s.RC.MaxSurge = &node.Drain{Since: s.Now}, count(0)
	plan = reconcile.Compute(s)
	blocked(t, &plan, "main.1 must leave n1, but 2 available replicas and a minimum of 2 leave no spare pod")
	if len(plan.Changes)+len(plan.Adds) != 0 {
		t.Errorf("drained: %v, %v", plan.Changes, plan.Adds)
	}
	s.RC.MaxSurge = count(1)
	if plan = reconcile.Compute(s); !slices.Equal(added(&plan), []string{"main.1"}) {
		t.Errorf("with room for a copy: %v, %+v", plan.Adds, plan.Status.Conditions)
	}
	ends(s, 0, 3)
	plan = reconcile.Compute(s)
	blocked(t, &plan, "main.1 must leave n1")
}

// If a pod with the new manifest ends with status 0, the upgrade continues with the next pod. If it fails, the upgrade
// does not continue. The part of the share that only the former version needed is given back.
func TestAnUpgradeGoesOnAfterAPodEnds(t *testing.T) {
	t.Parallel()
	for code, want := range map[int][]string{0: {"main.1 p m2"}, 3: nil} {
		s := jobs(2, 2)
		s.RC.ManifestDigest, s.Manifests = "m2", map[string]*manifest.Manifest{"m1": s.Manifest}
		s.Pods[0].Digest, s.Pods[0].Reality.Digest = "m2", "m2"
		ends(s, 0, code)
		ends(s, 1, 0)
		plan := reconcile.Compute(s)
		if got := upgrades(&plan); !slices.Equal(got, want) {
			t.Errorf("status %d: %v, want %v", code, got, want)
		}
		s.Pods[0].Switching = true
		plan = reconcile.Compute(s)
		finished := slices.ContainsFunc(plan.Changes, func(ch reconcile.Change) bool {
			return ch.Action == reconcile.FinishUpgrade
		})
		if finished != (code == 0) {
			t.Errorf("status %d: the upgrade is finished: %v", code, finished)
		}
	}
}

// A pod that ends on its new node has arrived: its former copies stop, unless the minimum needs one of them.
func TestAMovedPodArrivesWhenItEnds(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		available bool // the former copy
		least     int
		code      int
		stops     []string
		blocked   string
	}{
		"the former copy is not available": {false, 1, 0, []string{"n2"}, ""},
		"it is, and the minimum allows":    {true, 1, 0, []string{"n2"}, ""},
		"it is, and the minimum needs it": {
			true, 2, 0, nil,
			"main.0 has ended on n0, and its former copy stays: " +
				"2 available replicas and a minimum of 2 leave no spare pod",
		},
		"it has failed, and the former one not": {true, 2, 3, []string{"n0"}, ""},
	} {
		s := jobs(2, 2)
		s.RC.MinAvailable = &c.least
		s.Nodes["n2"].Ops.Drain = &node.Drain{Since: s.Now}
		p := &s.Pods[0]
		former := *p.Reality
		former.Node, former.Available, former.Revision = "n2", c.available, 4
		p.Placement.Ghosts, p.Ghosts["n2"] = []pod.Ghost{{Node: "n2", Since: s.Now}}, &former
		ends(s, 0, c.code)
		plan := reconcile.Compute(s)
		if got := stops(&plan); !slices.Equal(got, c.stops) {
			t.Errorf("%s: %v stop, want %v", name, got, c.stops)
		}
		if c.blocked != "" && reasonOf(&plan, rc.Blocked) != c.blocked {
			t.Errorf("%s: blocked: %q", name, reasonOf(&plan, rc.Blocked))
		}
		for i := range plan.Changes {
			if ch := &plan.Changes[i]; c.code == 0 && (!ch.NeedsBreaker || ch.Reason != "it has ended on n0") {
				t.Errorf("%s: %s, %+v", name, ch, ch)
			}
		}
	}
}

// With a pod on each node, an ended pod stays on its drained node: otherwise the node would run it again after the
// drain. A node that is not selected any more needs no pod.
func TestAnEndedPodStaysOnEachNode(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(s *reconcile.Snapshot)
		stops  []string
	}{
		"it runs":            {func(s *reconcile.Snapshot) { leaves["drained"](s) }, []string{"n0"}},
		"it has ended":       {func(s *reconcile.Snapshot) { ends(s, 0, 0); leaves["drained"](s) }, nil},
		"it has failed":      {func(s *reconcile.Snapshot) { ends(s, 0, 3); leaves["drained by force"](s) }, nil},
		"it is not selected": {func(s *reconcile.Snapshot) { ends(s, 0, 0); relabel(s, "n0") }, []string{"n0"}},
		"it has a second of its": {
			func(s *reconcile.Snapshot) { ends(s, 0, 0); ends(s, 1, 0); s.Pods[1].Node = "n0" }, []string{"n0"},
		},
	} {
		s := eachOf(3)
		s.Manifest = once(manifest.RestartNever)
		c.change(s)
		plan := reconcile.Compute(s)
		if got := stops(&plan); !slices.Equal(got, c.stops) {
			t.Errorf("%s: %v stop, want %v", name, got, c.stops)
		}
		if strings.HasPrefix(name, "it has ended") && (!plan.Status.Is(rc.Converged) || plan.Status.Desired != 3) {
			t.Errorf("%s: %+v", name, plan.Status)
		}
	}
}

// After any history and pass, a pod that has ended on its node is on no other node, unless it runs another manifest
// there, was found there, or a former copy of it runs there. The other rules of passes hold too.
func TestAnyHistoryKeepsEndedPods(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld()
		w.ended = map[at]string{}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			if rapid.IntRange(0, 3).Draw(t, "what") == 0 {
				if where, ok := draw(t, w.copies); ok && w.copies[where].State == pod.Running &&
					w.nodes[where.node].Alive {
					w.ended[where] = w.copies[where].Digest
					w.report(where)
				}
			}
			w.step(t)
			before := maps.Clone(w.pods)
			w.pass(t, false)
			for id, was := range before {
				r, here := w.reality[at{was.Node, id}], w.pods[id]
				left := slices.ContainsFunc(was.Ghosts, func(g pod.Ghost) bool { return g.Node == here.Node })
				again := was.RunState == pod.Running && here.RunState == pod.Running && here.Digest == was.Digest &&
					here.Node != was.Node
				// it was not found there
				if again && !left && here.AdoptedAtGeneration == 0 && here.Revision > was.Revision &&
					r.Ended(was.Digest) {
					t.Fatalf("%s has ended on %s and is moved to %s", id, was.Node, here.Node)
				}
			}
		}
	})
}
