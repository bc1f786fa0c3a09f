package rcctl

import (
	"fmt"

	"github.com/urfave/cli/v2"

	"github.com/rcfarm/rcfarm/pkg/deploy/plan"
	"github.com/rcfarm/rcfarm/pkg/deploy/record"
	"github.com/rcfarm/rcfarm/pkg/rc"
)

func diffCommand() *cli.Command {
	return leaf(&cli.Command{
		Name: "diff", Usage: "show what differs: between revisions of a service, or between an rc and its document",
		UsageText: "rcctl diff SERVICE [--to REV] | rcctl diff -f FILE",
		Description: `With a SERVICE: what going back to a revision would change. With -f: what applying the document of an rc would change; exit code 6 says that
something would. For the document of a service: rcctl plan -f. Nothing is written.

Examples:
  rcctl diff web                to the newest revision before that was done
  rcctl diff web --to 3
  rcctl diff -f rc.yaml`,
		Flags:  []cli.Flag{fileFlag(), revisionFlag("number of the `REVISION` (default: the newest that was done before this one)")},
		Action: runDiff,
	})
}

func runDiff(c *cli.Context) error {
	if c.String("file") != "" {
		if c.IsSet("to") {
			return badFlag(c, "--to", c.String("to"), "nothing, with --file")
		}
		return onConn(readSpec, dryRun)(c)
	}
	rev, err := readRevision(c)
	if err != nil {
		return err
	}
	return onService(func(_ *cli.Context, std *stdio, _ *conn, svc *record.Service) error {
		return diffRevisions(std, svc, rev)
	})(c)
}

func diffRevisions(std *stdio, svc *record.Service, rev int64) error {
	e, err := entry(svc, rev)
	if err != nil {
		return err
	}
	effect := svc.InEffect()
	change := plan.EvalSpecChange(&effect.Spec, &e.Spec)
	fmt.Fprintf(std.out, "service %s: revision %d -> document of revision %d: %s\n", svc.Deployed.Service, effect.Revision, e.Revision, change.Kind)
	for _, f := range change.Fields {
		fmt.Fprintf(std.out, "  %s  (%s)\n", clean(forTerminal(f.String())), f.Why)
	}
	return nil
}

// dryRun shows what applying the document of a controller would change. exitChanges says that something would.
func dryRun(c *cli.Context, std *stdio, s *conn, spec *rc.Spec) error {
	cur, _, err := readCurrent(c.Context, s, spec.Name)
	if err != nil {
		return err
	}
	done, err := computeApply(applyRequest{spec: spec, massStop: c.Bool("allow-mass-stop")}, cur, "")
	switch {
	case err != nil:
		return err
	case done.none:
		fmt.Fprintf(std.out, "rc %s: unchanged\n", done.rc.Name)
		return nil
	case cur.rc == nil:
		fmt.Fprintf(std.out, "rc %s: would be created\n", done.rc.Name)
	default:
		fmt.Fprintf(std.out, "rc %s: would change from generation %d to %d\n", done.rc.Name, cur.rc.Generation, done.rc.Generation)
	}
	for _, line := range done.lines {
		fmt.Fprintln(std.out, "  "+clean(forTerminal(line)))
	}
	return &codedError{code: exitChanges}
}
