package rcctl

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/rcfarm/rcfarm/pkg/deploy/record"
	"github.com/rcfarm/rcfarm/pkg/inspect"
	"github.com/rcfarm/rcfarm/pkg/rollout"
	"github.com/rcfarm/rcfarm/pkg/store"
)

func rolloutCommand() *cli.Command {
	return group("rollout", "show, pause, resume, promote, abort and roll back rollouts under way",
		rolloutListCommand(), rolloutStatusCommand(),
		askCommand(rollout.PauseVerb, "halt a rollout where it is",
			"Counts do not change until it is resumed. Drains and the replacement of lost pods go on."),
		askCommand(rollout.ResumeVerb, "let a paused rollout go on", ""),
		askCommand(rollout.PromoteVerb, "let a canary, or the new pods of blue-green, take over",
			"It is refused unless the rollout waits for it and all new pods are available.",
			toggle("force", "although new pods are not available; they have stage_timeout to become available")),
		askCommand(rollout.AbortVerb, "end a rollout and leave all counts as they are",
			"Pods of several revisions run side by side then. The next rcctl deploy takes them to one revision."),
		askCommand(rollout.RollbackVerb, "take a rollout back",
			"The pods of the previous revision come back, without canary, gates and delay."),
	)
}

func rolloutColour(state string) colour {
	switch rollout.State(state) {
	case rollout.Done, rollout.Progressing:
		return green
	case rollout.Paused, rollout.WaitingForPromote, rollout.Aborted:
		return yellow
	default:
		return red
	}
}

func askRollout(ctx context.Context, s *conn, service string, q rollout.Request) (r *rollout.Record, err error) {
	verb := q.Verb
	err = s.writing(ctx, 1, func(ctx context.Context, by string) error {
		if r, err = s.rollout(ctx, service); err != nil {
			return err
		}
		if why := inspect.WhyNot(r, &q); why != "" {
			return unwrittenf("rollout of %s: %s is refused, because %s; the rollout is %s",
				service, verb, why, r.State)
		}
		rcID := ""
		if up := r.Upward(); up != nil {
			rcID = up.RC
		}
		q.By, q.At = by, time.Now().UTC()
		err = s.Operator.AskRollout(ctx, store.RolloutAsk{
			Service: service, ID: r.ID, Request: q,
			Audit: store.NewAudit(by, "rollout-"+string(verb), rcID,
				[]string{fmt.Sprintf("service %s: rollout %s: %s", service, r.ID, verb)}),
		})
		switch {
		case errors.Is(err, store.ErrAsked):
			return unwrittenf("rollout of %s: %v; see rcctl rollout status %s, then repeat the command",
				service, err, service)
		case isMissing(err):
			return noRollout(ctx, s, service)
		}
		return s.did("the request to "+string(verb)+" the rollout of "+service, "rcctl rollout status "+service, err)
	})
	return r, err
}

func (s *conn) rollout(ctx context.Context, service string) (*rollout.Record, error) {
	rec, err := s.Deployments.RolloutOf(ctx, service)
	if isMissing(err) {
		return nil, noRollout(ctx, s, service)
	}
	return &rec.Value, err
}

func noRollout(ctx context.Context, s *conn, service string) error {
	if _, err := s.service(ctx, service); err != nil {
		return err
	}
	return notFoundf("service %s has no rollout under way; rcctl history %s shows those that ended", service, service)
}

func askCommand(verb rollout.Verb, usage, more string, flags ...[]cli.Flag) *cli.Command {
	if more != "" {
		more += "\n"
	}
	synopsis := string(verb) + " SERVICE"
	for _, f := range flags {
		synopsis += " [--" + f[0].Names()[0] + "]"
	}
	return leaf(synopsis, usage,
		fmt.Sprintf("%sThis writes a request; the farm that carries out the rollout acts on it.\n\nExamples:\n"+
			"  rcctl rollout %s web\n  rcctl rollout status web -w", more, verb),
		onConn(serviceName.only, func(s *conn, service string) error {
			rec, err := askRollout(s.Context, s, service, rollout.Request{Verb: verb, Force: s.Bool("force")})
			if err != nil {
				return err
			}
			s.printLine("rollout of %s: %s is requested (rollout %s)", service, verb, rec.ID)
			s.printLine("next: rcctl rollout status %s -w", service)
			return nil
		}),
		flags...,
	)
}

func rolloutListCommand() *cli.Command {
	return leaf("list [-o table|json|yaml]", "list the rollouts under way",
		`Examples:
  rcctl rollout list
  rcctl rollout list -o json | jq -r '.[] | select(.state == "paused") | .service'`,
		onList(runRolloutList), outputFlag(),
	)
}

func runRolloutList(s *conn) error {
	recs, corrupt, err := s.Deployments.ListRollouts(s.Context)
	if err != nil {
		return err
	}
	views := make([]inspect.RolloutView, len(recs))
	for i := range recs {
		views[i] = *inspect.NewRolloutView(&recs[i].Value)
		if views[i].Owner, err = s.Deployments.OwnerOf(s.Context, recs[i].Value.Unit()); err != nil {
			return err
		}
	}
	tb := columns("SERVICE", "STATE", "STAGE", "STRATEGY", "OWNER", "AGE", "REASON").painted(1, rolloutColour)
	return printList(s, views, corrupt, "no rollouts under way", tb, func(v *inspect.RolloutView) []string {
		return []string{
			v.Service, string(v.State), fmt.Sprintf("%d/%d", v.Stage, v.Stages), v.Strategy, v.Owner,
			inspect.Age(time.Now(), v.StartedAt), excerpt(v.Reason, maxReason),
		}
	})
}

func rolloutStatusCommand() *cli.Command {
	return leaf("status SERVICE [-w] [-o table|json|yaml]", "show a rollout: its stage, its revisions and their pods",
		`With -w it follows the rollout until it ends; if none is under way, it shows how the last one ended. Exit code 0:
it is done. Exit code 5: it failed, was rolled back or aborted, or its rollback waits for longer than stage_timeout.

Examples:
  rcctl rollout status web
  rcctl rollout status web -w`,
		onConn(readRolloutStatus, runRolloutStatus), outputFlag(),
		toggle("watch/w", "follow it until it ends; exit code 5 if it failed, was rolled back or aborted"),
	)
}

func readRolloutStatus(c *cli.Context) (service string, err error) {
	service, err = serviceName.only(c)
	if out := c.String("output"); err == nil && c.Bool("watch") && out != formats[0] {
		err = badFlag(c, "--output", out, "table, with --watch")
	}
	return service, err
}

func runRolloutStatus(s *conn, service string) error {
	v, err := viewRollout(s.Context, s, service)
	if isMissing(err) && s.Bool("watch") {
		if last := s.lastRollout(service); last != nil {
			s.note("no rollout is under way; the last one, to revision %d, ended at %s",
				last.Revision, inspect.At(*last.EndedAt))
			return followRollout(s.Context, s, service, last.Rollout)
		}
	}
	if err != nil {
		return err
	}
	if s.Bool("watch") {
		return followRollout(s.Context, s, service, v.ID)
	}
	return s.print(v, nil, func(w io.Writer) error { return writeRollout(w, v, time.Now()) })
}

// lastRollout returns the newest revision whose rollout has ended, nil if there is none or it cannot be read.
func (s *conn) lastRollout(service string) (last *record.Entry) {
	svc, err := s.service(s.Context, service)
	if err != nil {
		return nil
	}
	for i := range svc.History {
		e := &svc.History[i]
		if e.Rollout != "" && e.EndedAt != nil && (last == nil || e.Revision > last.Revision) {
			last = e
		}
	}
	return last
}

func writeRollout(w io.Writer, v *inspect.RolloutView, now time.Time) error {
	owner := cmp.Or(v.Owner, "(no farm yet: one will claim it, or no farm selects its newest revision)")
	for _, line := range append(v.Lines(now, 0, 0), "by "+v.By+", carried out by "+owner, inspect.Asked(v)) {
		if line != "" {
			fmt.Fprintln(w, clean(line))
		}
	}
	if next := inspect.NextOf(v); next != "" {
		fmt.Fprintln(w, "next: "+next)
	}
	return nil
}

// viewRollout returns notFoundf if the service has no rollout.
func viewRollout(ctx context.Context, s *conn, service string) (*inspect.RolloutView, error) {
	r, err := s.rollout(ctx, service)
	if err != nil {
		return nil, err
	}
	v := inspect.NewRolloutView(r)
	if v.Owner, err = s.Deployments.OwnerOf(ctx, r.Unit()); err != nil {
		return nil, err
	}
	for i := range v.Revisions {
		if err := revisionPods(ctx, s, v, &v.Revisions[i]); err != nil {
			return nil, err
		}
	}
	return v, nil
}

// revisionPods also adds the end of the log of a failing pod.
func revisionPods(ctx context.Context, s *conn, v *inspect.RolloutView, r *inspect.RevisionView) error {
	rec, err := s.RCs.Get(ctx, store.Default, r.RC)
	if isMissing(err) {
		return nil
	}
	if err != nil {
		return err
	}
	pods, _, err := s.podsOf(ctx, r.RC)
	if err != nil {
		return err
	}
	r.Count(&rec.Value, pods)
	if r.Direction != rollout.Up {
		return nil
	}
	worst, reality := inspect.Failing(pods, rec.Value.Digests())
	process, wrote := inspect.LastWords(worst, &reality)
	if !wrote {
		return nil
	}
	limited, cancel := context.WithTimeout(ctx, lastLimit)
	defer cancel()
	quiet := *s
	// else each read would print the same notes about a node
	quiet.stdio = &stdio{out: io.Discard, err: io.Discard}
	text, err := endOfLog(limited, &quiet, worst, process)
	if err != nil {
		return nil // the rollout can be shown without the log
	}
	v.AddLog(worst, text)
	return nil
}
