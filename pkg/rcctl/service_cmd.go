package rcctl

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/rcfarm/rcfarm/pkg/deploy/plan"
	"github.com/rcfarm/rcfarm/pkg/inspect"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// serviceCommand groups the commands about services as a whole.
func (t *tool) serviceCommand() *cli.Command {
	return &cli.Command{
		Name: "service", Usage: "list and delete services",
		UsageText:       "rcctl service COMMAND [flags] [arguments]",
		HideHelpCommand: true,
		Action:          t.group,
		OnUsageError:    onUsageError,
		Subcommands:     []*cli.Command{t.serviceListCommand(), t.serviceDeleteCommand()},
	}
}

func (t *tool) serviceListCommand() *cli.Command {
	return leaf(&cli.Command{
		Name: "list", Aliases: []string{"ls"}, Usage: "list the services that were deployed",
		UsageText: "rcctl service list [-o table|json|yaml]",
		Description: `Examples:
  rcctl service list
  rcctl service list -o json | jq -r '.[].service'`,
		Flags:  []cli.Flag{outputFlag()},
		Action: t.serviceList,
	})
}

func (t *tool) serviceList(c *cli.Context) error {
	out, s, err := t.connectToList(c)
	if err != nil {
		return err
	}
	defer s.close()
	names, err := s.ListServices(c.Context)
	if err != nil {
		return err
	}
	views, corrupt := []inspect.ServiceView{}, []error{}
	for _, name := range names {
		svc, err := s.Service(c.Context, name)
		var unreadable *store.CorruptError
		switch {
		case errors.Is(err, store.ErrNotFound): // deleted meanwhile
		case errors.As(err, &unreadable):
			corrupt = append(corrupt, err)
		case err != nil:
			return err
		default:
			views = append(views, inspect.NewServiceView(svc))
		}
	}
	err = t.print(out, views, func(w io.Writer) error {
		if len(views) == 0 {
			_, err := fmt.Fprintln(w, "no services; deploy one: rcctl deploy -f web.yaml")
			return err
		}
		tb := table{header: []string{"SERVICE", "REVISION", "AVAILABLE", "ROLLOUT", "BY", "AGE"}, paint: 3, colourOf: rolloutColour}
		for _, v := range views {
			tb.rows = append(tb.rows, []string{
				v.Service, fmt.Sprint(v.Revision), fmt.Sprintf("%d/%d", v.Available, v.Replicas), string(v.Rollout), v.By, inspect.Age(time.Now(), v.At),
			})
		}
		return tb.write(w, coloured(w))
	})
	if err != nil {
		return err
	}
	return t.warn(corrupt)
}

func (t *tool) serviceDeleteCommand() *cli.Command {
	return leaf(&cli.Command{
		Name: "delete", Usage: "delete a service: its document and history, and its revisions by mark",
		UsageText: "rcctl service delete SERVICE [--force] [--allow-mass-stop]",
		Description: `A service whose document asks for replicas is refused (exit code 4) unless --force is given, and so is one with a rollout under way. The farms
stop the pods, wait until their nodes have confirmed that, then remove every record.

Examples:
  rcctl scale web 0 --yes && rcctl service delete web
  rcctl service delete web --force`,
		Flags:  []cli.Flag{&cli.BoolFlag{Name: "force", Usage: "delete even though replicas are asked for"}, massStopFlag()},
		Action: t.serviceDelete,
	})
}

func (t *tool) serviceDelete(c *cli.Context) error {
	name, err := oneService(c)
	if err != nil {
		return err
	}
	s, err := t.connect(c)
	if err != nil {
		return err
	}
	defer s.close()
	svc, err := s.forgetService(c.Context, name, c.Bool("force"), c.Bool("allow-mass-stop"))
	if err != nil {
		return err
	}
	fmt.Fprintf(t.out, "service %s is deleted; its farm stops the pods of %d revisions, waits for their nodes to confirm, then removes the records\n", name, len(svc.Controllers))
	for _, one := range svc.Controllers {
		fmt.Fprintf(t.out, "watch: rcctl pods --rc %s\n", one.RC.ID)
	}
	return nil
}

func (s *conn) forgetService(ctx context.Context, name string, force, massStop bool) (*plan.Service, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, writeLimit, errWriteLimit)
	defer cancel()
	who, err := s.who(ctx)
	if err != nil {
		return nil, err
	}
	for try := 1; ; try++ {
		svc, err := s.service(ctx, name)
		if err != nil {
			return nil, err
		}
		if svc.Rollout != nil {
			return nil, refusedf("service %s: its rollout is %s; end it first: rcctl rollout abort %s; nothing was written", name, svc.Rollout.State, name)
		}
		if effect := svc.InEffect(); effect.Spec.Total() > 0 && !force {
			return nil, refusedf("service %s asks for %s; scale it to 0 first (rcctl scale %s 0) or add --force, nothing was written", name, inspect.Replicas(effect.Spec.Total()), name)
		}
		err = s.ForgetService(ctx, svc, massStop, store.NewAudit(who, "delete-service", svc.Deployed.RC, []string{"service " + name + ": deleted"}))
		if errors.Is(err, store.ErrConflict) && try < maxTries {
			continue
		}
		return svc, s.did("the deletion of service "+name, "rcctl service list", err)
	}
}
