package rcctl

import (
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/rcfarm/rcfarm/pkg/deploy/plan"
	"github.com/rcfarm/rcfarm/pkg/deploy/record"
	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/inspect"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/rollout"
)

func historyCommand() *cli.Command {
	return leaf(&cli.Command{
		Name: "history", Usage: "list what was deployed of a service, and what came of it",
		UsageText: "rcctl history SERVICE [-o table|json|yaml]",
		Description: `The newest first. The one in effect, or on its way, has a star. Below the table stands why the newest
revision that failed did so, and why the newest that was aborted was. -o json has the documents, and all
reasons in full.

Examples:
  rcctl history web
  rcctl diff web --to 3       what going back to revision 3 would change
  rcctl rollback web --to 3`,
		Flags:  []cli.Flag{outputFlag()},
		Action: onService(runHistory),
	})
}

// maxReason bounds a reason in a table, in columns.
const maxReason = 60

func runHistory(s *conn, svc *record.Service) error {
	views := make([]inspect.HistoryView, 0, len(svc.History))
	for _, e := range slices.Backward(svc.History) {
		views = append(views, inspect.NewHistoryView(svc, &e))
	}
	tb := table{header: []string{"REVISION", "OUTCOME", "MANIFEST", "REPLICAS", "BY", "AGE", "REASON"}, paint: 1, colourOf: rolloutColour}
	err := printList(s, views, nil, "no revisions", tb, func(v *inspect.HistoryView) []string {
		revision := fmt.Sprint(v.Revision)
		if v.InEffect {
			revision += " *"
		}
		return []string{
			revision, v.Outcome, inspect.Short(v.Manifest), fmt.Sprint(v.Spec.Total()), v.By,
			inspect.Age(time.Now(), v.At), excerpt(v.Reason, maxReason),
		}
	})
	if err != nil || s.String("output") != formats[0] {
		return err
	}
	for _, why := range []struct {
		state rollout.State
		text  string
	}{{rollout.Failed, "failed"}, {rollout.Aborted, "was aborted"}} {
		if v := field.Find(views, func(v *inspect.HistoryView) bool { return v.Outcome == string(why.state) }); v != nil {
			fmt.Fprintf(s.out, "why %d %s: %s\n", v.Revision, why.text, clean(v.Reason))
		}
	}
	return nil
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

func rollbackCommand() *cli.Command {
	return leaf(&cli.Command{
		Name: "rollback", Usage: "deploy an earlier document of a service again",
		UsageText: "rcctl rollback SERVICE [--to REV] [--counts] [--yes] [--detach | --timeout 5m]",
		Description: `What comes of it is a new revision with the old document, digests included. The present number of replicas stays; --counts takes
the old document's. The revision is rolled out without canary, gates and delay, in larger steps, and never below the minimum.
To take back a rollout that is under way: rcctl rollout rollback SERVICE.

Examples:
  rcctl rollback web            to the newest revision before that was done
  rcctl rollback web --to 3
  rcctl rollback web --counts   with the number of replicas that it had`,
		Flags:  append([]cli.Flag{revisionFlag("number of the `REVISION` (default: the newest that was done before this one)"), countsFlag()}, runFlags()...),
		Action: onConn(readRollback, runRollback),
	})
}

// wayBack is what a command line says about going back.
type wayBack struct {
	service  string
	revision int64 // zero: the newest before that was done
}

func readRollback(c *cli.Context) (to wayBack, err error) {
	if to.revision, err = readRevision(c); err == nil {
		to.service, err = serviceName.only(c)
	}
	if err == nil {
		err = mayRun(c)
	}
	return to, err
}

func runRollback(s *conn, to wayBack) error {
	return redeploy(s, to.service, "rollback", func(svc *record.Service, d *deployer) (*record.ServiceSpec, error) {
		if name := to.service; svc.Rollout != nil {
			return nil, refusedf("service %s: a rollout is under way; take it back: rcctl rollout rollback %s, or wait: rcctl rollout status %s -w; nothing was written", name, name, name)
		}
		e, err := entry(svc, to.revision)
		if err != nil {
			return nil, err
		}
		d.rolling.Rollback = true
		d.about = fmt.Sprintf("back to the document of revision %d", e.Revision) + clean(s.comesBack(s.Context, &e.Spec))
		return goingBackTo(s.flags, svc, e), nil
	})
}

// goingBackTo returns the document that going back to a revision deploys: the revision's, with the present counts
// unless --counts.
func goingBackTo(c *cli.Context, svc *record.Service, e *record.Entry) *record.ServiceSpec {
	if c.Bool("counts") {
		return &e.Spec
	}
	effect := svc.InEffect()
	return e.Spec.WithCounts(effect.Spec.Groups())
}

func countsFlag() cli.Flag {
	return &cli.BoolFlag{Name: "counts", Usage: "go back to the revision's number of replicas, too (default: the present number stays)"}
}

func diffCommand() *cli.Command {
	return leaf(&cli.Command{
		Name: "diff", Usage: "show what differs: between revisions of a service, or between an rc and its document",
		UsageText: "rcctl diff SERVICE [--to REV] [--counts] | rcctl diff -f FILE",
		Description: `With a SERVICE: what going back to a revision would change. With -f: what applying the document of an rc would change; exit code 6 says that
something would. For the document of a service: rcctl plan -f. Nothing is written.

Examples:
  rcctl diff web                to the newest revision before that was done
  rcctl diff web --to 3
  rcctl diff -f rc.yaml`,
		Flags:  []cli.Flag{fileFlag(), revisionFlag("number of the `REVISION` (default: the newest that was done before this one)"), countsFlag()},
		Action: runDiff,
	})
}

func runDiff(c *cli.Context) error {
	if c.String("file") != "" {
		if c.IsSet("to") {
			return badFlag(c, "--to", c.String("to"), "nothing, with --file")
		}
		if c.Bool("counts") {
			return usagef(c, "--counts is about revisions of a SERVICE; leave it out with --file")
		}
		return onConn(readSpec, dryRun)(c)
	}
	rev, err := readRevision(c)
	if err != nil {
		return err
	}
	return onService(func(s *conn, svc *record.Service) error { return diffRevisions(s, svc, rev) })(c)
}

func diffRevisions(s *conn, svc *record.Service, rev int64) error {
	e, err := entry(svc, rev)
	if err != nil {
		return err
	}
	effect := svc.InEffect()
	change := plan.EvalSpecChange(&effect.Spec, goingBackTo(s.flags, svc, e))
	fmt.Fprintf(s.out, "service %s: revision %d -> document of revision %d: %s\n", svc.Deployed.Service, effect.Revision, e.Revision, change.Kind)
	for _, f := range change.Fields {
		fmt.Fprintf(s.out, "  %s  (%s)\n", clean(forTerminal(f.String())), f.Why)
	}
	return nil
}

// dryRun shows what applying the document of a controller would change. exitChanges says that something would.
func dryRun(s *conn, spec *rc.Spec) error {
	s.warnOf(spec.Pod)
	cur, _, err := readCurrent(s.Context, s, spec.Name)
	if err != nil {
		return err
	}
	digests, _, err := rc.Manifests(spec.Pod, spec.ReplicaGroups)
	if err != nil {
		return err
	}
	if err := cur.readStored(s.Context, s, digests); err != nil {
		return err
	}
	done, err := computeApply(applyRequest{spec: spec, massStop: s.Bool("allow-mass-stop")}, cur, "")
	switch {
	case err != nil:
		return err
	case done.none:
		fmt.Fprintf(s.out, "rc %s: unchanged\n", done.rc.Name)
		return nil
	case cur.rc == nil:
		fmt.Fprintf(s.out, "rc %s: would be created\n", done.rc.Name)
	default:
		fmt.Fprintf(s.out, "rc %s: would change from generation %d to %d\n", done.rc.Name, cur.rc.Generation, done.rc.Generation)
	}
	for _, line := range done.lines {
		fmt.Fprintln(s.out, "  "+clean(forTerminal(line)))
	}
	return &codedError{code: exitChanges}
}
