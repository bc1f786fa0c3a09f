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
	"github.com/rcfarm/rcfarm/pkg/inspect"
	"github.com/rcfarm/rcfarm/pkg/rollout"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// What a terminal has that does not say.
const (
	defaultColumns = 80
	defaultHeight  = 24
)

// sizeOf returns how many columns and lines a terminal has.
func sizeOf(w io.Writer) (columns, height int) {
	columns, height = defaultColumns, defaultHeight
	if file, ok := unguarded(w).(*os.File); ok {
		if size, err := unix.IoctlGetWinsize(int(file.Fd()), unix.TIOCGWINSZ); err == nil && size.Col > 0 && size.Row > 0 {
			columns, height = int(size.Col), int(size.Row)
		}
	}
	return columns, height
}

// live shows one state after the other: on a terminal each in the place of the last, elsewhere a line whenever it says something new.
type live struct {
	out      io.Writer
	terminal bool
	columns  int      // that the terminal had
	shown    []string // what stands on the terminal, right above the cursor
	said     string
	last     *inspect.RolloutView
}

// show shows a state. The end of a failing pod's log stays when the pod is gone.
func (l *live) show(v *inspect.RolloutView, now time.Time) {
	if l.last != nil && len(v.Tail) == 0 {
		v.Tail = l.last.Tail
	}
	l.last = v
	if !l.terminal {
		if line := v.Line(); line != l.said {
			l.said = line
			fmt.Fprintf(l.out, "%s  %s\n", now.UTC().Format(time.RFC3339), clean(line))
		}
		return
	}
	columns, height := sizeOf(l.out)
	columns, height = max(columns, leastColumns)-1, max(height, leastHeight)-1 // the last column and the cursor's line stay free
	lines := framed(v.Lines(now, columns, height), columns, height)
	if columns != l.columns {
		l.shown = nil // who knows where the lines are now
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

// say writes a line on standard error, which may be the same terminal: what is shown next comes below.
func (l *live) say(w io.Writer, line string) {
	fmt.Fprintln(w, line)
	l.shown = nil
}

// ended shows how a rollout ended. What a terminal shows is brought up to that; elsewhere the end of the log of a pod that failed follows.
func (l *live) ended(ctx context.Context, s *conn, state rollout.State) {
	v := l.last
	if v == nil {
		return
	}
	if state == rollout.Done {
		v.Tail, v.Failures = nil, nil
	}
	if !l.terminal {
		for _, line := range v.Tail {
			fmt.Fprintln(s.err, clean(line))
		}
		return
	}
	v.State, v.Reason, v.BlockedReason, v.Stuck, v.Unfit = state, "", "", "", false // the reason follows
	for i := range v.Revisions {
		if err := revisionPods(ctx, s, v, &v.Revisions[i]); err != nil {
			return
		}
	}
	l.show(v, time.Now())
}

// followRollout shows a rollout until it ends. It returns waitEndedf where that is not as it was meant, where its way
// back is stuck, or where ctx ends first.
func followRollout(ctx context.Context, s *conn, service, id string) error {
	client := &deploy.Client{Store: s.Store}
	show := live{out: s.out, terminal: terminal(s.out)}
	for connError := ""; ; {
		end, err := client.Ended(ctx, service, id)
		if err == nil && end != nil {
			show.ended(ctx, s, end.State)
			return rolloutEnded(s.stdio, end.State, end.Reason, service)
		}
		if err == nil {
			var v *inspect.RolloutView
			v, err = viewRollout(ctx, s, service)
			switch {
			case errors.Is(err, store.ErrNotFound):
				err = nil // it has ended since; the next look says how
			case err == nil && v.ID == id:
				show.show(v, time.Now())
				if v.State == rollout.RollingBack && v.Stuck != "" { // it may take days
					return waitEndedf("rollout of %s: it goes back, and waits: %s; %s", service, v.Stuck, goesOn(service))
				}
			}
		}
		if err != nil && ctx.Err() == nil && err.Error() != connError {
			connError = err.Error()
			show.say(s.err, fmt.Sprintf("rcctl: rollout of %s: %s", service, connError))
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

// goesOn says what becomes of a rollout that is not followed any more.
func goesOn(service string) string {
	return fmt.Sprintf("the farms go on with it; look with: rcctl rollout status %s -w", service)
}

// rolloutEnded says how a rollout ended.
func rolloutEnded(std *stdio, state rollout.State, reason, service string) error {
	if state == rollout.Done {
		fmt.Fprintf(std.out, "service %s: the rollout is done\n", service)
		return nil
	}
	return waitEndedf("service %s: the rollout is %s: %s; look with: rcctl history %s", service, state, clean(cmp.Or(reason, "no reason is recorded")), service)
}

// A terminal that says it is smaller than this is drawn on as if it were not.
const (
	leastColumns = 20
	leastHeight  = 4
)

// maxRows bounds how many rows one line takes.
const maxRows = 3

// framed lays lines out in rows of a number of columns, and in so many rows.
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

// wrapped breaks a line between words, and cuts it after maxRows.
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

// wide is the first character that may take two columns. Which ones do depends on the terminal; where all of them count as two, no line is
// wider than it is meant to be.
const wide = 0x1100

// excerpt shortens a text to a number of columns, at the end of a word, and says so by three dots.
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

// fitted cuts a line to a number of columns.
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
