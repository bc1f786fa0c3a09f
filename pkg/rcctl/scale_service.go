package rcctl

import (
	"github.com/urfave/cli/v2"

	"github.com/rcfarm/rcfarm/pkg/deploy/record"
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
	n, err := serviceName.count(c)
	if err != nil {
		return err
	}
	return redeploy(c, std, n.name, "scale", func(svc *record.Service, _ *deployer) (*record.ServiceSpec, error) {
		spec := svc.InEffect().Spec
		spec.ReplicaGroups, err = withCount(n.name, spec.Groups(), c.String("role"), n.count)
		spec.Replicas = nil
		return &spec, asUsage(c, err)
	})
}
