package rcctl

import (
	"fmt"

	"github.com/urfave/cli/v2"

	"github.com/rcfarm/rcfarm/pkg/deploy/record"
)

func rollbackCommand() *cli.Command {
	return leaf(&cli.Command{
		Name: "rollback", Usage: "deploy an earlier document of a service again",
		UsageText: "rcctl rollback SERVICE [--to REV] [--yes] [--detach]",
		Description: `What comes of it is a new revision with the old document, digests included. It is rolled out without canary, gates and delay, in larger
steps, and never below the minimum. To take back a rollout that is under way: rcctl rollout rollback SERVICE.

Examples:
  rcctl rollback web            to the newest revision before that was done
  rcctl rollback web --to 3`,
		Flags:  append([]cli.Flag{revisionFlag("number of the `REVISION` (default: the newest that was done before this one)")}, runFlags()...),
		Action: offline(runRollback),
	})
}

func runRollback(c *cli.Context, std *stdio) error {
	rev, err := readRevision(c)
	if err != nil {
		return err
	}
	name, err := serviceName.only(c)
	if err != nil {
		return err
	}
	return redeploy(c, std, name, "rollback", func(svc *record.Service, d *deployer) (*record.ServiceSpec, error) {
		if svc.Rollout != nil {
			return nil, refusedf("service %s: a rollout is under way; take it back: rcctl rollout rollback %s, or wait: rcctl rollout status %s -w; nothing was written", name, name, name)
		}
		e, err := entry(svc, rev)
		if err != nil {
			return nil, err
		}
		d.rolling.Rollback = true
		d.about = fmt.Sprintf("back to the document of revision %d", e.Revision)
		return &e.Spec, nil
	})
}
