package rcctl

import (
	"fmt"

	"github.com/urfave/cli/v2"

	"github.com/rcfarm/rcfarm/pkg/rc"
)

func (t *tool) createCommand() *cli.Command {
	return leaf(&cli.Command{
		Name: "create", Usage: "create an rc; refuse if the name is taken",
		UsageText: "rcctl rc create -f FILE [--signature FILE | --sign-key KEY] [--wait [--timeout 5m]]",
		Description: `Like rcctl apply, but an rc of that name must not exist (exit code 4).

Examples:
  rcctl rc create -f rc.yaml
  rcctl rc create -f - < rc.yaml`,
		Flags:  append(append(signatureFlags(), fileFlag()), waitFlags("until the rc has converged")...),
		Action: t.create,
	})
}

func (t *tool) create(c *cli.Context) error {
	limit, err := timeout(c)
	if err != nil {
		return err
	}
	spec, err := t.readSpec(c)
	if err != nil {
		return err
	}
	signature, err := t.signature(c, spec.Pod)
	if err != nil {
		return err
	}
	s, err := t.connect(c)
	if err != nil {
		return err
	}
	defer s.close()
	done, err := s.writeApply(c.Context, wish{spec: spec, signature: signature}, func(r *rc.RC) error {
		return refusedf("rc %s exists (id %s, generation %d), nothing was written; to change it: rcctl apply -f %s",
			r.Name, r.ID, r.Generation, c.String("file"))
	})
	if err != nil {
		return err
	}
	t.printChange(done, "created")
	if c.Bool("wait") {
		return t.waitConverged(c.Context, s, done.rc, limit)
	}
	fmt.Fprintf(t.out, "next: rcctl rc status %s\n", done.rc.Name)
	return nil
}
