package rcctl

import (
	"github.com/urfave/cli/v2"

	"github.com/rcfarm/rcfarm/pkg/rollout"
)

// rolloutCommand groups the commands about rollouts under way.
func rolloutCommand() *cli.Command {
	return group("rollout", "show, pause, resume, promote, abort and roll back rollouts under way",
		rolloutListCommand(), rolloutStatusCommand(),
		askCommand(rollout.PauseVerb, "halt a rollout where it is", "Counts stay as they are until it is resumed. Drains and the replacement of lost pods go on."),
		askCommand(rollout.ResumeVerb, "let a paused rollout go on", ""),
		askCommand(rollout.PromoteVerb, "let a canary, or the new pods of blue-green, take over", "It is refused while the rollout does not wait for it."),
		askCommand(rollout.AbortVerb, "end a rollout and leave all counts as they are",
			"Pods of several revisions stay side by side. The next rcctl deploy takes them to one revision."),
		askCommand(rollout.RollbackVerb, "take a rollout back", "The pods of the revision before come back, without canary, gates and delay."),
	)
}

func rolloutColour(state string) colour {
	switch rollout.State(state) {
	case rollout.Done, rollout.Progressing:
		return green
	case rollout.Paused, rollout.WaitingForPromote, rollout.Aborted:
		return yellow
	default:
		return red
	}
}
