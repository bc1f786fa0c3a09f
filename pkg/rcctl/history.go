package rcctl

import (
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/rcfarm/rcfarm/pkg/deploy/record"
	"github.com/rcfarm/rcfarm/pkg/inspect"
)

func historyCommand() *cli.Command {
	return leaf(&cli.Command{
		Name: "history", Usage: "list what was deployed of a service, and what came of it",
		UsageText: "rcctl history SERVICE [-o table|json|yaml]",
		Description: `The newest first. The one in effect, or on its way, has a star. -o json has the documents.

Examples:
  rcctl history web
  rcctl diff web --to 3       what going back to revision 3 would change
  rcctl rollback web --to 3`,
		Flags:  []cli.Flag{outputFlag()},
		Action: onService(runHistory),
	})
}

func runHistory(c *cli.Context, std *stdio, s *conn, svc *record.Service) error {
	views := make([]inspect.HistoryView, 0, len(svc.History))
	for _, e := range slices.Backward(svc.History) {
		views = append(views, inspect.NewHistoryView(svc, &e))
	}
	tb := table{header: []string{"REVISION", "OUTCOME", "MANIFEST", "REPLICAS", "BY", "AGE", "REASON"}, paint: 1, colourOf: rolloutColour}
	return printList(c, std, s, views, nil, "no revisions", tb, func(v *inspect.HistoryView) []string {
		revision := fmt.Sprint(v.Revision)
		if v.InEffect {
			revision += " *"
		}
		return []string{revision, v.Outcome, inspect.Short(v.Manifest), fmt.Sprint(v.Spec.Total()), v.By, inspect.Age(time.Now(), v.At), fitted(v.Reason, 50)}
	})
}

// entry finds a revision of a service; rev zero is the newest that is done besides the one in effect.
func entry(svc *record.Service, rev int64) (*record.Entry, error) {
	effect := svc.InEffect().Revision
	for _, e := range slices.Backward(svc.History) {
		if rev != 0 && e.Revision == rev {
			return &e, nil
		}
		if rev == 0 && e.Revision != effect && inspect.NewHistoryView(svc, &e).Outcome == "done" {
			return &e, nil
		}
	}
	name := svc.Deployed.Service
	if rev == 0 {
		return nil, refusedf("service %s: no revision besides the one in effect was ever done; name one with --to: rcctl history %s", name, name)
	}
	return nil, notFoundf("service %s has no revision %d in its history; rcctl history %s", name, rev, name)
}

func revisionFlag(usage string) cli.Flag {
	return &cli.StringFlag{Name: "to", Usage: usage}
}

// readRevision reads --to; zero where it is not given.
func readRevision(c *cli.Context) (int64, error) {
	if !c.IsSet("to") {
		return 0, nil
	}
	rev, err := strconv.ParseInt(c.String("to"), 10, 64)
	if err != nil || rev < 1 {
		return 0, badFlag(c, "--to", c.String("to"), "the number of a revision, 1 or more; rcctl history lists them")
	}
	return rev, nil
}
