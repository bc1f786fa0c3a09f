package rcctl

import (
	"fmt"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/rcfarm/rcfarm/pkg/inspect"
)

func rolloutListCommand() *cli.Command {
	return leaf(&cli.Command{
		Name: "list", Aliases: []string{"ls"}, Usage: "list the rollouts under way",
		UsageText: "rcctl rollout list [-o table|json|yaml]",
		Description: `Examples:
  rcctl rollout list
  rcctl rollout list -o json | jq -r '.[] | select(.state == "paused") | .service'`,
		Flags:  []cli.Flag{outputFlag()},
		Action: onList(runRolloutList),
	})
}

func runRolloutList(c *cli.Context, std *stdio, s *conn) error {
	recs, corrupt, err := s.Deployments.ListRollouts(c.Context)
	if err != nil {
		return err
	}
	views := make([]inspect.RolloutView, len(recs))
	for i := range recs {
		views[i] = *inspect.NewRolloutView(&recs[i].Value)
		if views[i].Runner, err = s.Deployments.RunnerOf(c.Context, views[i].Service); err != nil {
			return err
		}
	}
	tb := table{header: []string{"SERVICE", "STATE", "STAGE", "STRATEGY", "RUNNER", "AGE", "REASON"}, paint: 1, colourOf: rolloutColour}
	return printList(c, std, s, views, corrupt, "no rollouts under way", tb, func(v *inspect.RolloutView) []string {
		return []string{v.Service, string(v.State), fmt.Sprintf("%d/%d", v.Stage, v.Stages), v.Strategy, v.Runner, inspect.Age(time.Now(), v.StartedAt), fitted(v.Reason, 40)}
	})
}
