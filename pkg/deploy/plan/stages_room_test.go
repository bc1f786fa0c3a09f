package plan_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/rcfarm/rcfarm/pkg/deploy/plan"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
)

// Old pods go one role after the other, as farms shrink a revision. So the large role finds the room that its own old
// pods have left, and no stage lacks any.
func TestOldPodsGoByRole(t *testing.T) {
	const groups = `replica_groups=[{"role": "a", "count": 3, "resources": {"cpu": 3000}}, {"role": "b", "count": 3, "resources": {"cpu": 1000}}]`
	c := &cluster{}
	c.deployed(t, sample(t, `replicas=null`, groups))
	state := wide(9, 9, 9, 9)
	for _, v := range state.Nodes {
		v.Capacity.CPU = 4000
	}
	for role, cpu := range map[string]int64{"a": 3000, "b": 1000} {
		for i := range 3 {
			id := pod.Identity{RCID: c.svc.Deployed.RC, Role: role, Index: i}
			state.Taken[fmt.Sprint("n", i)].Claims[id.String()] = node.Claim{Pod: id, CPU: cpu}
		}
	}
	p, err := c.planOf(t, sample(t, `replicas=null`, groups, newManifest, `update.step=1`), func(r *plan.RollingStrategy) { r.State = state })
	if err != nil || len(p.Warnings) > 0 {
		t.Error(err, p.Warnings)
	}
}

// With blue-green all old pods stay until the new ones have the name, also where the new version has fewer: what a
// lower number makes too many frees no room for the first stage.
func TestBlueGreenWithALowerNumber(t *testing.T) {
	const blueGreen = `update.strategy="blue-green"`
	for nodes, want := range map[int]string{
		7: "the strategy blue-green starts 3 pods before it stops others, and the nodes have room for 1",
		9: "",
	} {
		c := &cluster{}
		c.deployed(t, sample(t, `replicas=6`, blueGreen))
		c.svc.Controllers[0].RC.Service.Standby = false // it has the name
		state := wide(make([]int, nodes)...)
		for _, v := range state.Nodes {
			v.Capacity.Slots = 1
		}
		for i := range 6 {
			c.has(state, i, i, 0)
		}
		p, err := c.planOf(t, sample(t, `replicas=3`, blueGreen, newManifest), func(r *plan.RollingStrategy) { r.State = state })
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%d nodes: %v, want %q", nodes, err, want)
		}
		if len(p.Warnings) > 0 {
			t.Errorf("%d nodes: %v", nodes, p.Warnings)
		}
	}
}
