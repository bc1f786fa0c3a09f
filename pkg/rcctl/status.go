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

	"github.com/rcfarm/rcfarm/pkg/deploy"
	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/inspect"
	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/store"
)

func statusCommand() *cli.Command {
	alarms := field.Each(inspect.Alarms, func(alarm rc.ConditionType) string { return string(alarm) })
	return leaf("status REF [-o table|json|yaml] [--watch [--until CONDITION [--timeout TIME]]]",
		"show whether an rc has converged, and what prevents it",
		`Shows the report of the owner: counts, conditions with their reasons, the last error. The state is one of
Converged, Progressing, Pending (the farm has not seen the newest generation), Unclaimed (no farm works on it),
Disabled, Deleting, or the first condition that prevents convergence:
`+strings.Join(alarms, ", ")+`.

Examples:
  rcctl rc status web
  rcctl rc status web -o json | jq .available
  rcctl rc status web --watch
  rcctl rc status web --watch --until Converged --timeout 10m`,
		runStatus, outputFlag(),
		toggle("watch/w", "follow it until Ctrl-C; one line per change if the output is no terminal"),
		option("until", "with --watch: end when this `CONDITION` is true, such as Converged, or Gone"),
		option("timeout", "with --until: `TIME` after which it ends, with exit code 5 (default: never)"),
	)
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
	tb := columns("CONDITION", "TRUE", "SINCE", "REASON")
	for _, cond := range v.Conditions {
		tb.add(string(cond.Type), yesNo(cond.True), inspect.Age(now, cond.Since), cond.Reason)
	}
	return tb.write(w, colours)
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

type watching struct {
	until string        // empty: until Ctrl-C
	limit time.Duration // zero: none
}

// readWatch returns nil without --watch.
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
		return nil, badOption(c, "timeout", "together with --until")
	}
	var err error
	w.limit, err = timeout(c)
	return w, err
}

// screen shows the states of a controller. On a terminal each replaces the last one.
type screen struct {
	out      io.Writer
	terminal bool
	shown    *inspect.StatusView
	lastLine string
}

func (s *screen) show(v inspect.StatusView, now time.Time) error {
	if s.shown != nil && reflect.DeepEqual(*s.shown, v) {
		return nil
	}
	s.shown = &v
	if s.terminal {
		// Cursor home, and clear from there: lines that have scrolled away stay.
		fmt.Fprint(unguarded(s.out), "\x1b[H\x1b[2J")
		fmt.Fprintf(s.out, "rc %s (%s), generation %d, at %s\n",
			v.Name, v.RCID, v.Generation, now.Format(time.TimeOnly))
		return writeStatus(s.out, v, coloured(s.out), now)
	}
	return s.line(v.Line(), now)
}

func (s *screen) line(line string, now time.Time) error {
	if line == s.lastLine {
		return nil
	}
	s.lastLine = line
	_, err := fmt.Fprintf(s.out, "%s  %s\n", inspect.At(now), clean(line))
	return err
}

// followRC ends when the watch's goal is reached or ctx ends. After a failed read it tries again.
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
				s.note("rc %s: %s", r.Name, connError)
			}
		case err == nil && o.RC == nil:
			if err := sc.line("the rc is gone", time.Now()); err != nil || w.until == inspect.Gone {
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
				return nil // Ctrl-C is the normal end of a watch without --until
			}
			seen := "nothing"
			if sc.shown != nil {
				seen = sc.shown.Line()
			}
			return waitEndedf("rc %s: %v; last seen: %s", r.Name, err, seen)
		}
	}
}

func explainCommand() *cli.Command {
	return leaf("explain REF [-o table|json|yaml]",
		"explain in sentences why an rc has not converged, and what to do",
		`Combines what the rc asks for, its farm's report, its placements, the reports of its nodes, the nodes, the
farms and the mass-stop breaker. The most urgent cause comes first.

Examples:
  rcctl rc explain web-r1
  rcctl rc explain web-r1 -o json | jq -r '.causes[].next'`,
		onRC(runExplain), outputFlag(),
	)
}

func runExplain(s *conn, found store.Rec[rc.RC]) error {
	sit, corrupt, err := situationOf(s.Context, s, &found.Value)
	if err != nil {
		return err
	}
	e := inspect.Explain(sit)
	return s.print(e, corrupt, func(w io.Writer) error {
		fmt.Fprintf(w, "rc %s (%s)\n%s\n", e.Name, e.RCID, e.Summary)
		for i, c := range e.Causes {
			fmt.Fprintf(w, "\n%d. %s\n", i+1, clean(c.What))
			if c.Next != "" {
				fmt.Fprintf(w, "   Next: %s\n", clean(c.Next))
			}
		}
		return nil
	})
}

// situationOf also returns errors about unreadable records.
func situationOf(ctx context.Context, s *conn, r *rc.RC) (_ *inspect.Situation, corrupt []error, err error) {
	o, err := s.observe(ctx, r.ID)
	if err != nil {
		return nil, nil, err
	}
	sit := &inspect.Situation{Now: time.Now(), RC: *r, Status: o.Status, Farms: o.Farms}
	if sit.Manifest, _, err = readable(s.SignedManifest(ctx, r.ManifestDigest)); err != nil {
		return nil, nil, err
	}
	sit.Groups = map[string]*manifest.Manifest{}
	for _, digest := range r.Digests().All()[1:] {
		m, _, err := readable(s.SignedManifest(ctx, digest))
		if err != nil {
			return nil, nil, err
		}
		if m != nil {
			sit.Groups[digest] = m
		}
	}
	pods, unread, err := s.podsOf(ctx, r.ID)
	if err != nil {
		return nil, nil, err
	}
	sit.Pods = *pods
	switch rolls, err := s.Deployments.RolloutFor(ctx, r); {
	case isCorrupt(err):
		corrupt = append(corrupt, err)
	case err != nil:
		return nil, nil, err
	case rolls != nil:
		sit.Rollout = rolls.Term()
	}
	state, bad, err := deploy.State(ctx, s.Store)
	if err != nil {
		return nil, nil, err
	}
	sit.Epoch, sit.Nodes, sit.Taken = state.Epoch, state.Nodes, state.Taken
	owners, err := s.LockOwners(ctx)
	if err != nil {
		return nil, nil, err
	}
	sit.Owner = owners[rc.UnitOf(r.ID)]
	sit.Breaker, err = present(s.Breaker.Get(ctx, store.Consistent))
	return sit, slices.Concat(corrupt, unread, bad), err
}

// podsOf also returns errors about unreadable records. With an error it returns what it had read before.
func (s *conn) podsOf(ctx context.Context, id string) (pods *inspect.Pods, corrupt []error, err error) {
	pods = &inspect.Pods{}
	recs, corrupt, err := s.Pods.List(ctx, store.Default, id)
	if err != nil {
		return pods, nil, err
	}
	pods.Placements = values(recs)
	at := field.Each(pods.Placements, func(p pod.Placement) store.At {
		return store.At{Identity: p.Identity, Node: p.Node}
	})
	reports, bad, err := s.RealitiesAt(ctx, at, store.Default)
	if err != nil {
		return pods, corrupt, err
	}
	pods.Realities, corrupt = reports, append(corrupt, bad...)
	nodes, _, err := s.Nodes.List(ctx, store.Default)
	if err != nil {
		return pods, corrupt, err
	}
	pods.Losses, _, err = s.losses(ctx, nodes)
	return pods, corrupt, err
}
