package rcctl

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/rcfarm/rcfarm/pkg/deploy"
	"github.com/rcfarm/rcfarm/pkg/inspect"
	"github.com/rcfarm/rcfarm/pkg/rollout"
)

// isTerminal reports whether a person is at the other end. Unlike isDevice it tells a terminal from /dev/null.
func isTerminal(stream any) bool {
	file, ok := stream.(*os.File)
	if !ok || file == nil {
		return false
	}
	_, err := unix.IoctlGetTermios(int(file.Fd()), unix.TCGETS)
	return err == nil
}

// defaultWidth is that of a terminal that does not say.
const defaultWidth = 80

// widthOf returns how many columns a terminal has.
func widthOf(w io.Writer) int {
	if file, ok := unguarded(w).(*os.File); ok {
		if size, err := unix.IoctlGetWinsize(int(file.Fd()), unix.TIOCGWINSZ); err == nil && size.Col > 0 {
			return int(size.Col)
		}
	}
	return defaultWidth
}

// live shows one state after the other: on a terminal each in the place of the last, elsewhere a line whenever it says something new.
type live struct {
	out      io.Writer
	terminal bool
	lines    int // that stand on the terminal
	shown    []string
	said     string
}

// show shows a state.
func (l *live) show(v inspect.RolloutView, now time.Time) {
	if !l.terminal {
		if line := v.Line(); line != l.said {
			l.said = line
			fmt.Fprintf(l.out, "%s  %s\n", now.UTC().Format(time.RFC3339), clean(line))
		}
		return
	}
	width := widthOf(l.out)
	lines := v.Lines(now)
	for i := range lines {
		lines[i] = fitted(clean(lines[i]), width-1)
	}
	if slices.Equal(lines, l.shown) {
		return
	}
	if l.lines > 0 {
		fmt.Fprintf(unguarded(l.out), "\x1b[%dA\x1b[J", l.lines)
	}
	for _, line := range lines {
		fmt.Fprintln(l.out, line)
	}
	l.lines, l.shown = len(lines), lines
}

// fitted cuts a line to a number of columns.
func fitted(line string, width int) string {
	if width < 1 || utf8.RuneCountInString(line) <= width {
		return line
	}
	return string([]rune(line)[:width])
}

// followRollout shows a rollout until it ends. It returns *waitError where that is not as it was meant, or where ctx ends first.
func followRollout(ctx context.Context, std *stdio, s *conn, service, id string) error {
	client := &deploy.Client{Store: s.Store}
	show := live{out: std.out, terminal: isTerminal(unguarded(std.out)) && terminal(std.out)}
	for trouble := ""; ; {
		end, err := client.Ended(ctx, service, id)
		if err == nil && end != nil {
			return rolloutEnded(std, end.State, end.Reason, service)
		}
		if err == nil {
			var v *inspect.RolloutView
			if v, err = viewRollout(ctx, std, s, service); err == nil && v.ID == id {
				show.show(*v, time.Now())
			}
		}
		if err != nil && ctx.Err() == nil && err.Error() != trouble {
			trouble = err.Error()
			fmt.Fprintf(std.err, "rcctl: rollout of %s: %s\n", service, trouble)
		}
		if err := rest(ctx, pollEvery); err != nil {
			if errors.Is(err, context.Canceled) {
				err = errors.New("detached")
			}
			return &waitError{text: fmt.Sprintf("rollout of %s: %v; the farms go on with it; look with: rcctl rollout status %s -w", service, err, service)}
		}
	}
}

// rolloutEnded says how a rollout ended.
func rolloutEnded(std *stdio, state rollout.State, reason, service string) error {
	if state == rollout.Done {
		fmt.Fprintf(std.out, "service %s: the rollout is done\n", service)
		return nil
	}
	if reason == "" {
		reason = "no reason is recorded"
	}
	return &waitError{text: fmt.Sprintf("service %s: the rollout is %s: %s; look with: rcctl history %s", service, state, clean(reason), service)}
}
