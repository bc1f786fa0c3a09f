package rcctl

import (
	"context"
	"strconv"

	"github.com/urfave/cli/v2"

	"github.com/rcfarm/rcfarm/pkg/deploy/record"
	"github.com/rcfarm/rcfarm/pkg/rc"
)

func scaleCommand() *cli.Command {
	return leaf(&cli.Command{
		Name: "scale", Usage: "set how many replicas an rc asks for",
		UsageText: "rcctl rc scale REF [--role ROLE] N [--wait [--timeout 5m]] [--allow-mass-stop]",
		Description: `An rc with more than one role needs --role. The next rcctl apply sets the number of its document again. A revision
of a service is refused (exit code 4): rcctl scale SERVICE N.

Examples:
  rcctl rc scale web 5
  rcctl rc scale cache --role leader 1
  rcctl rc scale web 0 --wait`,
		Flags: append([]cli.Flag{
			&cli.StringFlag{Name: "role", Usage: "`ROLE` whose replicas are counted (default: the only one)"},
			massStopFlag(),
		}, waitFlags("until the rc has converged")...),
		Action: onConn(rcRef.count, runScale),
	})
}

// newCount is what a command line says about the replicas of something.
type newCount struct {
	name  string
	count int
}

// count reads a name, and how many replicas what it names is to have.
func (of noun) count(c *cli.Context) (n newCount, err error) {
	if c.NArg() > 2 {
		return n, usagef(c, "unexpected argument %q; allowed: %s and N", c.Args().Get(2), of.what)
	}
	if n.name, err = of.check(c, c.Args().First()); err != nil {
		return n, err
	}
	text := c.Args().Get(1)
	if n.count, err = strconv.Atoi(text); err != nil || n.count < 0 || n.count > rc.MaxReplicas {
		return n, badFlag(c, "N", text, rc.CountAllowed)
	}
	return n, nil
}

func runScale(s *conn, n newCount) error {
	found, err := s.find(n.name)
	if err != nil {
		return err
	}
	done, err := s.changeRC(s.Context, found.Value.ID, func(ctx context.Context, r *rc.RC) (change, error) {
		svc, err := s.serviceOf(ctx, r)
		if err != nil {
			return change{}, err
		}
		return computeScale(current{rc: r, service: svc}, s.String("role"), n.count, s.Bool("allow-mass-stop"))
	})
	if err != nil {
		return asUsage(s.flags, err)
	}
	printChange(s.stdio, done, "scaled")
	return waitOrSay(s, &done)
}

func scaleServiceCommand() *cli.Command {
	return leaf(&cli.Command{
		Name: "scale", Usage: "set how many replicas a service has",
		UsageText: "rcctl scale SERVICE [--role ROLE] N [--yes] [--detach | --timeout 5m] [--allow-mass-stop]",
		Description: `It changes the number in the document that is in effect; the next rcctl deploy sets the number of its own document again. While a rollout
is under way it is redirected to the new number. The command shows how pods come and go until there are as many as asked
for. To scale an rc that belongs to no service: rcctl rc scale.

Examples:
  rcctl scale web 5 --yes
  rcctl scale cache --role leader 1`,
		Flags:  append([]cli.Flag{&cli.StringFlag{Name: "role", Usage: "`ROLE` whose replicas are counted (default: the only one)"}}, runFlags()...),
		Action: onConn(readScaleService, runScaleService),
	})
}

func readScaleService(c *cli.Context) (newCount, error) {
	n, err := serviceName.count(c)
	if err == nil {
		err = mayRun(c)
	}
	return n, err
}

func runScaleService(s *conn, n newCount) error {
	return redeploy(s, n.name, "scale", func(svc *record.Service, _ *deployer) (_ *record.ServiceSpec, err error) {
		spec := svc.InEffect().Spec
		if spec.Mode == rc.EachNode {
			return nil, asUsage(s.flags, eachNodeScaled("service "+n.name, n.count))
		}
		spec.ReplicaGroups, err = withCount(n.name, spec.Groups(), s.String("role"), n.count)
		spec.Replicas = nil
		return &spec, asUsage(s.flags, err)
	})
}
