package inspect

import (
	"testing"

	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
)

// If the reason is known why a pod is still on a drained node, WhyStays returns it.
func TestWhyStays(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		spoil func(*Situation)
		want  string
	}{
		"its port is taken": {
			func(*Situation) {},
			"web-main-0 does not move: no other node takes it: these have its port taken by another pod: n2",
		},
		"no room": {
			func(s *Situation) {
				s.Nodes["n2"].Capacity.Slots = 1
				s.Taken["n2"] = node.Reservation{Claims: map[string]node.Claim{"01/main.1": {}}}
			},
			"web-main-0 does not move: no other node takes it: these have no slot, CPU or memory left for it: n2",
		},
		"other labels": {
			func(s *Situation) { s.Nodes["n2"].Labels = nil },
			"web-main-0 does not move: no other node takes it: these have labels that its selector does not match: n2",
		},
		"no other node": {
			func(s *Situation) { delete(s.Nodes, "n2") },
			"web-main-0 does not move: there is no other node",
		},
		"several reasons": {
			func(s *Situation) {
				s.Nodes["n3"] = &node.View{Node: node.Node{Name: "n3", Labels: map[string]string{"rack": "a"}}}
			},
			"web-main-0 does not move: no other node takes it: these have no living preparer: n3; these have its " +
				"port taken " +
				"by another pod: n2",
		},
		"static": {
			func(s *Situation) { s.RC.Strategy = rc.Static },
			"web-main-0 does not move: its controller is static; to stop it at a deadline: rcctl node drain n1 " +
				"--deadline 0s " +
				"--force",
		},
		"disabled": {
			func(s *Situation) { s.RC.Disabled = true },
			"web-main-0 does not move: its controller is disabled",
		},
		"no farm": {
			func(s *Situation) { s.Farms = nil },
			"web-main-0 does not move: No farm is running, so nobody works on it. Its pods run on",
		},
		"it stops": {func(s *Situation) { s.Placements[0].RunState = pod.Stopped }, ""},
		"it does not stop": {
			func(s *Situation) {
				began := explainNow.Add(-longStop)
				s.Placements[0].RunState, s.Placements[0].StoppingSince = pod.Stopped, &began
			},
			"web-main-0 does not move: it was asked to stop at 2026-01-02T03:03:05Z and has not confirmed it",
		},
		"the breaker": {
			func(s *Situation) { s.not(rc.BreakerTripped, "too many stops") },
			"web-main-0 does not move: BreakerTripped: too many stops",
		},
		"blocked": {
			func(s *Situation) { s.Taken["n2"] = node.Reservation{}; s.not(rc.Blocked, "it does not leave") },
			"web-main-0 does not move: it does not leave",
		},
		"the minimum": {
			func(s *Situation) { s.Taken["n2"] = node.Reservation{}; two := 2; s.RC.MinAvailable = &two },
			"web-main-0 does not move: 2 replicas available, and the minimum is 2",
		},
		"it moves":  {func(s *Situation) { s.Taken["n2"] = node.Reservation{} }, ""},
		"not there": {func(s *Situation) { s.Placements = s.Placements[1:] }, ""},
	} {
		s := well()
		for _, v := range s.Nodes {
			v.Capacity.Slots = 5
		}
		s.Nodes["n1"].Ops.Drain = &node.Drain{Since: explainNow}
		tt.spoil(s)
		if got := WhyStays(s, "n1"); got != tt.want {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
	}
}
