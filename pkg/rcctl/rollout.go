package rcctl

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/rcfarm/rcfarm/pkg/inspect"
	"github.com/rcfarm/rcfarm/pkg/rollout"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// rolloutCommand groups the commands about rollouts under way.
func rolloutCommand() *cli.Command {
	return group("rollout", "show, pause, resume, promote, abort and roll back rollouts under way",
		rolloutListCommand(), rolloutStatusCommand(),
		askCommand(rollout.PauseVerb, "halt a rollout where it is", "Counts stay as they are until it is resumed. Drains and the replacement of lost pods go on."),
		askCommand(rollout.ResumeVerb, "let a paused rollout go on", ""),
		askCommand(rollout.PromoteVerb, "let a canary, or the new pods of blue-green, take over",
			"It is refused while the rollout does not wait for it, and while a new pod is not available.",
			&cli.BoolFlag{Name: "force", Usage: "also where new pods are not available, which have stage_timeout to become so"}),
		askCommand(rollout.AbortVerb, "end a rollout and leave all counts as they are",
			"Pods of several revisions stay side by side. The next rcctl deploy takes them to one revision."),
		askCommand(rollout.RollbackVerb, "take a rollout back", "The pods of the revision before come back, without canary, gates and delay."),
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

// askRollout leaves a request in a rollout's record, and returns the rollout as it was.
func askRollout(ctx context.Context, s *conn, service string, q rollout.Request) (r *rollout.Record, err error) {
	verb := q.Verb
	err = s.writing(ctx, 1, func(ctx context.Context, by string) error {
		if r, err = s.rollout(ctx, service); err != nil {
			return err
		}
		if why := inspect.WhyNot(r, &q); why != "" {
			return refusedf("rollout of %s cannot be asked to %s, because %s; it is %s, nothing was written",
				service, verb, why, r.State)
		}
		rcID := ""
		if up := r.Upward(); up != nil {
			rcID = up.RC
		}
		q.By, q.At = by, time.Now().UTC()
		err = s.Operator.AskRollout(ctx, store.RolloutAsk{
			Service: service, ID: r.ID, Request: q,
			Audit: store.NewAudit(by, "rollout-"+string(verb), rcID, []string{fmt.Sprintf("service %s: rollout %s: %s", service, r.ID, verb)}),
		})
		switch {
		case errors.Is(err, store.ErrAsked):
			return refusedf("rollout of %s: %v; see rcctl rollout status %s, then ask again; nothing was written", service, err, service)
		case errors.Is(err, store.ErrNotFound):
			return noRollout(ctx, s, service)
		}
		return s.did("the request to "+string(verb)+" the rollout of "+service, "rcctl rollout status "+service, err)
	})
	return r, err
}

// rollout reads the rollout of a service, which must be under way.
func (s *conn) rollout(ctx context.Context, service string) (*rollout.Record, error) {
	rec, err := s.Deployments.RolloutOf(ctx, service)
	if errors.Is(err, store.ErrNotFound) {
		return nil, noRollout(ctx, s, service)
	}
	return &rec.Value, err
}

// noRollout says that a service has no rollout under way, or that there is no such service.
func noRollout(ctx context.Context, s *conn, service string) error {
	if _, err := s.service(ctx, service); err != nil {
		return err
	}
	return notFoundf("service %s has no rollout under way; rcctl history %s shows those that ended", service, service)
}

// askCommand is a command that asks the owner of a service for something about its rollout.
func askCommand(verb rollout.Verb, usage, more string, flags ...cli.Flag) *cli.Command {
	if more != "" {
		more += "\n"
	}
	args := "SERVICE"
	for _, f := range flags {
		args += " [--" + f.Names()[0] + "]"
	}
	return leaf(&cli.Command{
		Name: string(verb), Usage: usage,
		UsageText:   fmt.Sprintf("rcctl rollout %s %s", verb, args),
		Description: fmt.Sprintf("%sThe request is recorded; the farm that carries the rollout out acts on it.\n\nExamples:\n  rcctl rollout %s web\n  rcctl rollout status web -w", more, verb),
		Flags:       flags,
		Action: onConn(serviceName.only, func(s *conn, service string) error {
			rec, err := askRollout(s.Context, s, service, rollout.Request{Verb: verb, Force: s.Bool("force")})
			if err != nil {
				return err
			}
			fmt.Fprintf(s.out, "rollout of %s: %s is asked for (rollout %s)\n", service, verb, rec.ID)
			fmt.Fprintf(s.out, "next: rcctl rollout status %s -w\n", service)
			return nil
		}),
	})
}

func rolloutListCommand() *cli.Command {
	return leaf(&cli.Command{
		Name: "list", Aliases: []string{"ls"}, Usage: "list the rollouts under way",
		UsageText: "rcctl rollout list [-o table|json|yaml]",
		Description: `Examples:
  rcctl rollout list
  rcctl rollout list -o json | jq -r '.[] | select(.state == "paused") | .service'`,
		Flags:  []cli.Flag{outputFlag()},
		Action: onList(runRolloutList),
	})
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
	tb := table{header: []string{"SERVICE", "STATE", "STAGE", "STRATEGY", "OWNER", "AGE", "REASON"}, paint: 1, colourOf: rolloutColour}
	return printList(s, views, corrupt, "no rollouts under way", tb, func(v *inspect.RolloutView) []string {
		return []string{
			v.Service, string(v.State), fmt.Sprintf("%d/%d", v.Stage, v.Stages), v.Strategy, v.Owner,
			inspect.Age(time.Now(), v.StartedAt), excerpt(v.Reason, maxReason),
		}
	})
}
