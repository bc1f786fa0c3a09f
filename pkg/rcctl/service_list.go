package rcctl

import (
	"errors"
	"fmt"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/rcfarm/rcfarm/pkg/inspect"
	"github.com/rcfarm/rcfarm/pkg/store"
)

func serviceListCommand() *cli.Command {
	return leaf(&cli.Command{
		Name: "list", Aliases: []string{"ls"}, Usage: "list the services that were deployed",
		UsageText: "rcctl service list [-o table|json|yaml]",
		Description: `Examples:
  rcctl service list
  rcctl service list -o json | jq -r '.[].service'`,
		Flags:  []cli.Flag{outputFlag()},
		Action: onList(runServiceList),
	})
}

func runServiceList(c *cli.Context, std *stdio, s *conn) error {
	names, err := s.Deployments.ListServices(c.Context)
	if err != nil {
		return err
	}
	views, corrupt := []inspect.ServiceView{}, []error{}
	for _, name := range names {
		svc, err := s.Deployments.Service(c.Context, name)
		switch {
		case errors.Is(err, store.ErrNotFound): // deleted meanwhile
		case isCorrupt(err):
			corrupt = append(corrupt, err)
		case err != nil:
			return err
		default:
			views = append(views, inspect.NewServiceView(svc))
		}
	}
	tb := table{header: []string{"SERVICE", "REVISION", "AVAILABLE", "ROLLOUT", "BY", "AGE"}, paint: 3, colourOf: rolloutColour}
	return printList(c, std, s, views, corrupt, "no services; deploy one: rcctl deploy -f web.yaml", tb, func(v *inspect.ServiceView) []string {
		return []string{v.Service, fmt.Sprint(v.Revision), fmt.Sprintf("%d/%d", v.Available, v.Replicas), string(v.Rollout), v.By, inspect.Age(time.Now(), v.At)}
	})
}
