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
	return leaf("history SERVICE [-o table|json|yaml]", "list the revisions of a service and their outcomes",
		`The newest revision comes first. A star marks the one that is in effect or being rolled out. Below the table
are the reasons of the newest revision that failed and of the newest that was aborted. -o json has the documents, and
all reasons in full.

Examples:
  rcctl history web
  rcctl diff web --to 3       what going back to revision 3 would change
  rcctl rollback web --to 3`,
		onService(runHistory), outputFlag(),
	)
}

// maxReason bounds a reason in a table, in columns.
const maxReason = 60

func runHistory(s *conn, svc *record.Service) error {
	views := make([]inspect.HistoryView, 0, len(svc.History))
	for _, e := range slices.Backward(svc.History) {
		views = append(views, inspect.NewHistoryView(svc, &e))
	}
	tb := columns("REVISION", "OUTCOME", "MANIFEST", "REPLICAS", "BY", "AGE", "REASON").painted(1, rolloutColour)
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
		is := func(v *inspect.HistoryView) bool { return v.Outcome == string(why.state) }
		if v := field.Find(views, is); v != nil {
			s.printLine("why %d %s: %s", v.Revision, why.text, clean(v.Reason))
		}
	}
	return nil
}

// entry finds a revision; zero: the newest with the outcome done, except the one in effect.
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
		return nil,
			refusedf("service %s: no revision but the one in effect has the outcome done; choose one with --to; "+
				"rcctl history %s lists them", name, name)
	}
	return nil, notFoundf("service %s has no revision %d in its history; rcctl history %s lists them", name, rev, name)
}

func backFlags() []cli.Flag {
	return slices.Concat(
		option("to", "number of the `REVISION` (default: the newest earlier one with the outcome done)"),
		toggle("counts", "go back to the revision's number of replicas, too (default: keep the present number)"),
	)
}

func readRevision(c *cli.Context) (int64, error) {
	if !c.IsSet("to") {
		return 0, nil
	}
	rev, err := strconv.ParseInt(c.String("to"), 10, 64)
	if err != nil || rev < 1 {
		return 0, badOption(c, "to", "the number of a revision, 1 or more; rcctl history lists them")
	}
	return rev, nil
}

func rollbackCommand() *cli.Command {
	return leaf("rollback SERVICE [--to REV] [--counts] [--yes] [--detach | --timeout 5m]",
		"deploy an earlier document of a service again",
		`The result is a new revision with the old document, digests included. It keeps the present number of replicas;
with --counts it takes that of the old document. It is rolled out without canary, gates and delay, in larger steps, and
never below the minimum. To take back a rollout that is under way: rcctl rollout rollback SERVICE.

Examples:
  rcctl rollback web            to the newest earlier revision with the outcome done
  rcctl rollback web --to 3
  rcctl rollback web --counts   with the number of replicas that it had`,
		onConn(readRollback, runRollback),
		backFlags(),
		runFlags(),
	)
}

type wayBack struct {
	service  string
	revision int64 // zero: the newest earlier one with the outcome done
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
			return nil, unwrittenf("service %s: a rollout is under way; take it back: rcctl rollout rollback %s, or "+
				"wait: rcctl rollout status %s -w", name, name, name)
		}
		e, err := entry(svc, to.revision)
		if err != nil {
			return nil, err
		}
		d.planner.Rollback = true
		d.about = fmt.Sprintf("back to the document of revision %d", e.Revision) +
			printable(s.comesBack(s.Context, &e.Spec))
		return goingBackTo(s.flags, svc, e), nil
	})
}

// goingBackTo returns the document of a revision, with the present number of replicas unless --counts is given.
func goingBackTo(c *cli.Context, svc *record.Service, e *record.Entry) *record.ServiceSpec {
	if c.Bool("counts") {
		return &e.Spec
	}
	effect := svc.InEffect()
	return e.Spec.WithCounts(effect.Spec.Groups())
}

func diffCommand() *cli.Command {
	return leaf("diff SERVICE [--to REV] [--counts] | rcctl diff -f FILE",
		"show what differs: between revisions of a service, or between an rc and its document",
		`With a SERVICE: what going back to a revision would change. With -f: what applying the document of an rc would
change; exit code 6 if it would change anything. For the document of a service: rcctl plan -f. Nothing is written.

Examples:
  rcctl diff web                to the newest earlier revision with the outcome done
  rcctl diff web --to 3
  rcctl diff -f rc.yaml`,
		runDiff, fileFlag(),
		backFlags(),
	)
}

func runDiff(c *cli.Context) error {
	if c.String("file") != "" {
		if c.IsSet("to") {
			return badOption(c, "to", "no --to together with --file")
		}
		if c.Bool("counts") {
			return usagef(c, "--counts: not allowed together with --file, because it is for revisions of a SERVICE")
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
	s.printLine("service %s: revision %d -> document of revision %d: %s",
		svc.Deployed.Service, effect.Revision, e.Revision, change.Kind)
	for _, f := range change.Fields {
		s.printLine("  %s  (%s)", clean(forTerminal(f.String())), f.Why)
	}
	return nil
}

// dryRun returns exitChanges if something would change.
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
		s.printLine("rc %s: unchanged", done.rc.Name)
		return nil
	case cur.rc == nil:
		s.printLine("rc %s: would be created", done.rc.Name)
	default:
		s.printLine("rc %s: would change from generation %d to %d", done.rc.Name, cur.rc.Generation, done.rc.Generation)
	}
	for _, line := range done.lines {
		fmt.Fprintln(s.out, "  "+clean(forTerminal(line)))
	}
	s.warnAbout(&done)
	return &codedError{code: exitChanges}
}
