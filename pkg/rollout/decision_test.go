package rollout_test

import (
	"testing"

	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/rollout"
)

// A controller has pods while it asks for replicas, and while any copy is placed, stopping or lost.
func TestAControllerHasPodsWhileAnyCopyExists(t *testing.T) {
	t.Parallel()
	asks := rc.RC{ReplicaGroups: groupsOf(1)}
	for name, c := range map[string]struct {
		seen rollout.Seen
		want bool
	}{
		"asked for, without a status": {rollout.Seen{RC: asks}, true},
		"without a status":            {rollout.Seen{}, false},
		"none":                        {rollout.Seen{Status: &rc.Status{}}, false},
		"placed":                      {rollout.Seen{Status: &rc.Status{Placed: 1}}, true},
		"stopping":                    {rollout.Seen{Status: &rc.Status{Stopping: 1}}, true},
		"lost":                        {rollout.Seen{Status: &rc.Status{Lost: 1}}, true},
		"placed and stopping":         {rollout.Seen{Status: &rc.Status{Placed: 1, Stopping: 1}}, true},
		"stopping and lost":           {rollout.Seen{Status: &rc.Status{Stopping: 1, Lost: 1}}, true},
	} {
		if got := c.seen.HasPods(); got != c.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}

// A rollout is idle only in the states in which it waits for an operator, or while it is stuck.
func TestARolloutIsIdleWhileItWaits(t *testing.T) {
	t.Parallel()
	for state, want := range map[rollout.State]bool{
		rollout.Progressing: false, rollout.Paused: true, rollout.WaitingForPromote: true, rollout.RollingBack: false,
		rollout.Failed: false, rollout.Done: false, rollout.Aborted: false,
	} {
		if got := (&rollout.Record{State: state}).Idle(); got != want {
			t.Errorf("%s: %t", state, got)
		}
		if !(&rollout.Record{State: state, Stuck: "no node"}).Idle() {
			t.Errorf("%s and stuck: it is not idle", state)
		}
	}
}
