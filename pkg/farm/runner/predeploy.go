package runner

import (
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/rollout"
)

// ranOnce is what the status of a controller of one pod, which is never started again, and what its node reports, say about its run.
func ranOnce(st *rc.Status, realities []pod.Reality) *rollout.PreDeployed {
	for i := range realities {
		reality := &realities[i]
		if exit := reality.LastExit; exit != nil {
			done := &rollout.PreDeployed{Finished: true, Exit: exit.Code, Tail: reality.LogTail}
			if exit.Unknown || exit.Signal != "" {
				done.Exit, done.Failed = -1, "it "+exit.String()
			}
			return done
		}
	}
	for _, f := range st.Failing {
		if f.Hopeless {
			return &rollout.PreDeployed{Failed: f.Reason}
		}
	}
	return nil
}
