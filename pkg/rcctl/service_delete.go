package rcctl

import (
	"context"
	"fmt"

	"github.com/urfave/cli/v2"

	"github.com/rcfarm/rcfarm/pkg/deploy/record"
	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/store"
)

func serviceDeleteCommand() *cli.Command {
	return leaf(&cli.Command{
		Name: "delete", Usage: "delete a service: its document and history, and its revisions by mark",
		UsageText: "rcctl service delete SERVICE [--force] [--allow-mass-stop]",
		Description: `A service whose document asks for replicas is refused (exit code 4) unless --force is given, and so is one with a rollout under way. The farms
stop the pods, wait until their nodes have confirmed that, then remove every record.

Examples:
  rcctl scale web 0 --yes && rcctl service delete web
  rcctl service delete web --force`,
		Flags:  []cli.Flag{&cli.BoolFlag{Name: "force", Usage: "delete even though replicas are asked for"}, massStopFlag()},
		Action: onConn(serviceName.only, runServiceDelete),
	})
}

func runServiceDelete(c *cli.Context, std *stdio, s *conn, name string) (err error) {
	var svc *record.Service
	err = s.writing(c.Context, maxTries, func(ctx context.Context, by string) error {
		if svc, err = s.service(ctx, name); err != nil {
			return err
		}
		if svc.Rollout != nil {
			return refusedf("service %s: its rollout is %s; end it first: rcctl rollout abort %s; nothing was written", name, svc.Rollout.State, name)
		}
		if effect := svc.InEffect(); effect.Spec.Total() > 0 && !c.Bool("force") {
			return refusedf("service %s asks for %s; scale it to 0 first (rcctl scale %s 0) or add --force, nothing was written", name, field.Count(effect.Spec.Total(), "replica"), name)
		}
		audit := store.NewAudit(by, "delete-service", svc.Deployed.RC, []string{"service " + name + ": deleted"})
		return s.did("the deletion of service "+name, "rcctl service list", s.Deployments.ForgetService(ctx, svc, c.Bool("allow-mass-stop"), audit))
	})
	if err != nil {
		return err
	}
	fmt.Fprintf(std.out, "service %s is deleted; its farm stops the pods of %d revisions, waits for their nodes to confirm, then removes the records\n", name, len(svc.Controllers))
	for _, one := range svc.Controllers {
		fmt.Fprintf(std.out, "watch: rcctl pods --rc %s\n", one.RC.ID)
	}
	return nil
}
