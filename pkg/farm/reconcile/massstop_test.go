package reconcile_test

import (
	"slices"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/farm/reconcile"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
)

func TestAllowsMassStop(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		generation, allowed int64
		want                bool
	}{
		{2, 0, false},
		{2, 1, false},
		{2, 2, true},
		{2, 3, false},
		{0, 0, false}, // a record that no farm wrote
	} {
		r := &rc.RC{Generation: tt.generation, AllowMassStop: tt.allowed}
		if got := reconcile.AllowsMassStop(r); got != tt.want {
			t.Errorf("generation %d, allowed %d: %t, want %t", tt.generation, tt.allowed, got, tt.want)
		}
	}
}

// RemainingPods returns the pods that the mass-stop breaker compares stops with, of two roles with five and three pods.
func TestRemainingPodsForTheBreaker(t *testing.T) {
	t.Parallel()
	groups := func(a, b int) []rc.ReplicaGroup {
		return []rc.ReplicaGroup{{Role: "a", Count: new(a)}, {Role: "b", Count: new(b)}}
	}
	deleted := new(time.Unix(1, 0))
	id := func(role string, index int) pod.Identity { return pod.Identity{RCID: "c", Role: role, Index: index} }
	goes := func(ids ...pod.Identity) map[pod.Identity]bool {
		going := map[pod.Identity]bool{}
		for _, i := range ids {
			going[i] = true
		}
		return going
	}
	stopped := func(p *pod.Placement) {
		if p.Index < 2 {
			p.RunState = pod.Stopped
		}
	}
	found := func(generation int64) func(p *pod.Placement) {
		return func(p *pod.Placement) {
			if p.Role == "a" && p.Index >= 3 {
				p.AdoptedAtGeneration = generation
			}
		}
	}
	for name, tt := range map[string]struct {
		record  rc.RC
		allowed bool
		going   map[pod.Identity]bool
		change  func(p *pod.Placement)
		want    int
	}{
		"as many as desired":               {rc.RC{ReplicaGroups: groups(5, 3)}, true, nil, nil, 8},
		"more than desired":                {rc.RC{ReplicaGroups: groups(2, 1)}, false, nil, nil, 8},
		"more than desired, allowed":       {rc.RC{ReplicaGroups: groups(2, 1)}, true, nil, nil, 3},
		"one role lacks what another must": {rc.RC{ReplicaGroups: groups(9, 1)}, true, nil, nil, 6},
		"none desired, allowed":            {rc.RC{ReplicaGroups: groups(0, 0)}, true, nil, nil, 0},
		"a role is gone, allowed":          {rc.RC{ReplicaGroups: groups(5, 3)[:1]}, true, nil, nil, 5},
		"deleted": {
			rc.RC{ReplicaGroups: groups(5, 3), DeletedAt: deleted}, false, nil, nil, 8,
		},
		"deleted, allowed": {
			rc.RC{ReplicaGroups: groups(5, 3), DeletedAt: deleted}, true, nil, nil, 0,
		},
		"disabled": {rc.RC{ReplicaGroups: groups(2, 1), Disabled: true}, true, nil, nil, 8},
		"disabled and deleted, allowed": {
			rc.RC{ReplicaGroups: groups(2, 1), Disabled: true, DeletedAt: deleted}, true, nil, nil, 0,
		},
		"the plan stops some": {
			rc.RC{ReplicaGroups: groups(5, 3)}, false, goes(id("a", 0), id("b", 2)), nil, 6,
		},
		"the plan stops some, allowed": {
			rc.RC{ReplicaGroups: groups(5, 3)}, true, goes(id("a", 0), id("b", 2)), nil, 6,
		},
		"the plan stops the first, allowed": {rc.RC{ReplicaGroups: groups(2, 1)}, true, goes(id("a", 4)), nil, 3},
		"the plan stops most, allowed": {
			rc.RC{ReplicaGroups: groups(5, 3)}, true, goes(id("a", 0), id("a", 1), id("a", 2), id("a", 3)), nil, 4,
		},
		"some are stopping":          {rc.RC{ReplicaGroups: groups(5, 3)}, false, nil, stopped, 4},
		"some are stopping, allowed": {rc.RC{ReplicaGroups: groups(2, 3)}, true, nil, stopped, 3},
		"some stay as found": {
			rc.RC{Generation: 7, ReplicaGroups: groups(1, 3)}, true, nil, found(7), 6,
		},
		"found before the change": {
			rc.RC{Generation: 7, ReplicaGroups: groups(1, 3)}, true, nil, found(6), 4,
		},
		"found, and deleted": {
			rc.RC{Generation: 7, ReplicaGroups: groups(1, 3), DeletedAt: deleted}, true, nil, found(7), 0,
		},
		"found, and the plan stops one": {
			rc.RC{Generation: 7, ReplicaGroups: groups(1, 3)}, true, goes(id("a", 4)), found(7), 5,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var pods []*pod.Placement
			for role, n := range map[string]int{"a": 5, "b": 3} {
				for index := range n {
					p := &pod.Placement{Identity: id(role, index), RunState: pod.Running}
					if tt.change != nil {
						tt.change(p)
					}
					pods = append(pods, p)
				}
			}
			if got := reconcile.RemainingPods(&tt.record, tt.allowed, slices.Values(pods), tt.going); got != tt.want {
				t.Errorf("%d stay, want %d", got, tt.want)
			}
		})
	}
}
