package rcctl

import (
	"fmt"
	"slices"
	"strconv"

	"github.com/urfave/cli/v2"

	"github.com/rcfarm/rcfarm/pkg/deploy/record"
	"github.com/rcfarm/rcfarm/pkg/rc"
)

func scaleServiceCommand() *cli.Command {
	return leaf(&cli.Command{
		Name: "scale", Usage: "set how many replicas a service has",
		UsageText: "rcctl scale SERVICE [--role ROLE] N [--yes] [--detach] [--allow-mass-stop]",
		Description: `It changes the number in the document that is in effect; the next rcctl deploy sets the number of its own document again. While a rollout
is under way it is redirected to the new number. To scale an rc that belongs to no service: rcctl rc scale.

Examples:
  rcctl scale web 5 --yes
  rcctl scale cache --role leader 1`,
		Flags:  append([]cli.Flag{&cli.StringFlag{Name: "role", Usage: "`ROLE` whose replicas are counted (default: the only one)"}}, runFlags()...),
		Action: offline(runScaleService),
	})
}

func runScaleService(c *cli.Context, std *stdio) error {
	n, err := readCount(c, "SERVICE", checkService)
	if err != nil {
		return err
	}
	return redeploy(c, std, n.name, "scale", func(svc *record.Service, _ *deployer) (*record.ServiceSpec, error) {
		spec := svc.InEffect().Spec
		spec.ReplicaGroups, err = scaled(c, spec.Groups(), c.String("role"), n.count)
		spec.Replicas = nil
		return &spec, err
	})
}

// scaled returns groups in which one role has another count.
func scaled(c *cli.Context, groups []rc.ReplicaGroup, role string, count int) ([]rc.ReplicaGroup, error) {
	roles := make([]string, len(groups))
	total := count
	at := -1
	for i, g := range groups {
		roles[i] = g.Role
		if g.Role == role || role == "" && len(groups) == 1 {
			at = i
		} else if g.Count != nil {
			total += *g.Count
		}
	}
	switch {
	case at < 0:
		return nil, badFlag(c, "--role", role, "one of the roles: "+list(roles))
	case total > rc.MaxReplicas:
		return nil, badFlag(c, "N", strconv.Itoa(count), fmt.Sprintf("at most %d replicas in all roles together, this makes %d", rc.MaxReplicas, total))
	}
	groups = slices.Clone(groups)
	groups[at].Count = &count
	return groups, nil
}
