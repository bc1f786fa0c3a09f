package rcctl

import (
	"context"
	"strconv"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/rcfarm/rcfarm/pkg/deploy/record"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/store"
)

func scaleCommand() *cli.Command {
	return leaf("scale REF [--role ROLE] N [--wait [--timeout 5m]] [--allow-mass-stop]",
		"set how many replicas an rc asks for",
		`An rc with more than one role needs --role. The next rcctl apply sets the number of its document again. A
revision of a service is refused (exit code 4): rcctl scale SERVICE N.

Examples:
  rcctl rc scale web 5
  rcctl rc scale cache --role leader 1
  rcctl rc scale web 0 --wait`,
		onConn(rcRef.count, runScale), roleFlag(),
		massStopFlag(), waitFlags("until the rc has converged"),
	)
}

func roleFlag() []cli.Flag {
	return option("role", "`ROLE` whose number of replicas to set (default: the only one)")
}

type newCount struct {
	name  string
	count int
}

func (of noun) count(c *cli.Context) (n newCount, err error) {
	if c.NArg() > 2 {
		return n, unexpected(c, 2, of.what+" and N")
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
	return waitOrHint(s, &done)
}

func scaleServiceCommand() *cli.Command {
	return leaf("scale SERVICE [--role ROLE] N [--yes] [--detach | --timeout 5m] [--allow-mass-stop]",
		"set how many replicas a service has",
		`It changes the number in the document that is in effect; the next rcctl deploy sets the number of its own
document again. A rollout under way is redirected to the new number. The command shows the pods until there are as many
as asked for. To scale an rc that belongs to no service: rcctl rc scale.

Examples:
  rcctl scale web 5 --yes
  rcctl scale cache --role leader 1`,
		onConn(readScaleService, runScaleService),
		roleFlag(), runFlags(),
	)
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

func disableCommand() *cli.Command {
	return leaf("disable REF", "leave an rc's pods as they are: nothing is placed, nothing is removed",
		`Until rcctl rc enable, its farm places, moves, replaces, upgrades and stops none of its pods, whatever happens
to their nodes. The farm still completes earlier stops, still stops a second copy of a replica, and the rc can be
deleted. The next rcctl apply sets disabled as in its document.

Examples:
  rcctl rc disable web
  rcctl rc enable web`,
		setDisabled(true),
	)
}

func enableCommand() *cli.Command {
	return leaf("enable REF [--wait [--timeout 5m]] [--allow-mass-stop]", "let farms work on an rc that was disabled",
		`The opposite of rcctl rc disable. The farm then does what it left undone.

Examples:
  rcctl rc enable web
  rcctl rc enable web --wait`,
		setDisabled(false),
		massStopFlag(), waitFlags("until the rc has converged"),
	)
}

func setDisabled(disabled bool) cli.ActionFunc {
	return onRC(func(s *conn, found store.Rec[rc.RC]) error {
		done, err := s.changeRC(s.Context, found.Value.ID, func(_ context.Context, r *rc.RC) (change, error) {
			return computeDisable(*r, disabled, s.Bool("allow-mass-stop"))
		})
		if err != nil {
			return err
		}
		printChange(s.stdio, done, map[bool]string{true: "disabled", false: "enabled"}[disabled])
		if !disabled {
			return waitOrHint(s, &done)
		}
		s.printLine("back: rcctl rc enable %s", done.rc.Name)
		return nil
	})
}

func deleteCommand() *cli.Command {
	return leaf("delete REF [--force] [--wait [--timeout 5m]] [--allow-mass-stop]",
		"mark an rc for deletion; its owner stops the pods and removes the records",
		`An rc that still asks for replicas is refused (exit code 4) unless --force is given. The farm that owns the
rc stops its pods, waits until their nodes have confirmed that, then removes every record of the rc. A pod on
a lost node delays the deletion, because nobody can confirm that it stopped. A repeated delete changes nothing and
succeeds; with --allow-mass-stop it makes the breaker allow the stops.

A revision of a service is refused (exit code 4), with --force too: rcctl service delete SERVICE. An old revision that
asks for no replicas may be deleted.

Examples:
  rcctl rc scale web 0 && rcctl rc delete web --wait
  rcctl rc delete web --force`,
		onRC(runDelete), toggle("force", "delete even though replicas are asked for"), massStopFlag(),
		waitFlags("until the rc is gone"),
	)
}

func runDelete(s *conn, found store.Rec[rc.RC]) error {
	now := time.Now()
	done, err := s.changeRC(s.Context, found.Value.ID, func(ctx context.Context, r *rc.RC) (change, error) {
		svc, err := s.serviceOf(ctx, r)
		if err != nil {
			return change{}, err
		}
		return computeDelete(current{rc: r, service: svc}, s.Bool("force"), s.Bool("allow-mass-stop"), now)
	})
	if err != nil {
		return err
	}
	switch {
	case done.none:
		s.printLine("rc %s is already being deleted, since %s; nothing was written",
			done.rc.Name, done.rc.DeletedAt.Format(time.RFC3339))
	case found.Value.DeletedAt != nil:
		s.printLine("rc %s is already being deleted, since %s; its pods may now stop at once (generation %d)",
			done.rc.Name, done.rc.DeletedAt.Format(time.RFC3339), done.rc.Generation)
	default:
		s.printLine("rc %s marked for deletion (id %s, generation %d)", done.rc.Name, done.rc.ID, done.rc.Generation)
		s.printLine("next: its farm stops the pods, waits for their nodes to confirm, then removes the records")
	}
	if s.Bool("wait") {
		return waitGone(s.Context, s, done.rc, limitOf(s.flags))
	}
	s.printLine("watch: rcctl pods --rc %s", done.rc.ID)
	return nil
}
