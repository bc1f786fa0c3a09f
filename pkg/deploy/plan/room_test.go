package plan_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/rcfarm/rcfarm/pkg/deploy/plan"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
)

// What a rollout that is replaced has left makes room for what replaces it; pods that the service is to have do not.
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
		{"too few stand by", []int{2, 2, 1}, []int{3, 2}, []string{newest, `update.strategy="blue-green"`}, "starts 3 pods before it stops others, and the nodes have room for 2"},
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
			_, err := c.planOf(t, sample(t, tt.spec...), func(r *plan.RollingStrategy) { r.State = state })
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
