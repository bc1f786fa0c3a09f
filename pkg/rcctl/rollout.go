package rcctl

import (
	"fmt"
	"io"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/rcfarm/rcfarm/pkg/inspect"
	"github.com/rcfarm/rcfarm/pkg/rollout"
)

// rolloutCommand groups the commands about rollouts under way.
func (t *tool) rolloutCommand() *cli.Command {
	return &cli.Command{
		Name: "rollout", Usage: "show, pause, resume, promote, abort and roll back rollouts under way",
		UsageText:       "rcctl rollout COMMAND [flags] [arguments]",
		HideHelpCommand: true,
		Action:          t.group,
		OnUsageError:    onUsageError,
		Subcommands: []*cli.Command{
			t.rolloutListCommand(), t.rolloutStatusCommand(),
			t.askCommand(rollout.PauseVerb, "halt a rollout where it is", "Counts stay as they are until it is resumed. Drains and the replacement of lost pods go on."),
			t.askCommand(rollout.ResumeVerb, "let a paused rollout go on", ""),
			t.askCommand(rollout.PromoteVerb, "let a canary, or the new pods of blue-green, take over", "It is refused while the rollout does not wait for it."),
			t.askCommand(rollout.AbortVerb, "end a rollout and leave all counts as they are",
				"Pods of several revisions stay side by side. The next rcctl deploy takes them to one revision."),
			t.askCommand(rollout.RollbackVerb, "take a rollout back", "The pods of the revision before come back, without canary, gates and delay."),
		},
	}
}

func (t *tool) rolloutListCommand() *cli.Command {
	return leaf(&cli.Command{
		Name: "list", Aliases: []string{"ls"}, Usage: "list the rollouts under way",
		UsageText: "rcctl rollout list [-o table|json|yaml]",
		Description: `Examples:
  rcctl rollout list
  rcctl rollout list -o json | jq -r '.[] | select(.state == "paused") | .service'`,
		Flags:  []cli.Flag{outputFlag()},
		Action: t.rolloutList,
	})
}

func (t *tool) rolloutList(c *cli.Context) error {
	out, s, err := t.connectToList(c)
	if err != nil {
		return err
	}
	defer s.close()
	recs, corrupt, err := s.ListRollouts(c.Context)
	if err != nil {
		return err
	}
	views := make([]*inspect.RolloutView, len(recs))
	for i := range recs {
		views[i] = inspect.NewRolloutView(&recs[i].Value)
		if views[i].Runner, err = s.RunnerOf(c.Context, views[i].Service); err != nil {
			return err
		}
	}
	err = t.print(out, views, func(w io.Writer) error {
		if len(views) == 0 {
			_, err := fmt.Fprintln(w, "no rollouts under way")
			return err
		}
		tb := table{header: []string{"SERVICE", "STATE", "STAGE", "STRATEGY", "RUNNER", "AGE", "REASON"}, paint: 1, colourOf: rolloutColour}
		for _, v := range views {
			tb.rows = append(tb.rows, []string{
				v.Service, string(v.State), fmt.Sprintf("%d/%d", v.Stage, v.Stages), v.Strategy, v.Runner, inspect.Age(time.Now(), v.StartedAt), fitted(v.Reason, 40),
			})
		}
		return tb.write(w, coloured(w))
	})
	if err != nil {
		return err
	}
	return t.warn(corrupt)
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

func (t *tool) rolloutStatusCommand() *cli.Command {
	return leaf(&cli.Command{
		Name: "status", Usage: "show a rollout: its stage, its revisions and their pods",
		UsageText: "rcctl rollout status SERVICE [-w] [-o table|json|yaml]",
		Description: `With -w it follows the rollout until that ends, and says how: exit code 0 if it is done, 5 if it failed, was rolled back
or aborted.

Examples:
  rcctl rollout status web
  rcctl rollout status web -w`,
		Flags:  []cli.Flag{outputFlag(), &cli.BoolFlag{Name: "watch", Aliases: []string{"w"}, Usage: "follow it until it ends"}},
		Action: t.rolloutStatus,
	})
}

func (t *tool) rolloutStatus(c *cli.Context) error {
	out, err := format(c)
	if err != nil {
		return err
	}
	service, err := oneService(c)
	if err != nil {
		return err
	}
	if c.Bool("watch") && out != formats[0] {
		return badFlag(c, "--output", out, "table, with --watch")
	}
	s, err := t.connect(c)
	if err != nil {
		return err
	}
	defer s.close()
	v, err := t.rolloutView(c.Context, s, service)
	if err != nil {
		return err
	}
	if c.Bool("watch") {
		return t.followRollout(c.Context, s, service, v.ID)
	}
	return t.print(out, v, func(w io.Writer) error { return writeRollout(w, v, time.Now()) })
}

func writeRollout(w io.Writer, v *inspect.RolloutView, now time.Time) error {
	runner := v.Runner
	if runner == "" {
		runner = "(no farm: one claims it, or none selects all of its revisions)"
	}
	for _, line := range append(v.Lines(now), "by "+v.By+", carried out by "+runner, inspect.Asked(v)) {
		if line != "" {
			fmt.Fprintln(w, clean(line))
		}
	}
	if next := inspect.NextOf(v); next != "" {
		fmt.Fprintln(w, "next: "+next)
	}
	return nil
}

// askCommand is a command that asks the runner of a rollout for something.
func (t *tool) askCommand(verb rollout.Verb, usage, more string) *cli.Command {
	if more != "" {
		more += "\n"
	}
	return leaf(&cli.Command{
		Name: string(verb), Usage: usage,
		UsageText:   fmt.Sprintf("rcctl rollout %s SERVICE", verb),
		Description: fmt.Sprintf("%sThe request is recorded; the farm that carries the rollout out acts on it.\n\nExamples:\n  rcctl rollout %s web\n  rcctl rollout status web -w", more, verb),
		Action:      func(c *cli.Context) error { return t.ask(c, verb) },
	})
}

func (t *tool) ask(c *cli.Context, verb rollout.Verb) error {
	service, err := oneService(c)
	if err != nil {
		return err
	}
	s, err := t.connect(c)
	if err != nil {
		return err
	}
	defer s.close()
	rec, err := s.askRollout(c.Context, service, verb)
	if err != nil {
		return err
	}
	fmt.Fprintf(t.out, "rollout of %s: %s is asked for (rollout %s)\n", service, verb, rec.ID)
	fmt.Fprintf(t.out, "next: rcctl rollout status %s -w\n", service)
	return nil
}
