package reconcile_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/farm/reconcile"
	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
)

// inStages makes the mode of a snapshot's controller change in stages.
func inStages(s *reconcile.Snapshot, limit, keep int, more ...func(*rc.InPlace)) {
	s.RC.Service, s.Rollout = &rc.Service{Name: "web", Revision: 2}, "R"
	s.RC.InPlace = &rc.InPlace{Limit: limit, Keep: &keep}
	for _, change := range more {
		change(s.RC.InPlace)
	}
}

// upgrading gives the controller a new manifest. Its pods run the former one.
func upgrading(s *reconcile.Snapshot) {
	s.RC.InPlace.From, s.RC.ManifestDigest = "m1", "m2"
	s.Manifests = map[string]*manifest.Manifest{"m1": s.Manifest}
}

// upgradedTo gives pods the new manifest.
func upgradedTo(s *reconcile.Snapshot, pods ...int) {
	for _, i := range pods {
		s.Pods[i].Digest, s.Pods[i].Reality.Digest = "m2", "m2"
	}
}

func upgradedBy(plan *reconcile.Plan) (ids []int) {
	for i := range plan.Changes {
		if plan.Changes[i].Action == reconcile.Upgrade {
			ids = append(ids, plan.Changes[i].Identity.Index)
		}
	}
	return ids
}

// ofCounts is a controller with a desired number of replicas, and a pod on each of the given nodes.
func ofCounts(desired int, on ...string) *reconcile.Snapshot {
	s := snapshotOf(desired)
	clear(s.Nodes)
	for _, name := range []string{"n0", "n1", "n2", "n3", "n4", "n5"} {
		join(s, name)
	}
	podsOn(s, on...)
	return s
}

func podsOn(s *reconcile.Snapshot, on ...string) {
	s.Pods = nil
	for i, name := range on {
		s.Pods = append(s.Pods, running(i, name, 5, 0))
		s.Pods[i].ChangedAt = s.Now.Add(-time.Hour)
	}
}

// side gives pods another role.
func side(s *reconcile.Snapshot, pods ...int) {
	for _, i := range pods {
		s.Pods[i].Role, s.Pods[i].Identity.Role = "side", "side"
	}
}

// notConverged returns the reason why a controller has not converged.
func notConverged(plan *reconcile.Plan) string {
	for _, c := range plan.Status.Conditions {
		if c.Type == rc.Converged && !c.True {
			return c.Reason
		}
	}
	return ""
}

// A stage of a change to a pod on each of the nodes n0 to n5 limits which pods are added, stopped and upgraded.
func TestAStageLimitsAChangeToEachNode(t *testing.T) {
	t.Parallel()
	joined := func(on ...string) func(*reconcile.Snapshot) {
		return func(s *reconcile.Snapshot) { podsOn(s, on...) }
	}
	for name, c := range map[string]struct {
		limit, keep  int
		on           func(*reconcile.Snapshot)
		more         func(*reconcile.Snapshot)
		adds, stops  []string
		upgrades     []int
		right, later int // pods as the new mode asks for, and pods that come with later stages
	}{
		"before the first":     {limit: 0, on: joined("n0", "n1", "n2", "n3"), right: 4, later: 2},
		"as many as there are": {limit: 4, on: joined("n0", "n1", "n2", "n3"), right: 4, later: 2},
		"one may come": {
			limit: 5, on: joined("n0", "n1", "n2", "n3"), adds: []string{"main.4"}, right: 4, later: 1,
		},
		"both may": {
			limit: 6, on: joined("n0", "n1", "n2", "n3"), adds: []string{"main.4", "main.5"}, right: 4,
		},
		"more than ask": {
			limit: 9, on: joined("n0", "n1", "n2", "n3"), adds: []string{"main.4", "main.5"}, right: 4,
		},
		"it has come": {limit: 5, on: joined("n0", "n1", "n2", "n3", "n4"), right: 5, later: 1},
		"the second of a node waits until the others have come": {
			limit: 5, on: joined("n0", "n0", "n1", "n2", "n3"), adds: []string{"main.5"}, right: 4, later: 1,
		},
		"it waits until they serve": {
			limit: 6, on: joined("n0", "n0", "n1", "n2", "n3", "n4", "n5"), more: func(s *reconcile.Snapshot) {
				sick(s, 6)
			}, right: 6,
		},
		"and goes then": {
			limit: 6, on: joined("n0", "n0", "n1", "n2", "n3", "n4", "n5"), stops: []string{"main.1"}, right: 6,
		},
		"it stays while the stage keeps it": {
			limit: 6, keep: 1, on: joined("n0", "n0", "n1", "n2", "n3", "n4", "n5"), right: 6,
		},
		"one of two goes": {
			limit: 6, keep: 1, on: joined("n0", "n0", "n0", "n1", "n2", "n3", "n4", "n5"), stops: []string{"main.2"},
			right: 6,
		},
		"one that does not serve goes first": {
			limit: 6, keep: 1, on: joined("n0", "n0", "n0", "n1", "n2", "n3", "n4",
				"n5"), more: func(s *reconcile.Snapshot) {
				sick(s, 1)
			},
			stops: []string{"main.1"}, right: 6,
		},
		"one on a drained node goes in any case": {
			limit: 4, keep: 9, on: joined("n0", "n1", "n2", "n3"),
			more: func(s *reconcile.Snapshot) {
				s.Nodes["n3"].Ops.Drain = &node.Drain{Since: s.Now}
				s.RC.MinAvailable = count(0)
			},
			stops: []string{"main.3"}, adds: []string{"main.4"}, right: 3, later: 1,
		},
		"one whose node does not match any more waits for another": {
			limit: 4, on: joined("n0", "n1", "n2", "n3"), more: func(s *reconcile.Snapshot) {
				relabel(s, "n3")
				s.RC.MinAvailable = count(0)
			},
			adds: []string{"main.4"}, right: 3, later: 1,
		},
		"a new pod gets the new manifest before others do": {
			limit: 1, on: joined("n0", "n1", "n2", "n3"), more: upgrading, adds: []string{"main.4"}, later: 1,
		},
		"no other is upgraded for the stage that the new pod fills": {
			limit: 1, on: joined("n0", "n1", "n2", "n3"), more: func(s *reconcile.Snapshot) {
				upgrading(s)
				s.RC.MinAvailable = count(0)
			},
			adds: []string{"main.4"}, later: 1,
		},
		"none comes with the former one": {limit: 0, on: joined("n0", "n1", "n2", "n3"), more: upgrading, later: 2},
		"others wait while it starts": {
			limit: 3, on: joined("n0", "n1", "n2", "n3", "n4"), more: func(s *reconcile.Snapshot) {
				upgrading(s)
				upgradedTo(s, 4)
				sick(s, 4)
			},
			adds: []string{"main.5"}, right: 1,
		},
		"where none lacks a pod one is upgraded": {
			limit: 3, on: joined("n0", "n1", "n2", "n3", "n4", "n5"), more: func(s *reconcile.Snapshot) {
				upgrading(s)
				upgradedTo(s, 4, 5)
			},
			upgrades: []int{0}, right: 2,
		},
		"not beyond the limit": {
			limit: 2, on: joined("n0", "n1", "n2", "n3", "n4", "n5"), more: func(s *reconcile.Snapshot) {
				upgrading(s)
				upgradedTo(s, 4, 5)
			}, right: 2,
		},
		"none is taken back": {
			limit: 0, on: joined("n0", "n1", "n2", "n3", "n4", "n5"), more: func(s *reconcile.Snapshot) {
				upgrading(s)
				upgradedTo(s, 4, 5)
			}, right: 2,
		},
		"one that leaves is not upgraded": {
			limit: 9, on: joined("n0", "n0", "n1", "n2", "n3", "n4", "n5"),
			more: func(s *reconcile.Snapshot) {
				upgrading(s)
				upgradedTo(s, 0, 2, 3, 4, 5, 6)
				s.RC.MinAvailable = count(7)
				s.RC.InPlace.Keep = count(1)
			},
			right: 6,
		},
		"none is upgraded while one is stopped": {
			limit: 9, on: joined("n0", "n0", "n1", "n2", "n3", "n4", "n5"),
			more: func(s *reconcile.Snapshot) {
				upgrading(s)
				upgradedTo(s, 0, 2, 3, 4, 5)
				s.RC.MinAvailable = count(1)
			},
			stops: []string{"main.1"}, right: 5,
		},
		"one on a drained node is not one that the stage lets go": {
			limit: 6, keep: 1, on: joined("n0", "n0", "n1", "n2", "n3", "n4", "n5"),
			more: func(s *reconcile.Snapshot) {
				s.Nodes["n5"].Ops.Drain = &node.Drain{Since: s.Now}
				s.RC.MinAvailable = count(0)
			},
			stops: []string{"main.6"}, right: 5,
		},
		"where new ones found no node the second of another goes": {
			limit: 6, on: joined("n0", "n0", "n1", "n2", "n3", "n4"),
			more: func(s *reconcile.Snapshot) {
				s.Previous = &rc.Status{
					Conditions: []rc.Condition{{Type: rc.InsufficientNodes, True: true, Since: s.Now}},
				}
			},
			adds: []string{"main.6"}, stops: []string{"main.1"}, right: 5,
		},
		"where new ones found no node one of another role makes room": {
			limit: 1, on: joined("n0", "n1", "n2", "n3", "n4"),
			more: func(s *reconcile.Snapshot) {
				side(s, 0, 1, 2, 3, 4)
				s.RC.MinAvailable, s.RC.InPlace.Keep = count(0), count(9)
				s.Previous = &rc.Status{
					Conditions: []rc.Condition{{Type: rc.InsufficientNodes, True: true, Since: s.Now}},
				}
			},
			adds: []string{"main.0"}, stops: []string{"side.0"},
		},
		"no more than one does where the stage keeps none": {
			limit: 1, on: joined("n0", "n1", "n2", "n3", "n4"),
			more: func(s *reconcile.Snapshot) {
				side(s, 0, 1, 2, 3, 4)
				s.RC.MinAvailable = count(0)
				s.Previous = &rc.Status{
					Conditions: []rc.Condition{{Type: rc.InsufficientNodes, True: true, Since: s.Now}},
				}
			},
			adds: []string{"main.0"}, stops: []string{"side.0"},
		},
		"where new ones found no node others are upgraded": {
			limit: 1, on: joined("n0", "n1", "n2", "n3", "n4"),
			more: func(s *reconcile.Snapshot) {
				upgrading(s)
				s.RC.MinAvailable = count(1)
				s.Previous = &rc.Status{
					Conditions: []rc.Condition{{Type: rc.InsufficientNodes, True: true, Since: s.Now}},
				}
			},
			adds: []string{"main.5"}, upgrades: []int{0},
		},
		"of another role one makes room": {
			limit: 1, on: joined("n0", "n0", "n1", "n2", "n3", "n4", "n5"), more: func(s *reconcile.Snapshot) {
				side(s, 0, 1, 2, 3, 4, 5, 6)
			},
			stops: []string{"side.2"},
		},
		"no other while that stops": {
			limit: 1, on: joined("n0", "n0", "n1", "n2", "n3", "n4", "n5"), more: func(s *reconcile.Snapshot) {
				side(s, 0, 1, 2, 3, 4, 5, 6)
				s.Pods[2].RunState, s.Pods[2].StoppingSince = pod.Stopped, &s.Now
			},
		},
		"nor where a node is free": {
			limit: 1, on: joined("n0", "n1", "n2", "n3", "n4"), more: func(s *reconcile.Snapshot) {
				side(s, 0, 1, 2, 3, 4)
			},
			adds: []string{"main.0"},
		},
		"it is over": {
			limit: -1, on: joined("n0", "n0", "n1", "n2", "n3"), adds: []string{"main.5", "main.6"}, stops: nil,
			right: 5,
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := eachOf(6)
			c.on(s)
			if c.limit >= 0 {
				inStages(s, c.limit, c.keep)
			}
			if c.more != nil {
				c.more(s)
			}
			plan := reconcile.Compute(s)
			if got := added(&plan); !slices.Equal(got, c.adds) {
				t.Errorf("adds %v, want %v", got, c.adds)
			}
			for _, id := range plan.Adds {
				if got := plan.DigestOf(id); got != s.RC.ManifestDigest {
					t.Errorf("%s gets %s", id, got)
				}
			}
			if got := stopped(&plan); !slices.Equal(got, c.stops) {
				t.Errorf("stops %v, want %v", got, c.stops)
			}
			if got := upgradedBy(&plan); !slices.Equal(got, c.upgrades) {
				t.Errorf("upgrades %v, want %v", got, c.upgrades)
			}
			if got := plan.Status.Updated; got != c.right {
				t.Errorf("%d are right, want %d", got, c.right)
			}
			want := ""
			if c.later > 0 {
				want = fmt.Sprintf(", %d come with later stages", c.later)
			}
			if got := notConverged(&plan); strings.Contains(got, "later") != (c.later > 0) ||
				!strings.Contains(got, want) {
				t.Errorf("the reason is %q, want %q in it", got, want)
			}
		})
	}
}

// A stage of a change from a pod on each of n0 to n5 to counts limits which pods are added, stopped and upgraded.
func TestAStageLimitsAChangeToCounts(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		desired, limit, keep int
		more                 func(*reconcile.Snapshot)
		adds, stops          []string
		upgrades             []int
		right                int
		later                int
	}{
		"all may stay": {desired: 4, limit: 4, keep: 2, right: 6},
		"one goes":     {desired: 4, limit: 4, keep: 1, stops: []string{"main.5"}, right: 6},
		"both go":      {desired: 4, limit: 4, stops: []string{"main.4", "main.5"}, right: 6},
		"within the minimum": {
			desired: 4, limit: 4, more: func(s *reconcile.Snapshot) {
				sick(s, 0, 1)
				s.RC.MinAvailable = count(4)
			}, right: 6,
		},
		"one stays for one that does not serve": {
			desired: 4, limit: 4, more: func(s *reconcile.Snapshot) { sick(s, 0) }, stops: []string{"main.0"}, right: 6,
		},
		"none comes before the stage": {desired: 8, limit: 6, right: 6, later: 2},
		"one comes":                   {desired: 8, limit: 7, adds: []string{"main.6"}, right: 6, later: 1},
		"both come":                   {desired: 8, limit: 8, adds: []string{"main.6", "main.7"}, right: 6},
		"one comes with the new manifest": {
			desired: 8, limit: 1, more: upgrading, adds: []string{"main.6"}, later: 1,
		},
		"two roles share the limit": {
			desired: 7, limit: 7, more: func(s *reconcile.Snapshot) {
				s.RC.ReplicaGroups = append(s.RC.ReplicaGroups, rc.ReplicaGroup{Role: "side", Count: count(1)})
			}, adds: []string{"main.6"}, right: 6, later: 1,
		},
		"another role goes as the stage allows": {
			desired: 4, limit: 4, keep: 1, more: func(s *reconcile.Snapshot) { side(s, 5) },
			stops: []string{"main.4"}, right: 5,
		},
		"all of another role go": {
			desired: 3, limit: 3, more: func(s *reconcile.Snapshot) { side(s, 3, 4, 5) },
			stops: []string{"side.3", "side.4", "side.5"}, right: 3,
		},
		"where new ones found no node one of another role makes room": {
			desired: 6, limit: 6, keep: 1, more: func(s *reconcile.Snapshot) {
				side(s, 4, 5)
				s.RC.MinAvailable, s.RC.MaxSurge = count(0), count(2)
				s.Previous = &rc.Status{
					Conditions: []rc.Condition{{Type: rc.InsufficientNodes, True: true, Since: s.Now}},
				}
			},
			adds: []string{"main.4", "main.5"}, stops: []string{"side.4"}, right: 4,
		},
		"one is upgraded": {desired: 4, limit: 1, keep: 2, more: upgrading, upgrades: []int{0}},
		"what is upgraded stays, though it changed last": {
			desired: 4, limit: 1, keep: 1, more: func(s *reconcile.Snapshot) {
				upgrading(s)
				upgradedTo(s, 5)
				s.Pods[5].ChangedAt = s.Now
			},
			stops: []string{"main.4"}, right: 1,
		},
		"what is upgraded and does not serve stays, too": {
			desired: 4, limit: 2, keep: 0, more: func(s *reconcile.Snapshot) {
				upgrading(s)
				upgradedTo(s, 5)
				sick(s, 5)
			},
			stops: []string{"main.4"}, right: 1,
		},
		"one on a drained node goes, and moves nowhere": {
			desired: 4, limit: 4, keep: 2, more: func(s *reconcile.Snapshot) {
				s.Nodes["n2"].Ops.Drain = &node.Drain{Since: s.Now}
			},
			stops: []string{"main.2"}, right: 6,
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := ofCounts(c.desired, "n0", "n1", "n2", "n3", "n4", "n5")
			inStages(s, c.limit, c.keep)
			if c.more != nil {
				c.more(s)
			}
			plan := reconcile.Compute(s)
			if got := added(&plan); !slices.Equal(got, c.adds) {
				t.Errorf("adds %v, want %v", got, c.adds)
			}
			for _, id := range plan.Adds {
				if got := plan.DigestOf(id); got != s.RC.ManifestDigest {
					t.Errorf("%s gets %s", id, got)
				}
			}
			if got := stopped(&plan); !slices.Equal(got, c.stops) {
				t.Errorf("stops %v, want %v", got, c.stops)
			}
			if got := upgradedBy(&plan); !slices.Equal(got, c.upgrades) {
				t.Errorf("upgrades %v, want %v", got, c.upgrades)
			}
			if got := plan.Status.Updated; got != c.right {
				t.Errorf("%d are right, want %d", got, c.right)
			}
			want := fmt.Sprintf(", %d come with later stages", c.later)
			if got := notConverged(&plan); strings.Contains(got, "later") != (c.later > 0) ||
				c.later > 0 && !strings.Contains(got, want) {
				t.Errorf("the reason is %q, want %q in it", got, want)
			}
		})
	}
}

// An upgrade in place without a rollout in charge is reported if surplus pods are left.
func TestAnAbandonedChangeOfModeIsReported(t *testing.T) {
	t.Parallel()
	for keep, want := range map[int]bool{0: false, 1: true} {
		s := ofCounts(6-keep, "n0", "n1", "n2", "n3", "n4", "n5")
		inStages(s, 6, keep)
		if s.Rollout = ""; keep == 0 {
			s.RC.InPlace.Keep = count(3)
		}
		plan := reconcile.Compute(s)
		if got := reasonOf(&plan, rc.RolloutGone); (got != "") != want {
			t.Errorf("with %d surplus pods the reason is %q", keep, got)
		}
	}
}
