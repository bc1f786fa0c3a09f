package rcctl

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/rcfarm/rcfarm/pkg/inspect"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/preparer/nodeapi"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/store"
	"github.com/rcfarm/rcfarm/pkg/wait"
)

// pollEvery is how often a wait looks. It is a person's patience, not a farm's reaction time.
const pollEvery = 250 * time.Millisecond

// A wait looks at all pods of a controller no more often than podsEvery, and rests podsRest times as long as that has
// taken.
const (
	podsEvery = time.Second
	podsRest  = 10
)

func waitFlags(goal string) []cli.Flag {
	return []cli.Flag{
		&cli.BoolFlag{Name: "wait", Usage: "wait " + goal + ", with progress on standard error"},
		timeoutFlag("`TIME` after which --wait gives up, with exit code 5; what was written stays"),
	}
}

// timeoutFlag says how long to wait. A time that is none is refused before anything else is looked at.
func timeoutFlag(usage string) cli.Flag {
	return &cli.StringFlag{Name: "timeout", Value: "5m", Usage: usage, Action: func(c *cli.Context, _ string) error {
		_, err := timeout(c)
		return err
	}}
}

// limitOf is how long to wait, of a command with timeoutFlag.
func limitOf(c *cli.Context) time.Duration {
	limit, _ := timeout(c) // the flag has refused what is no time
	return limit
}

// timeout reads the flag that says how long to wait.
func timeout(c *cli.Context) (time.Duration, error) {
	text := c.String("timeout")
	d, err := time.ParseDuration(text)
	if err != nil || d <= 0 {
		return 0, badFlag(c, "--timeout", text, `a length of time greater than zero, such as "30s" or "5m"`)
	}
	return d, nil
}

// waitOrSay ends a command that has changed a controller: it waits until that has converged, or says how to see how far it is.
func waitOrSay(s *conn, done *change) error {
	if s.Bool("wait") {
		return waitConverged(s.Context, s, done.rc, limitOf(s.flags))
	}
	if !done.none {
		fmt.Fprintf(s.out, "next: rcctl rc status %s\n", done.rc.Name)
	}
	return nil
}

func (s *conn) observe(ctx context.Context, id string) (inspect.Observation, error) {
	var o inspect.Observation
	rec, err := s.RCs.Get(ctx, store.Default, id)
	switch {
	case errors.Is(err, store.ErrNotFound):
		return o, nil
	case err != nil:
		return o, fmt.Errorf("read rc %s: %w", id, err)
	}
	o.RC = &rec.Value
	status, err := s.Statuses.Get(ctx, store.Default, id)
	switch {
	case err == nil:
		o.Status = &status.Value
	case !errors.Is(err, store.ErrNotFound):
		return o, fmt.Errorf("read status of rc %s: %w", id, err)
	}
	o.Farms, err = s.farms(ctx)
	return o, err
}

// waitConverged waits until the owner reports that this generation of the controller has converged. It ends at once when that is halted,
// and is refused when another change came first.
func waitConverged(ctx context.Context, s *conn, want rc.RC, limit time.Duration) error {
	var halt halts
	o, err := waitRC(ctx, s, want, limit, "converged", func(o inspect.Observation) (bool, error) {
		done, overtaken := inspect.Converged(&want, o)
		if overtaken != "" {
			return false, refusedf("%s", overtaken)
		}
		if done {
			return true, nil
		}
		return false, halt.look(ctx, s, &want, o)
	})
	if err != nil {
		return err
	}
	fmt.Fprintf(s.out, "rc %s converged (generation %d, %d of %d available)\n", want.Name, want.Generation, o.Status.Available, o.Status.Desired)
	return nil
}

// halts looks now and then at the pods of a controller, and ends a wait when that is halted.
type halts struct {
	next time.Time // when the pods are looked at again
}

func (h *halts) look(ctx context.Context, s *conn, want *rc.RC, o inspect.Observation) error {
	began := time.Now()
	if may, soon := inspect.MayBeHalted(want, o); !may || !soon && began.Before(h.next) {
		return nil
	}
	err := haltedRC(ctx, s, o)
	h.next = time.Now().Add(max(podsEvery, podsRest*time.Since(began)))
	return err
}

// haltedRC ends a wait when the generation that a status is about is halted. What the pod wrote last is shown.
func haltedRC(ctx context.Context, s *conn, o inspect.Observation) error {
	pods, _, err := s.podsOf(ctx, o.RC.ID)
	if err != nil && !o.Status.Is(rc.Blocked) {
		return nil
	}
	is, worst, says := inspect.Halted(o, pods)
	if !is {
		return nil
	}
	if worst != nil && says.LastExit != nil {
		lastWords(ctx, s, worst, says.LastExit.Launchable)
	}
	why := inspect.Progress(*o.RC, o)
	if worst != nil && says.Message != "" {
		why += fmt.Sprintf("; %s on %s is %s: %s", inspect.PodName(worst.PodID, worst.Identity), worst.Node, says.State, says.Message)
	}
	return waitEndedf("rc %s: generation %d is written and does not converge: %s; look with: rcctl rc explain %s",
		o.RC.Name, o.RC.Generation, clean(why), o.RC.Name)
}

// How much of a pod's log a wait shows that fails, and how long it tries.
const (
	lastLines = 10
	lastLimit = 5 * time.Second
)

// lastWords shows the end of a pod's log, as far as its preparer can be asked from here, and says how to see all of it.
func lastWords(ctx context.Context, s *conn, p *pod.Placement, process string) {
	ctx, cancel := context.WithTimeout(ctx, lastLimit)
	defer cancel()
	text, err := endOfLog(ctx, s, p, process)
	if err != nil {
		fmt.Fprintf(s.err, "the log of %s cannot be shown: %s; see: %s\n", inspect.PodName(p.PodID, p.Identity), clean(err.Error()), inspect.LogsOf(p))
		return
	}
	fmt.Fprintf(s.err, "the end of the log of %s on %s; all of it: %s\n", inspect.PodName(p.PodID, p.Identity), p.Node, inspect.LogsOf(p))
	for line := range strings.Lines(text) {
		fmt.Fprintf(s.err, "  %s\n", clean(strings.TrimSuffix(line, "\n")))
	}
}

// maxEndBytes bounds what is read of those lines, however long they are.
const maxEndBytes = 16 << 10

func endOfLog(ctx context.Context, s *conn, p *pod.Placement, process string) (string, error) {
	client, err := nodeClient(ctx, s, p.Node)
	if err != nil {
		return "", err
	}
	defer client.Close()
	logs, err := client.Logs(ctx, p.Identity, nodeapi.LogOptions{Process: process, Tail: lastLines})
	if err != nil {
		return "", nodeError(client, err)
	}
	defer func() { _ = logs.Close() }()
	data, err := io.ReadAll(io.LimitReader(logs, maxEndBytes))
	return string(data), err
}

// waitGone waits until the record of a controller is gone.
func waitGone(ctx context.Context, s *conn, want rc.RC, limit time.Duration) error {
	_, err := waitRC(ctx, s, want, limit, "gone", func(o inspect.Observation) (bool, error) { return o.RC == nil, nil })
	if err == nil {
		fmt.Fprintf(s.out, "rc %s is gone\n", want.Name)
	}
	return err
}

// waitRC is waitFor for what is observed of a controller. It returns what was seen last.
func waitRC(ctx context.Context, s *conn, want rc.RC, limit time.Duration, goal string, reached func(inspect.Observation) (bool, error)) (inspect.Observation, error) {
	var seen inspect.Observation
	err := waitFor(ctx, s.stdio, pending{
		subject: "rc " + want.Name, written: fmt.Sprintf("generation %d is written", want.Generation), goal: goal, hint: "rcctl rc status " + want.ID,
	}, limit, func(ctx context.Context) (line string, done bool, err error) {
		if seen, err = s.observe(ctx, want.ID); err != nil {
			return "", false, err
		}
		if done, err = reached(seen); !done && err == nil {
			line = inspect.Progress(want, seen)
		}
		return line, done, err
	})
	return seen, err
}

// pending is something that is written, and that others carry out.
type pending struct {
	subject string // such as "node n1"
	written string // a sentence: what is written
	goal    string // what it will be, such as "drained"
	hint    string // the command that shows how far it is
	done    string // a sentence: what it is then; empty: the caller says it
}

// waitFor looks until look says that it is done, and prints what it says of the way there whenever that is new. A read that fails
// is said too and tried again: the change is written, and Consul may come back. It returns waitEndedf when the time is up, and at once
// what look returns with an exit code of its own.
func waitFor(ctx context.Context, std *stdio, p pending, limit time.Duration, look func(ctx context.Context) (line string, done bool, err error)) error {
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("not %s after %s", p.goal, limit))
	defer cancel()
	last := ""
	for {
		line, done, err := look(ctx)
		var ended *codedError
		switch {
		case errors.As(err, &ended):
			return err
		case err != nil:
			line = err.Error()
		case done && p.done != "":
			fmt.Fprintln(std.out, p.done)
			return nil
		case done:
			return nil
		}
		if ctx.Err() == nil && line != last {
			fmt.Fprintf(std.err, "%s: %s\n", p.subject, forTerminal(line))
			last = line
		}
		if err := rest(ctx, pollEvery); err != nil {
			if last != "" {
				last = "; last seen: " + last
			}
			return waitEndedf("%s: %s; %v%s; look with: %s", p.subject, p.written, err, last, p.hint)
		}
	}
}

// errInterrupted is the end of what a signal has ended.
var errInterrupted = errors.New("interrupted")

// rest waits, or returns why the context has ended.
func rest(ctx context.Context, d time.Duration) error {
	if err := wait.Pause(ctx, d); !errors.Is(err, context.Canceled) {
		return err
	}
	return errInterrupted
}
