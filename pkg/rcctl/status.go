package rcctl

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/inspect"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/store"
)

func statusCommand() *cli.Command {
	alarms := field.Each(inspect.Alarms[:], func(alarm rc.ConditionType) string { return string(alarm) })
	return leaf(&cli.Command{
		Name: "status", Usage: "show how far an rc is, and what is in its way",
		UsageText: "rcctl rc status REF [-o table|json|yaml] [--watch [--until CONDITION [--timeout TIME]]]",
		Description: `Shows what the owner farm reports: counts, conditions with their reasons, the last error. The state is one of
Converged, Progressing, Pending (the farm has not seen the newest generation), Unclaimed (no farm works on it),
Disabled, Deleting, or the first condition that is in the way:
` + strings.Join(alarms, ", ") + `.

Examples:
  rcctl rc status web
  rcctl rc status web -o json | jq .available
  rcctl rc status web --watch
  rcctl rc status web --watch --until Converged --timeout 10m`,
		Flags: []cli.Flag{
			outputFlag(),
			&cli.BoolFlag{Name: "watch", Aliases: []string{"w"}, Usage: "follow it until Ctrl-C; one line per change where the output is no terminal"},
			&cli.StringFlag{Name: "until", Usage: "with --watch: end when this `CONDITION` is true, such as Converged, or Gone"},
			&cli.StringFlag{Name: "timeout", Usage: "with --until: `TIME` after which it gives up, with exit code 5 (default: never)"},
		},
		Action: offline(runStatus),
	})
}

func runStatus(c *cli.Context, _ *stdio) error {
	watch, err := readWatch(c)
	if err != nil {
		return err
	}
	return onRC(func(c *cli.Context, std *stdio, s *conn, found store.Rec[rc.RC]) error {
		r := &found.Value
		if watch != nil {
			return followRC(c.Context, std, s, r, *watch)
		}
		o, err := s.observe(c.Context, r.ID)
		if err != nil {
			return err
		}
		view := inspect.NewStatusView(r, o.Status, o.Farms)
		return std.print(c, view, nil, func(w io.Writer) error {
			fmt.Fprintf(w, "rc %s (%s), generation %d\n", view.Name, view.RCID, view.Generation)
			return writeStatus(w, view, coloured(w), time.Now())
		})
	})(c)
}

// writeStatus prints the state, the counts and the conditions.
func writeStatus(w io.Writer, v inspect.StatusView, colours bool, now time.Time) error {
	state := v.State
	if colours {
		state = string(rcColour(state)) + state + string(plainColour)
	}
	fmt.Fprintf(w, "State: %s\n", state)
	if v.ObservedGeneration == 0 {
		fmt.Fprintln(w, "No farm has reported on it yet.")
	} else {
		fmt.Fprintf(w, "Pods: %d desired, %d placed, %d available, %d stopping, %d lost, %d unmanaged\n",
			v.Desired, v.Placed, v.Available, v.Stopping, v.Lost, v.Unmanaged)
		fmt.Fprintf(w, "Owner: farm %s, has seen generation %d\n", clean(v.Owner), v.ObservedGeneration)
	}
	if v.LastError != "" {
		fmt.Fprintf(w, "Last error: %s\n", clean(v.LastError))
	}
	if len(v.Conditions) == 0 {
		return nil
	}
	fmt.Fprintln(w)
	tb := table{header: []string{"CONDITION", "TRUE", "SINCE", "REASON"}, paint: -1}
	for _, cond := range v.Conditions {
		tb.rows = append(tb.rows, []string{string(cond.Type), yesNo(cond.True), inspect.Age(now, cond.Since), cond.Reason})
	}
	return tb.write(w, colours)
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}
