package rcctl

import (
	"context"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/inspect"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/store"
)

func statusCommand() *cli.Command {
	alarms := field.Each(inspect.Alarms, func(alarm rc.ConditionType) string { return string(alarm) })
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
		Action: runStatus,
	})
}

func runStatus(c *cli.Context) error {
	watch, err := readWatch(c)
	if err != nil {
		return err
	}
	return onRC(func(s *conn, found store.Rec[rc.RC]) error {
		r := &found.Value
		if watch != nil {
			return followRC(s.Context, s, r, *watch)
		}
		o, err := s.observe(s.Context, r.ID)
		if err != nil {
			return err
		}
		view := inspect.NewStatusView(r, o.Status, o.Farms)
		return s.print(view, nil, func(w io.Writer) error {
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

// watching is what a command line says about a watch.
type watching struct {
	until string        // empty: until Ctrl-C
	limit time.Duration // zero: none
}

// readWatch reads the flags of a watch: nil where none is asked for.
func readWatch(c *cli.Context) (*watching, error) {
	if !c.Bool("watch") {
		for _, name := range []string{"until", "timeout"} {
			if c.IsSet(name) {
				return nil, badFlag(c, "--"+name, c.String(name), "together with --watch")
			}
		}
		return nil, nil
	}
	if format := c.String("output"); format != formats[0] {
		return nil, badFlag(c, "--output", format, "table, with --watch")
	}
	w := &watching{until: c.String("until")}
	if c.IsSet("until") && !slices.Contains(inspect.Goals, w.until) {
		return nil, badFlag(c, "--until", w.until, field.Or(inspect.Goals...))
	}
	if !c.IsSet("timeout") {
		return w, nil
	}
	if w.until == "" {
		return nil, badFlag(c, "--timeout", c.String("timeout"), "together with --until")
	}
	var err error
	w.limit, err = timeout(c)
	return w, err
}

// screen shows one state after the other: on a terminal each in the place of the last, elsewhere one line for each.
type screen struct {
	out      io.Writer
	terminal bool
	shown    *inspect.StatusView
	said     string
}

// show shows a state if it differs from the one shown.
func (s *screen) show(v inspect.StatusView, now time.Time) error {
	if s.shown != nil && reflect.DeepEqual(*s.shown, v) {
		return nil
	}
	s.shown = &v
	if s.terminal {
		// Home, and clear from there: what scrolled away stays readable.
		fmt.Fprint(unguarded(s.out), "\x1b[H\x1b[2J")
		fmt.Fprintf(s.out, "rc %s (%s), generation %d, at %s\n", v.Name, v.RCID, v.Generation, now.Format(time.TimeOnly))
		return writeStatus(s.out, v, coloured(s.out), now)
	}
	return s.say(v.Line(), now)
}

// say writes a line that is not the same as the last.
func (s *screen) say(line string, now time.Time) error {
	if line == s.said {
		return nil
	}
	s.said = line
	_, err := fmt.Fprintf(s.out, "%s  %s\n", now.UTC().Format(time.RFC3339), clean(line))
	return err
}

// followRC shows every change of a controller until the watch's goal or ctx ends it. A read that fails is said on standard
// error and tried again.
func followRC(ctx context.Context, s *conn, r *rc.RC, w watching) error {
	outer := ctx
	if w.limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, w.limit, fmt.Errorf("not %s after %s", w.until, w.limit))
		defer cancel()
	}
	sc := screen{out: s.out, terminal: terminal(s.out)}
	for connError := ""; ; {
		o, err := s.observe(ctx, r.ID)
		switch {
		case err != nil && ctx.Err() == nil:
			if err.Error() != connError {
				connError = err.Error()
				fmt.Fprintf(s.err, "rcctl: rc %s: %s\n", r.Name, connError)
			}
		case err == nil && o.RC == nil:
			if err := sc.say("the rc is gone", time.Now()); err != nil || w.until == inspect.Gone {
				return err
			}
			if w.until != "" {
				return refusedf("rc %s was deleted before it was %s", r.Name, w.until)
			}
			return nil
		case err == nil:
			connError = ""
			if err := sc.show(inspect.NewStatusView(o.RC, o.Status, o.Farms), time.Now()); err != nil {
				return err
			}
			if inspect.Reached(w.until, o) {
				return nil
			}
		}
		if err := rest(ctx, pollEvery); err != nil {
			if w.until == "" && outer.Err() != nil {
				return nil // Ctrl-C is how such a watch ends
			}
			seen := "nothing"
			if sc.shown != nil {
				seen = sc.shown.Line()
			}
			return waitEndedf("rc %s: %v; last seen: %s", r.Name, err, seen)
		}
	}
}
