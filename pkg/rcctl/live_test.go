package rcctl

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/rcfarm/rcfarm/pkg/deploy/plan"
	"github.com/rcfarm/rcfarm/pkg/inspect"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/rollout"
)

func TestFramed(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		lines  []string
		height int
		want   []string
	}{
		"as wide as it": {[]string{"twelve chars"}, 9, []string{"twelve chars"}},
		"between words": {[]string{"  failing: no such"}, 9, []string{"  failing:", "      no", "      such"}},
		"no words":      {[]string{"abcdefghijklmnopqrs"}, 9, []string{"abcdefghijkl", "    mnopqrs"}},
		"cut at last": {
			[]string{strings.Repeat("x", 99)},
			9,
			[]string{"xxxxxxxxxxxx", "    xxxxxxxx", "    xxxxxxxx"},
		},
		"two columns each":  {[]string{"漢字漢字漢字漢"}, 9, []string{"漢字漢字漢字", "    漢"}},
		"all of it blank":   {[]string{strings.Repeat(" ", 20)}, 9, []string{strings.Repeat(" ", 12), "      "}},
		"lower than that":   {[]string{"1", "2", "3", "4"}, 3, []string{"1", "2", "  and 2 more"}},
		"exactly as high":   {[]string{"1", "2", "3"}, 3, []string{"1", "2", "3"}},
		"what terminals do": {[]string{"a\x1b[2Jb\tc"}, 9, []string{"a [2Jb c"}},
	} {
		if diff := cmp.Diff(tt.want, framed(tt.lines, 12, tt.height)); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

// No display has more rows or columns than the terminal.
func TestFramedFits(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		lines := rapid.SliceOfN(rapid.OneOf(rapid.String(), rapid.StringMatching(`[a漢 ]{0,60}`)), 0,
			20).Draw(rt, "lines")
		columns, height := rapid.IntRange(leastColumns-1, 60).Draw(rt, "columns"), rapid.IntRange(leastHeight-1,
			30).Draw(rt, "height")
		rows := framed(lines, columns, height)
		if len(rows) > height {
			rt.Fatalf("%d rows", len(rows))
		}
		for _, row := range rows {
			if fitted(row, columns) != row {
				rt.Fatalf("%q is too wide", row)
			}
		}
	})
}

// A line that is printed on standard error meanwhile stays, and the display continues below the line.
func TestLiveBesideOtherLines(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	l := live{out: &out, terminal: true}
	now := time.Unix(100, 0)
	state := func(s rollout.State) *inspect.RolloutView {
		return inspect.NewRolloutView(&rollout.Record{Service: "web", Strategy: "canary", State: s, StartedAt: now})
	}
	l.show(state(rollout.Progressing), now)
	l.show(state(rollout.Progressing), now)
	l.note(&out, "rcctl: no answer")
	l.show(state(rollout.Progressing), now)
	l.show(state(rollout.Paused), now)
	const want = "web  progressing  canary, 0s\nrcctl: no answer\nweb  progressing  canary, 0s\n\x1b[1A\x1b[Jweb  " +
		"paused  canary, 0s\n"
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Error(diff)
	}
}

// The reason of the end names failing pods. The last state on the terminal lists the others.
func TestTheEndOfAFailedRolloutNamesAPodOnce(t *testing.T) {
	t.Parallel()
	for reason, want := range map[string][2]bool{
		"no progress; main.0 on n1: exits":         {false, true},
		"bob started another rollout in its place": {true, true},
	} {
		var out bytes.Buffer
		l := live{out: &out, terminal: true}
		l.last = inspect.NewRolloutView(&rollout.Record{
			Service: "web", Strategy: "canary", State: rollout.RollingBack, Reason: "no progress; main.0 on n1: exits",
			Failures: []rollout.Failure{
				{PodFailure: rc.PodFailure{Pod: "main.0", Node: "n1", Reason: "exits"}},
				{PodFailure: rc.PodFailure{Pod: "main.1", Node: "n2", Reason: "hangs"}},
			},
		})
		l.ended(t.Context(), nil, &plan.RolloutError{Service: "web", State: rollout.Failed, Reason: reason})
		text := out.String()
		listed := [2]bool{
			strings.Contains(text, "failing: main.0 on n1: exits"),
			strings.Contains(text, "failing: main.1 on n2: hangs"),
		}
		if listed != want || strings.Contains(text, reason) {
			t.Errorf("%s:\n%s", reason, text)
		}
	}
}

// If a text is too long, excerpt ends it with a whole word and dots.
func TestExcerpt(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		text    string
		columns int
		want    string
	}{
		{"", 10, ""},
		{"main.0 exits", 12, "main.0 exits"},
		{"main.0 on n1 has failed", 15, "main.0 on n1..."},
		{"main.0 on n1 has failed", 16, "main.0 on n1..."},
		{"main.0 on n1: it failed", 16, "main.0 on n1..."},
		{"artifact", 6, "art..."},
		{"日本 日本日本", 10, "日本..."},
	} {
		if got := excerpt(tt.text, tt.columns); got != tt.want {
			t.Errorf("%q in %d: %q, want %q", tt.text, tt.columns, got, tt.want)
		}
	}
}
