package rcctl

import (
	"context"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/rcfarm/rcfarm/pkg/rc"
)

func watchFlags() []cli.Flag {
	return []cli.Flag{
		&cli.BoolFlag{Name: "watch", Aliases: []string{"w"}, Usage: "follow it until Ctrl-C; one line per change where the output is no terminal"},
		&cli.StringFlag{Name: "until", Usage: "with --watch: end when this `CONDITION` is true, such as Converged, or Gone"},
		&cli.StringFlag{Name: "timeout", Usage: "with --until: `TIME` after which it gives up (exit code 5; default: never)"},
	}
}

// untilGone is the goal of a watch that ends with the controller.
const untilGone = "Gone"

// untilAllowed are the goals of a watch.
var untilAllowed = []string{
	string(rc.Converged), untilGone, string(rc.Blocked), string(rc.BooksDiffer), string(rc.BreakerTripped), string(rc.CrashLooping), string(rc.Holding), string(rc.InsufficientNodes), string(rc.Misplaced), string(rc.NodeLost),
	string(rc.Regressed), string(rc.RequestVoid), string(rc.RolloutGone), string(rc.Unclaimed), string(rc.Unreadable), string(rc.WaitsForService),
}

// watching is what a command line says about a watch.
type watching struct {
	until string        // empty: until Ctrl-C
	limit time.Duration // zero: none
}

// readWatch reads the flags of a watch. ok is false where none is asked for.
func readWatch(c *cli.Context, format string) (w watching, ok bool, err error) {
	if !c.Bool("watch") {
		for _, name := range []string{"until", "timeout"} {
			if c.IsSet(name) {
				return w, false, badFlag(c, "--"+name, c.String(name), "together with --watch")
			}
		}
		return w, false, nil
	}
	if format != formats[0] {
		return w, false, badFlag(c, "--output", format, "table, with --watch")
	}
	w.until = c.String("until")
	if c.IsSet("until") && !slices.Contains(untilAllowed, w.until) {
		return w, false, badFlag(c, "--until", w.until, list(untilAllowed))
	}
	if c.IsSet("timeout") {
		if w.until == "" {
			return w, false, badFlag(c, "--timeout", c.String("timeout"), "together with --until")
		}
		w.limit, err = timeout(c)
	}
	return w, true, err
}

// screen shows one state after the other: on a terminal each in the place of the last, elsewhere one line for each.
type screen struct {
	out      io.Writer
	terminal bool
	shown    *StatusView
	said     string
}

// show shows a state if it differs from the one shown.
func (s *screen) show(v StatusView, now time.Time) error {
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
	return s.say(v.line(), now)
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

// line sums a status up.
func (v *StatusView) line() string {
	parts := []string{fmt.Sprintf("%s: generation %d of %d, %d desired, %d placed, %d available", v.State, v.ObservedGeneration, v.Generation, v.Desired, v.Placed, v.Available)}
	for _, n := range []struct {
		count int
		what  string
	}{{v.Stopping, "stopping"}, {v.Lost, "lost"}, {v.Unmanaged, "unmanaged"}} {
		if n.count > 0 {
			parts[0] += fmt.Sprintf(", %d %s", n.count, n.what)
		}
	}
	for _, c := range v.Conditions {
		if c.Type == rc.Converged && !c.True || c.Type != rc.Converged && c.True {
			parts = append(parts, fmt.Sprintf("%s: %s", conditionName(c), c.Reason))
		}
	}
	if v.LastError != "" {
		parts = append(parts, "error: "+v.LastError)
	}
	return strings.Join(parts, "; ")
}

func conditionName(c rc.Condition) string {
	if !c.True {
		return "not " + string(c.Type)
	}
	return string(c.Type)
}

// reached reports whether a watch has come to its end.
func (w watching) reached(o observation) bool {
	switch {
	case w.until == "" || o.rc == nil:
		return w.until == untilGone
	case w.until == string(rc.Unclaimed):
		return unclaimed(o.rc, o.farms)
	case w.until == untilGone:
		return false
	default:
		return o.status != nil && o.status.ObservedGeneration >= o.rc.Generation && o.status.Is(rc.ConditionType(w.until))
	}
}

// follow shows every change of a controller until the watch's goal or ctx ends it. A read that fails is said on standard
// error and tried again.
func (t *tool) follow(ctx context.Context, s *conn, r *rc.RC, w watching) error {
	outer := ctx
	if w.limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, w.limit, fmt.Errorf("not %s after %s", w.until, w.limit))
		defer cancel()
	}
	sc := screen{out: t.out, terminal: terminal(t.out)}
	for trouble := ""; ; {
		o, err := s.observe(ctx, r.ID)
		switch {
		case err != nil && ctx.Err() == nil:
			if err.Error() != trouble {
				trouble = err.Error()
				fmt.Fprintf(t.err, "rcctl: rc %s: %s\n", r.Name, trouble)
			}
		case err == nil && o.rc == nil:
			if err := sc.say("the rc is gone", time.Now()); err != nil || w.until == untilGone {
				return err
			}
			return refusedIf(w.until != "", "rc %s was deleted before it was %s", r.Name, w.until)
		case err == nil:
			trouble = ""
			if err := sc.show(newStatusView(o.rc, o.status, o.farms), time.Now()); err != nil {
				return err
			}
			if w.reached(o) {
				return nil
			}
		}
		if err := rest(ctx, pollEvery); err != nil {
			if w.until == "" && outer.Err() != nil {
				return nil // Ctrl-C is how such a watch ends
			}
			if errors.Is(err, context.Canceled) {
				err = errors.New("interrupted")
			}
			return &waitError{text: fmt.Sprintf("rc %s: %v; last seen: %s", r.Name, err, lastSeen(sc.shown))}
		}
	}
}

func lastSeen(v *StatusView) string {
	if v == nil {
		return "nothing"
	}
	return v.line()
}

// refusedIf returns a *refusedError if the condition holds.
func refusedIf(is bool, format string, args ...any) error {
	if !is {
		return nil
	}
	return refusedf(format, args...)
}
