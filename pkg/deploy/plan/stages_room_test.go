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

// The forecast stops old pods one role after the other, like farms. So the pods of the large role find the capacity of
// their own old pods, and no stage lacks capacity.
func TestOldPodsGoByRole(t *testing.T) {
	const groups = `replica_groups=[{"role": "a", "count": 3, "resources": {"cpu": 3000}}, ` +
		`{"role": "b", "count": 3, "resources": {"cpu": 1000}}]`
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
	p, err := c.planOf(t, sample(t, `replicas=null`, groups, newManifest, `update.step=1`),
		func(r *plan.ServicePlanner) {
			r.State = state
		})
	if err != nil || len(p.Warnings) > 0 {
		t.Error(err, p.Warnings)
	}
}

// With blue-green, all old pods are kept until the new pods have the service's name, even if the new version has fewer
// pods. So surplus old pods free no capacity for the first stage.
func TestBlueGreenWithALowerNumber(t *testing.T) {
	const blueGreen = `update.strategy="blue-green"`
	for nodes, want := range map[int]string{
		7: "the strategy blue-green starts 3 pods before it stops others, and the nodes have room for 1",
		9: "",
	} {
		c := &cluster{}
		c.deployed(t, sample(t, `replicas=6`, blueGreen))
		c.svc.Controllers[0].RC.Service.Standby = false // it has the service's name
		state := wide(make([]int, nodes)...)
		for _, v := range state.Nodes {
			v.Capacity.Slots = 1
		}
		for i := range 6 {
			c.has(state, i, i, 0)
		}
		p, err := c.planOf(t, sample(t, `replicas=3`, blueGreen, newManifest), func(r *plan.ServicePlanner) {
			r.State = state
		})
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%d nodes: %v, want %q", nodes, err, want)
		}
		if len(p.Warnings) > 0 {
			t.Errorf("%d nodes: %v", nodes, p.Warnings)
		}
	}
}

// If a rollout with blue-green is replaced, its pods stand by. They stop before the new pods start, and free capacity.
// The pods that have the service's name are kept, even if the new version has fewer pods.
func TestBlueGreenKeepsThePodsInTheName(t *testing.T) {
	const blueGreen = `update.strategy="blue-green"`
	c := &cluster{}
	c.deployed(t, sample(t, `replicas=6`, blueGreen))
	c.under(t, sample(t, `replicas=3`, blueGreen, newManifest))
	named, standby := &c.svc.Controllers[0].RC, &c.svc.Controllers[1].RC
	named.Service.Standby = false
	if !standby.Service.Standby {
		t.Fatal("the new revision has the name")
	}
	standby.ReplicaGroups = sample(t, `replicas=2`).Groups()
	state := wide(4, 4)
	for id, pods := range map[string]int{named.ID: 6, standby.ID: 2} {
		for i := range pods {
			id := pod.Identity{RCID: id, Role: rc.DefaultRole, Index: i}
			state.Taken[fmt.Sprint("n", i%2)].Claims[id.String()] = node.Claim{Pod: id}
		}
	}
	_, err := c.planOf(t, sample(t, `replicas=3`, blueGreen, `pod.labels={"v": "3"}`),
		func(r *plan.ServicePlanner) { r.State = state })
	want := "starts 3 pods before it stops others, and the nodes have room for 2"
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("got  %v\nwant %s", err, want)
	}
}

// In a forecast, each new pod takes capacity of its own, even if a stage finds nodes for more pods than the last stage:
// n0 has capacity for three pods, and n1 for none.
func TestNewPodsOfLaterStagesTakeTheirOwnRoom(t *testing.T) {
	c, state := &cluster{}, wide(9, 9)
	c.deployed(t, sample(t, `replicas=4`))
	state.Nodes["n0"].Capacity.CPU, state.Nodes["n1"].Capacity.CPU = 9500, 2000
	for i := range 2 { // the last indices stop first
		c.has(state, i, 0, 2000)
		c.has(state, i+2, 1, 1000)
	}
	p, err := c.planOf(t, sample(t, `replicas=4`, `update.step=2`, `pod.launchables=`+launchableWith(`{"cpu": 3000}`)),
		func(r *plan.ServicePlanner) { r.State, r.Override = state, rollout.ResourceUtilStrategy })
	want := "run 4 pods of web-r2 (forecast: n0 (3 pods); no node for 1)"
	if got := forecasts(&p); err != nil || !slices.Contains(got, want) {
		t.Errorf("no %q in %q, %v", want, got, err)
	}
}
