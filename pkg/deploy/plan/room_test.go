package plan_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/rcfarm/rcfarm/pkg/deploy/plan"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/rollout"
)

// Surplus pods of a replaced rollout stop first, and free capacity for the next one. Pods that the service should have
// are kept, and free none.
func TestRetargetHasTheRoomOfWhatItReplaces(t *testing.T) {
	const newest = `pod.labels={"release": "3"}`
	for _, tt := range []struct {
		name  string
		slots []int // of each node
		has   []int // pods of each revision, the oldest first
		spec  []string
		want  string // error; empty: planned
	}{
		{"the surge is taken by what goes first", []int{2, 2}, []int{3, 1}, []string{newest}, ""},
		{"no more than are wanted", []int{2, 1}, []int{2, 1}, []string{newest}, "no-room"},
		{"all wanted", []int{2, 1}, []int{3, 0}, []string{newest}, "no-room"},
		{"all stand by", []int{2, 2, 2}, []int{3, 3}, []string{newest, `update.strategy="blue-green"`}, ""},
		{
			"too few stand by",
			[]int{2, 2, 1},
			[]int{3, 2},
			[]string{newest, `update.strategy="blue-green"`},
			"starts 3 pods before it stops others, and the nodes have room for 2",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := &cluster{}
			c.deployed(t, sample(t))
			c.under(t, sample(t, newManifest))
			state := nodes(tt.slots...)
			all := 0
			for i, n := range tt.has {
				for index := range n {
					id := pod.Identity{RCID: c.svc.Controllers[i].RC.ID, Role: "main", Index: index}
					state.Taken[fmt.Sprintf("n%d", all/2)].Claims[id.String()] = node.Claim{Pod: id}
					all++
				}
			}
			_, err := c.planOf(t, sample(t, tt.spec...), func(r *plan.ServicePlanner) { r.State = state })
			if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got  %v\nwant %s", err, tt.want)
			}
			for _, taken := range state.Taken {
				all -= len(taken.Claims)
			}
			if all != 0 {
				t.Error("what is taken has changed")
			}
		})
	}
}

// Capacity is computed with the rules of farms: with each group's own manifest and preferences, with the groups in
// their rolling order, and with a required skew.
func TestRoomByGroup(t *testing.T) {
	const (
		big   = `{"role": "big", "count": 2, "resources": {"cpu": 1500}}`
		small = `{"role": "small", "count": 2, "resources": {"cpu": 500}}`
		none  = `replicas=null`
	)
	racks := func(names ...string) *plan.State {
		slots := make([]int, len(names))
		for i := range slots {
			slots[i] = 9
		}
		s := nodes(slots...)
		for i, rack := range names {
			v := s.Nodes[fmt.Sprintf("n%d", i)]
			v.Labels, v.Capacity.CPU, v.PortRange.Max = map[string]string{"rack": rack}, 2000, 2999
		}
		return s
	}
	for _, tt := range []struct {
		name    string
		state   *plan.State
		spec    []string
		wanted  int
		pods    int
		reasons string
	}{
		{
			"each group's resources", racks("a"),
			[]string{none, `replica_groups=[` + big + `,` + small + `]`},
			4, 2, "resources: 1",
		},
		{"they have room", racks("a", "b"), []string{none, `replica_groups=[` + big + `,` + small + `]`}, 4, 4, ""},
		{
			"the first in order", racks("a"),
			[]string{none, `replica_groups=[` + big + `,` + small + `]`, `update.group_order=["small"]`},
			2, 2, "",
		},
		{
			"the first as declared", racks("a"),
			[]string{none, `replica_groups=[` + big + `,` + small + `]`},
			2, 1, "resources: 1",
		},
		{"only so many are wanted", racks("a"), []string{none, `replica_groups=[` + small + `,` + big + `]`}, 2, 2, ""},
		{"more than all", racks("a", "b", "c"), []string{none, `replica_groups=[` + small + `,` + big + `]`}, 9, 4, ""},
		{
			"a skew that is held", racks("a", "a", "b"),
			[]string{`max_per_node=1`, `spread={"label": "rack", "when": "require"}`},
			9, 3, "max_per_node: 3",
		},
		{
			"a skew that keeps out", racks("a", "a", "a", "b"),
			[]string{`max_per_node=1`, `spread={"label": "rack", "when": "require"}`},
			9, 3,
			"max_per_node: 3, spread: 1",
		},
		{
			"a group without the label", racks("a", ""),
			[]string{`spread={"label": "rack", "when": "require"}`, `max_per_node=2`},
			9, 2,
			"max_per_node: 1, spread: 1",
		},
		{
			"the skew of a group", racks("a", "a", "a", "b"),
			[]string{
				none, `max_per_node=1`,
				`replica_groups=[{"role": "even", "count": 4, "spread": {"label": "rack", "when": "require"}}]`,
			},
			4, 3,
			"max_per_node: 3, spread: 1",
		},
		{
			"max_per_node counts all groups", racks("a", "b"),
			[]string{
				none, `max_per_node=1`,
				`replica_groups=[{"role": "x", "count": 1, "command": "bin/x"},{"role": "y", "count": 2}]`,
			},
			3,
			2, "max_per_node: 2",
		},
	} {
		got := tt.state.Room(sample(t, tt.spec...), tt.wanted)
		if got.Pods != tt.pods || got.Reasons.String() != tt.reasons {
			t.Errorf("%s: %d %s, want %d %s", tt.name, got.Pods, got.Reasons, tt.pods, tt.reasons)
		}
		for name, taken := range tt.state.Taken {
			if len(taken.Claims) > 0 {
				t.Errorf("%s: what is taken on %s has changed", tt.name, name)
			}
		}
	}
}

// A lower count frees no capacity for the first stage, because surplus pods are kept until new pods are available.
func TestALowerNumberFreesNoRoom(t *testing.T) {
	c := &cluster{}
	c.deployed(t, sample(t, `replicas=6`))
	state := nodes(3, 3)
	for i := range 6 {
		id := pod.Identity{RCID: c.svc.Deployed.RC, Role: rc.DefaultRole, Index: i}
		state.Taken[fmt.Sprint("n", i%2)].Claims[id.String()] = node.Claim{Pod: id}
	}
	for _, strategy := range []string{"", rollout.ResourceUtilStrategy} {
		_, err := c.planOf(t, sample(t, `replicas=3`, newManifest), func(s *plan.ServicePlanner) {
			s.State, s.Override = state, strategy
		})
		if full := err != nil && strings.Contains(err.Error(), "no-room"); full != (strategy == "") {
			t.Errorf("strategy %q: %v", strategy, err)
		}
	}
}

// Pods that a rollout upgrades on the same node share its free capacity. If the first pod takes all of it, the next pod
// has none.
func TestPodsInPlaceShareTheirNode(t *testing.T) {
	c := &cluster{}
	c.deployed(t, sample(t, `replicas=2`, `pod.launchables=`+launchableWith(`{"cpu": 1000}`)))
	state := nodes(2)
	state.Nodes["n0"].Capacity.CPU = 2500
	c.has(state, 0, 0, 1000)
	c.has(state, 1, 0, 1000)
	larger := sample(t, `replicas=2`, `pod.launchables=`+launchableWith(`{"cpu": 1500}`))
	by := func(strategy string) (plan.Plan, error) {
		return c.planOf(t, larger, func(s *plan.ServicePlanner) { s.State, s.Override = state, strategy })
	}
	p, err := by(rollout.InPlaceStrategy)
	if want := []string{"there is room for 1 of 2 pods (nodes that take no more: resources: 1)"}; err != nil ||
		!slices.Equal(p.Warnings, want) {
		t.Errorf("in place: warnings %q, %v", p.Warnings, err)
	}
	if _, err := by(rollout.AvailabilityStrategy); err == nil || !strings.Contains(err.Error(), "no strategy helps") {
		t.Errorf("a refusal names what has no room: %v", err)
	}
	if claim := state.Taken["n0"].Claims; len(claim) != 2 ||
		claim[pod.Identity{RCID: c.svc.Deployed.RC, Role: rc.DefaultRole}.String()].CPU != 1000 {
		t.Errorf("what is taken has changed: %v", claim)
	}
}
