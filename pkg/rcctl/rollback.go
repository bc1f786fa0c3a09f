package rcctl

import (
	"fmt"

	"github.com/urfave/cli/v2"
)

func (t *tool) rollbackCommand() *cli.Command {
	return leaf(&cli.Command{
		Name: "rollback", Usage: "deploy an earlier document of a service again",
		UsageText: "rcctl rollback SERVICE [--to REV] [--yes] [--detach]",
		Description: `What comes of it is a new revision with the old document, digests included. It is rolled out without canary, gates and delay, in larger
steps, and never below the minimum. To take back a rollout that is under way: rcctl rollout rollback SERVICE.

Examples:
  rcctl rollback web            to the newest revision before that was done
  rcctl rollback web --to 3`,
		Flags:  append([]cli.Flag{revisionFlag("number of the `REVISION` (default: the newest that was done before this one)")}, runFlags()...),
		Action: t.rollback,
	})
}

func (t *tool) rollback(c *cli.Context) error {
	rev, err := readRevision(c)
	if err != nil {
		return err
	}
	name, err := oneService(c)
	if err != nil {
		return err
	}
	if err := t.mayAsk(c); err != nil {
		return err
	}
	s, err := t.connect(c)
	if err != nil {
		return err
	}
	defer s.close()
	svc, err := s.service(c.Context, name)
	if err != nil {
		return err
	}
	if svc.Rollout != nil {
		return refusedf("service %s: a rollout is under way; take it back: rcctl rollout rollback %s, or wait: rcctl rollout status %s -w; nothing was written", name, name, name)
	}
	e, err := entry(svc, rev)
	if err != nil {
		return err
	}
	d, err := t.deployer(c, s)
	if err != nil {
		return err
	}
	d.rolling.Rollback, d.client.What = true, "rollback"
	p, err := d.plan(c.Context, &e.Spec)
	if err != nil {
		return err
	}
	fmt.Fprintf(t.out, "back to the document of revision %d\n", e.Revision)
	return t.carryOut(c, s, []*planned{p})
}
