package rcctl

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/rcfarm/rcfarm/pkg/inspect"
	"github.com/rcfarm/rcfarm/pkg/rollout"
	"github.com/rcfarm/rcfarm/pkg/store"
)

func rolloutStatusCommand() *cli.Command {
	return leaf(&cli.Command{
		Name: "status", Usage: "show a rollout: its stage, its revisions and their pods",
		UsageText: "rcctl rollout status SERVICE [-w] [-o table|json|yaml]",
		Description: `With -w it follows the rollout until that ends, and says how: exit code 0 if it is done, 5 if it failed, was rolled back
or aborted, or if its way back waits for longer than stage_timeout.

Examples:
  rcctl rollout status web
  rcctl rollout status web -w`,
		Flags:  []cli.Flag{outputFlag(), &cli.BoolFlag{Name: "watch", Aliases: []string{"w"}, Usage: "follow it until it ends; exit code 5 where it failed, was rolled back or aborted"}},
		Action: onConn(readRolloutStatus, runRolloutStatus),
	})
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
	if err != nil {
		return err
	}
	if s.Bool("watch") {
		return followRollout(s.Context, s, service, v.ID)
	}
	return s.print(v, nil, func(w io.Writer) error { return writeRollout(w, v, time.Now()) })
}

func writeRollout(w io.Writer, v *inspect.RolloutView, now time.Time) error {
	owner := cmp.Or(v.Owner, "(no farm: one claims it, or none selects its newest revision)")
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

// viewRollout reads a rollout, its revisions and their pods. A service without one is notFoundf.
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

// revisionPods adds what is known of a revision's pods, and the end of the log of one that fails.
func revisionPods(ctx context.Context, s *conn, v *inspect.RolloutView, r *inspect.RevisionView) error {
	rec, err := s.RCs.Get(ctx, store.Default, r.RC)
	if errors.Is(err, store.ErrNotFound) {
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
	worst, says := inspect.Failing(pods, rec.Value.Digests())
	process, wrote := inspect.LastWords(worst, &says)
	if !wrote {
		return nil
	}
	limited, cancel := context.WithTimeout(ctx, lastLimit)
	defer cancel()
	quiet := *s
	quiet.stdio = &stdio{out: io.Discard, err: io.Discard} // what it has to say about a node would be said with each look
	text, err := endOfLog(limited, &quiet, worst, process)
	if err != nil {
		return nil // a log that cannot be shown is no reason to show nothing
	}
	v.Tell(worst, text)
	return nil
}
