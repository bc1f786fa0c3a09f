package rcctl

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rcfarm/rcfarm/pkg/deploy"
	"github.com/rcfarm/rcfarm/pkg/deploy/plan"
	"github.com/rcfarm/rcfarm/pkg/inspect"
	"github.com/rcfarm/rcfarm/pkg/rollout"
)

// The size of a terminal that does not report one.
const (
	defaultColumns = 80
	defaultHeight  = 24
)

func sizeOf(w io.Writer) (columns, height int) {
	columns, height = defaultColumns, defaultHeight
	if file, ok := unguarded(w).(*os.File); ok {
		if size, err := unix.IoctlGetWinsize(int(file.Fd()), unix.TIOCGWINSZ); err == nil && size.Col > 0 &&
			size.Row > 0 {
			columns, height = int(size.Col), int(size.Row)
		}
	}
	return columns, height
}

// live shows the states of a rollout. On a terminal each state replaces the last one. Elsewhere it prints each new
// line.
type live struct {
	out      io.Writer
	terminal bool
	columns  int      // of the terminal, when shown was printed
	shown    []string // the lines on the terminal right above the cursor
	lastLine string   // elsewhere than on a terminal
	last     *inspect.RolloutView
}

// show still shows the end of a failing pod's log when the pod is gone.
func (l *live) show(v *inspect.RolloutView, now time.Time) {
	if l.last != nil && len(v.Tail) == 0 {
		v.Tail = l.last.Tail
	}
	l.last = v
	if !l.terminal {
		if line := v.Line(); line != l.lastLine {
			l.lastLine = line
			fmt.Fprintf(l.out, "%s  %s\n", inspect.At(now), clean(line))
		}
		return
	}
	columns, height := sizeOf(l.out)
	// the last column and the cursor's line stay free
	columns, height = max(columns, leastColumns)-1, max(height, leastHeight)-1
	lines := framed(v.Lines(now, columns, height), columns, height)
	if columns != l.columns {
		l.shown = nil // the terminal may have moved the lines
		l.columns = columns
	}
	if slices.Equal(lines, l.shown) {
		return
	}
	text := strings.Join(lines, "\n") + "\n"
	if len(l.shown) > 0 {
		text = fmt.Sprintf("\x1b[%dA\x1b[J", len(l.shown)) + text
	}
	_, _ = io.WriteString(unguarded(l.out), text) // in one piece, so that nothing flickers
	l.shown = lines
}

// note prints a line on standard error, perhaps the same terminal, so the next state goes below it.
func (l *live) note(w io.Writer, line string) {
	fmt.Fprintln(w, line)
	l.shown = nil
}

// ended shows the last state on a terminal, elsewhere the end of a failed pod's log.
func (l *live) ended(ctx context.Context, s *conn, end *plan.RolloutError) {
	v := l.last
	if v == nil {
		return
	}
	if end.State == rollout.Done {
		v.Tail, v.Failures = nil, nil
	}
	if !l.terminal {
		for _, line := range v.Tail {
			fmt.Fprintln(s.err, clean(line))
		}
		return
	}
	v.State, v.Reason, v.BlockedReason, v.Stuck, v.Unfit = end.State, end.Reason, "", "", false
	v.Failures = v.UnnamedFailures()
	v.Reason = "" // rolloutEnded prints it
	for i := range v.Revisions {
		if err := revisionPods(ctx, s, v, &v.Revisions[i]); err != nil {
			return
		}
	}
	l.show(v, time.Now())
}

// followRollout returns waitEndedf if the rollout does not end as done, if its rollback is stuck, or if ctx ends first.
func followRollout(ctx context.Context, s *conn, service, id string) error {
	client := &deploy.Client{Store: s.Store}
	show := live{out: s.out, terminal: terminal(s.out)}
	for connError := ""; ; {
		end, err := client.Ended(ctx, service, id)
		if err == nil && end != nil {
			show.ended(ctx, s, end)
			return rolloutEnded(s.stdio, end.State, end.Reason, service)
		}
		if err == nil {
			var v *inspect.RolloutView
			v, err = viewRollout(ctx, s, service)
			switch {
			case isMissing(err):
				err = nil // it has ended since; the next read shows how
			case err == nil && v.ID == id:
				show.show(v, time.Now())
				if v.State == rollout.RollingBack && v.Stuck != "" { // the rollback may take days
					return waitEndedf("rollout of %s: its rollback waits: %s; %s",
						service, v.Stuck, goesOn(service))
				}
			}
		}
		if err != nil && ctx.Err() == nil && err.Error() != connError {
			connError = err.Error()
			show.note(s.err, fmt.Sprintf("rcctl: rollout of %s: %s", service, connError))
		}
		if err := rest(ctx, pollEvery); err != nil {
			if errors.Is(err, errInterrupted) {
				err = errors.New("detached")
			}
			if show.terminal {
				fmt.Fprintln(s.out) // behind the ^C
			}
			return waitEndedf("rollout of %s: %v; %s", service, err, goesOn(service))
		}
	}
}

func goesOn(service string) string {
	return fmt.Sprintf("the farms go on with it; look with: rcctl rollout status %s -w", service)
}

func rolloutEnded(std *stdio, state rollout.State, reason, service string) error {
	if state == rollout.Done {
		std.printLine("service %s: the rollout is done", service)
		return nil
	}
	return waitEndedf("service %s: the rollout has ended as %s: %s; look with: rcctl history %s",
		service, state, clean(cmp.Or(reason, "no reason is recorded")), service)
}

// A smaller terminal is treated as if it had this size.
const (
	leastColumns = 20
	leastHeight  = 4
)

// maxRows is how many rows one line takes at most.
const maxRows = 3

func framed(lines []string, columns, height int) []string {
	var rows []string
	for _, line := range lines {
		rows = append(rows, wrapped(clean(line), columns)...)
	}
	if len(rows) > height {
		left := len(rows) - height + 1
		rows = append(rows[:height-1], fitted(fmt.Sprintf("  and %d more lines", left), columns))
	}
	return rows
}

func wrapped(line string, columns int) []string {
	var rows []string
	own := len(line) - len(strings.TrimLeft(line, " "))
	indent := strings.Repeat(" ", min(own+4, columns/2))
	for len(rows) < maxRows-1 && len(fitted(line, columns)) < len(line) {
		row := fitted(line, columns)
		if space := strings.LastIndexByte(line[:len(row)+1], ' '); strings.TrimSpace(line[:max(space, 0)]) != "" {
			row = line[:space]
		}
		rows = append(rows, row)
		line = indent + strings.TrimLeft(line[len(row):], " ")
	}
	return append(rows, fitted(line, columns))
}

// wide is the first character that takes two columns on some terminals. It and all above it count as two, so no line is
// too wide.
const wide = 0x1100

// excerpt shortens a text to a number of columns, at the end of a word.
func excerpt(text string, columns int) string {
	if fitted(text, columns) == text {
		return text
	}
	const dots = "..."
	cut := fitted(text, columns-len(dots))
	if i := strings.LastIndexByte(cut, ' '); i > 0 && text[len(cut)] != ' ' {
		cut = cut[:i]
	}
	return strings.TrimRight(cut, " ,;:.") + dots
}

func fitted(line string, columns int) string {
	for i, r := range line {
		if columns--; r >= wide {
			columns--
		}
		if columns < 0 {
			return line[:i]
		}
	}
	return line
}
