package rcctl

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
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

// pollEvery suits a person who watches.
const pollEvery = 250 * time.Millisecond

// A wait reads the pods of a controller at most once per podsEvery, and pauses for podsRest times the length of the
// read.
const (
	podsEvery = time.Second
	podsRest  = 10
)

func waitFlags(goal string) []cli.Flag {
	return slices.Concat(
		toggle("wait", "wait "+goal+", with progress on standard error"),
		timeoutFlag("`TIME` after which --wait ends, with exit code 5; the change remains written"),
	)
}

// timeoutFlag refuses an invalid time before the command reads anything.
func timeoutFlag(usage string) []cli.Flag {
	return []cli.Flag{&cli.StringFlag{
		Name: "timeout", Value: "5m",
		Usage: usage, Action: func(c *cli.Context, _ string) error {
			_, err := timeout(c)
			return err
		},
	}}
}

func limitOf(c *cli.Context) time.Duration {
	limit, _ := timeout(c) // the flag refuses an invalid time
	return limit
}

func timeout(c *cli.Context) (time.Duration, error) {
	text := c.String("timeout")
	d, err := time.ParseDuration(text)
	if err != nil || d <= 0 {
		return 0, badFlag(c, "--timeout", text, `a length of time greater than zero, such as "30s" or "5m"`)
	}
	return d, nil
}

func waitOrHint(s *conn, done *change) error {
	if s.Bool("wait") {
		return waitConverged(s.Context, s, done.rc, limitOf(s.flags))
	}
	if !done.none {
		s.printLine("next: rcctl rc status %s", done.rc.Name)
	}
	return nil
}

func (s *conn) observe(ctx context.Context, id string) (inspect.Observation, error) {
	var o inspect.Observation
	rec, err := s.RCs.Get(ctx, store.Default, id)
	switch {
	case isMissing(err):
		return o, nil
	case err != nil:
		return o, fmt.Errorf("read rc %s: %w", id, err)
	}
	o.RC = &rec.Value
	status, err := s.Statuses.Get(ctx, store.Default, id)
	switch {
	case err == nil:
		o.Status = &status.Value
	case !isMissing(err):
		return o, fmt.Errorf("read status of rc %s: %w", id, err)
	}
	o.Farms, err = s.farms(ctx)
	return o, err
}

// waitConverged ends at once if the controller is halted, and returns refusedf if another change came first.
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
	s.printLine("rc %s converged (generation %d, %d of %d available)",
		want.Name, want.Generation, o.Status.Available, o.Status.Desired)
	return nil
}

// halts reads the pods of a controller now and then, and ends the wait if it is halted.
type halts struct {
	next time.Time // when to read the pods again
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

// haltedRC also shows the end of the failing pod's log.
func haltedRC(ctx context.Context, s *conn, o inspect.Observation) error {
	pods, _, err := s.podsOf(ctx, o.RC.ID)
	if err != nil && !o.Status.Is(rc.Blocked) {
		return nil
	}
	is, worst, reality := inspect.Halted(o, pods)
	if !is {
		return nil
	}
	if worst != nil && reality.LastExit != nil {
		showEndOfLog(ctx, s, worst, o.RC.Name, reality.LastExit.Launchable)
	}
	why := inspect.Progress(*o.RC, o)
	if worst != nil && reality.Message != "" {
		why += fmt.Sprintf("; %s on %s is %s: %s", inspect.NameOf(worst), worst.Node, reality.State, reality.Message)
	}
	return waitEndedf("rc %s: generation %d is written and does not converge: %s; look with: rcctl rc explain %s",
		o.RC.Name, o.RC.Generation, clean(why), o.RC.Name)
}

const (
	lastLines = 10
	lastLimit = 5 * time.Second
)

// showEndOfLog prints why if the preparer cannot be reached from here.
func showEndOfLog(ctx context.Context, s *conn, p *pod.Placement, controller, process string) {
	ctx, cancel := context.WithTimeout(ctx, lastLimit)
	defer cancel()
	name, all := inspect.NameOf(p), inspect.LogsOf(p, controller)
	text, err := endOfLog(ctx, s, p, process)
	if err != nil {
		fmt.Fprintf(s.err, "the log of %s cannot be shown: %s; see: %s\n", name, clean(err.Error()), all)
		return
	}
	fmt.Fprintf(s.err, "the end of the log of %s on %s; all of it: %s\n", name, p.Node, all)
	for line := range strings.Lines(text) {
		fmt.Fprintf(s.err, "  %s\n", clean(strings.TrimSuffix(line, "\n")))
	}
}

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

func waitGone(ctx context.Context, s *conn, want rc.RC, limit time.Duration) error {
	_, err := waitRC(ctx, s, want, limit, "gone", func(o inspect.Observation) (bool, error) { return o.RC == nil, nil })
	if err == nil {
		s.printLine("rc %s is gone", want.Name)
	}
	return err
}

// waitRC returns the last observation.
func waitRC(ctx context.Context, s *conn, want rc.RC, limit time.Duration, goal string,
	reached func(inspect.Observation) (bool, error),
) (inspect.Observation, error) {
	var seen inspect.Observation
	explain := "rcctl rc explain " + want.Name
	told := false
	err := waitFor(ctx, s.stdio, pending{
		subject: "rc " + want.Name, written: fmt.Sprintf("generation %d is written", want.Generation), goal: goal,
		hint: explain,
	}, limit, func(ctx context.Context) (line string, done bool, err error) {
		if seen, err = s.observe(ctx, want.ID); err != nil {
			return "", false, err
		}
		if done, err = reached(seen); !done && err == nil {
			line = inspect.Progress(want, seen)
			if st := seen.Status; !told && want.DeletedAt == nil && st != nil &&
				st.ObservedGeneration == want.Generation && st.Is(rc.InsufficientNodes) {
				told = true
				fmt.Fprintf(s.err, "rc %s: no node takes some of its pods; this waits until one does; to see why: %s\n",
					want.Name, explain)
			}
		}
		return line, done, err
	})
	return seen, err
}

type pending struct {
	subject string // such as "node n1"
	written string // a sentence: what is written
	goal    string // the state to wait for, such as "drained"
	hint    string // the command that shows the progress
	done    string // the sentence to print at the end; empty: the caller prints one
}

// waitFor prints each new line about the progress until look returns done. If look fails it tries again, because the
// change is written and Consul may come back; an error with an exit code of its own ends the wait. At the time limit it
// returns waitEndedf.
func waitFor(ctx context.Context, std *stdio, p pending, limit time.Duration,
	look func(ctx context.Context) (line string, done bool, err error),
) error {
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

var errInterrupted = errors.New("interrupted")

// rest waits for d. If the context ends first, it returns why.
func rest(ctx context.Context, d time.Duration) error {
	if err := wait.Pause(ctx, d); !errors.Is(err, context.Canceled) {
		return err
	}
	return errInterrupted
}
