package rcctl

import (
	"github.com/urfave/cli/v2"

	"github.com/rcfarm/rcfarm/pkg/rc"
)

func createCommand() *cli.Command {
	return leaf(&cli.Command{
		Name: "create", Usage: "create an rc; refuse if the name is taken",
		UsageText: "rcctl rc create -f FILE [--signature FILE | --sign-key KEY] [--wait [--timeout 5m]]",
		Description: `Like rcctl apply, but an rc of that name must not exist (exit code 4).

Examples:
  rcctl rc create -f rc.yaml
  rcctl rc create -f - < rc.yaml`,
		Flags:  append(append(signatureFlags(), fileFlag()), waitFlags("until the rc has converged")...),
		Action: offline(runCreate),
	})
}

func runCreate(c *cli.Context, std *stdio) error {
	return applyDocument(c, std, func(r *rc.RC) error {
		return refusedf("rc %s exists (id %s, generation %d), nothing was written; to change it: rcctl apply -f %s",
			r.Name, r.ID, r.Generation, c.String("file"))
	})
}
