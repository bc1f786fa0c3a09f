package rcctl

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/rcfarm/rcfarm/pkg/nodeapi"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// pollEvery is how often a wait looks. It is a person's patience, not a farm's reaction time.
const pollEvery = 250 * time.Millisecond

func waitFlags(goal string) []cli.Flag {
	return []cli.Flag{
		&cli.BoolFlag{Name: "wait", Usage: "wait " + goal + ", with progress on standard error"},
		&cli.StringFlag{Name: "timeout", Value: "5m", Usage: "`TIME` after which --wait gives up (exit code 5)"},
	}
}

// observation is what a wait sees at one moment.
type observation struct {
	rc     *rc.RC     // nil: gone
	status *rc.Status // nil: none yet
	farms  []store.Member
}

func (s *conn) observe(ctx context.Context, id string) (observation, error) {
	var o observation
	rec, err := s.RC(ctx, id, false)
	switch {
	case errors.Is(err, store.ErrNotFound):
		return o, nil
	case err != nil:
		return o, fmt.Errorf("read rc %s: %w", id, err)
	}
	o.rc = &rec.Value
	status, err := s.Status(ctx, id)
	switch {
	case err == nil:
		o.status = &status.Value
	case !errors.Is(err, store.ErrNotFound):
		return o, fmt.Errorf("read status of rc %s: %w", id, err)
	}
	o.farms, err = s.farms(ctx)
	return o, err
}

// waitConverged waits until the owner reports that this generation of the controller has converged. It returns *waitError when the
// time is up, or at once when it is halted, *refusedError when another change came first.
func (t *tool) waitConverged(ctx context.Context, s *conn, want rc.RC, limit time.Duration) error {
	o, err := t.wait(ctx, s, want, limit, "converged", func(o observation) (bool, error) {
		switch {
		case o.rc == nil:
			return false, refusedf("rc %s (%s) was deleted before generation %d converged", want.Name, want.ID, want.Generation)
		case o.rc.Generation > want.Generation:
			return false, refusedf("rc %s: generation %d was replaced by %d (changed by %s) before it converged",
				want.Name, want.Generation, o.rc.Generation, o.rc.ChangedBy)
		}
		if o.status == nil || o.status.ObservedGeneration != want.Generation || o.status.Is(rc.Converged) {
			return o.status != nil && o.status.ObservedGeneration == want.Generation, nil
		}
		return false, t.halted(ctx, s, o)
	})
	if err != nil {
		return err
	}
	fmt.Fprintf(t.out, "rc %s converged (generation %d, %d of %d available)\n", want.Name, want.Generation, o.status.Available, o.status.Desired)
	return nil
}

// halted returns a *waitError when the generation that a status is about does not converge without another change: it is blocked, or pods
// of its manifest crash-loop. Those of the manifest before may, until they are replaced. What the pod wrote last is shown.
func (t *tool) halted(ctx context.Context, s *conn, o observation) error {
	isBlocked := o.status.Is(rc.Blocked)
	if !isBlocked && !o.status.Is(rc.CrashLooping) {
		return nil
	}
	placements, realities, _, err := s.podsOf(ctx, o.rc.ID)
	if err != nil && !isBlocked {
		return nil
	}
	worst, says := failing(placements, realities, o.rc.ManifestDigest)
	if !isBlocked && (worst == nil || says.State != pod.StateCrashLooping) {
		return nil
	}
	if worst != nil && says.LastExit != nil {
		t.lastWords(ctx, s, worst, says.LastExit.Launchable)
	}
	return &waitError{text: fmt.Sprintf("rc %s: generation %d is written and does not converge: %s; look with: rcctl rc explain %s",
		o.rc.Name, o.rc.Generation, clean(progress(*o.rc, o)), o.rc.Name)}
}

// How much of a pod's log a wait shows that fails, and how long it tries.
const (
	lastLines = 10
	lastLimit = 5 * time.Second
)

// lastWords shows the end of a pod's log, as far as its preparer can be asked from here, and says how to see all of it.
func (t *tool) lastWords(ctx context.Context, s *conn, p *pod.Placement, process string) {
	ctx, cancel := context.WithTimeout(ctx, lastLimit)
	defer cancel()
	text, err := t.endOfLog(ctx, s, p, process)
	if err != nil {
		fmt.Fprintf(t.err, "the log of %s cannot be shown: %s; see: %s\n", podName(p.PodID, p.Identity), clean(err.Error()), logsOf(p))
		return
	}
	fmt.Fprintf(t.err, "the end of the log of %s on %s; all of it: %s\n", podName(p.PodID, p.Identity), p.Node, logsOf(p))
	for line := range strings.Lines(text) {
		fmt.Fprintf(t.err, "  %s\n", clean(strings.TrimSuffix(line, "\n")))
	}
}

// maxEndBytes bounds what is read of those lines, however long they are.
const maxEndBytes = 16 << 10

func (t *tool) endOfLog(ctx context.Context, s *conn, p *pod.Placement, process string) (string, error) {
	client, err := t.nodeClient(ctx, s, p.Node)
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

// waitGone waits until the record of a controller is gone. Its errors are those of waitConverged.
func (t *tool) waitGone(ctx context.Context, s *conn, want rc.RC, limit time.Duration) error {
	_, err := t.wait(ctx, s, want, limit, "gone", func(o observation) (bool, error) { return o.rc == nil, nil })
	if err == nil {
		fmt.Fprintf(t.out, "rc %s is gone\n", want.Name)
	}
	return err
}

// wait looks until reached says so, and prints a line whenever there is something new to say. A read that fails is said
// too and tried again: the change is written, and Consul may come back.
func (t *tool) wait(ctx context.Context, s *conn, want rc.RC, limit time.Duration, goal string, reached func(observation) (bool, error)) (observation, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("not %s after %s", goal, limit))
	defer cancel()
	ticker := time.NewTicker(pollEvery)
	defer ticker.Stop()
	last := ""
	for {
		o, err := s.observe(ctx, want.ID)
		line := ""
		if err == nil {
			done, err := reached(o)
			if done || err != nil {
				return o, err
			}
			line = progress(want, o)
		} else if ctx.Err() == nil {
			line = err.Error()
		}
		if line != "" && line != last {
			fmt.Fprintf(t.err, "rc %s: %s\n", want.Name, line)
			last = line
		}
		select {
		case <-ctx.Done():
			return o, &waitError{text: gaveUp(ctx, want, last)}
		case <-ticker.C:
		}
	}
}

func gaveUp(ctx context.Context, want rc.RC, last string) string {
	why := context.Cause(ctx)
	if errors.Is(why, context.Canceled) {
		why = errors.New("interrupted")
	}
	text := fmt.Sprintf("rc %s: generation %d is written; %v", want.Name, want.Generation, why)
	if last != "" {
		text += "; last seen: " + last
	}
	return text + "; look with: rcctl rc status " + want.ID
}

// progress says on one line how far a controller is.
func progress(want rc.RC, o observation) string {
	st := o.status
	switch {
	case unclaimed(o.rc, o.farms):
		return "waiting for a farm: " + whyUnclaimed(o.farms)
	case st == nil:
		return "waiting for its farm to report"
	case st.ObservedGeneration < want.Generation:
		return fmt.Sprintf("waiting for its farm to see generation %d, it has seen %d", want.Generation, st.ObservedGeneration)
	}
	alarms := ""
	line := fmt.Sprintf("%d of %d replicas available", st.Available, st.Desired)
	for _, c := range st.Conditions {
		switch {
		case c.Type == rc.Converged && !c.True && c.Reason != "":
			line = c.Reason
		case c.Type != rc.Converged && c.True:
			alarms += fmt.Sprintf("; %s: %s", c.Type, c.Reason)
		}
	}
	if st.LastError != "" {
		alarms += "; error: " + st.LastError
	}
	return line + alarms
}

// pending is something that is written, and that others carry out.
type pending struct {
	subject string // such as "node n1"
	written string // a sentence: what is written
	goal    string // what it will be, such as "drained"
	hint    string // the command that shows how far it is
}

// waitFor looks until look says that it is done, and prints what it says of the way there whenever that is new. A read that fails
// is said too and tried again. It returns *waitError when the time is up, and a *refusedError of look's at once.
func (t *tool) waitFor(ctx context.Context, p pending, limit time.Duration, look func(ctx context.Context) (line string, done bool, err error)) error {
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("not %s after %s", p.goal, limit))
	defer cancel()
	last := ""
	for {
		line, done, err := look(ctx)
		var refused *refusedError
		switch {
		case errors.As(err, &refused):
			return err
		case err != nil && ctx.Err() == nil:
			line = err.Error()
		case err == nil && done:
			return nil
		}
		if ctx.Err() == nil && line != last {
			fmt.Fprintf(t.err, "%s: %s\n", p.subject, forTerminal(line))
			last = line
		}
		if err := rest(ctx, pollEvery); err != nil {
			if errors.Is(err, context.Canceled) {
				err = errors.New("interrupted")
			}
			return &waitError{text: fmt.Sprintf("%s: %s; %v; last seen: %s; look with: %s", p.subject, p.written, err, last, p.hint)}
		}
	}
}
