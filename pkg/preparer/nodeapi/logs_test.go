package nodeapi

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/rcfarm/rcfarm/pkg/preparer/runtime/logfile"
)

// program writes a log like a supervised program.
type program struct {
	path string
	f    *os.File
}

func newProgram(tb testing.TB) *program {
	tb.Helper()
	dir, err := os.MkdirTemp("", "log")
	if err != nil {
		tb.Fatal(err)
	}
	p := &program{path: filepath.Join(dir, "main.log")}
	if p.f, err = os.OpenFile(p.path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { p.f.Close(); os.RemoveAll(dir) })
	return p
}

func (p *program) write(tb failer, text string) {
	if _, err := p.f.WriteString(text); err != nil {
		tb.Fatal(err)
	}
}

func (p *program) start() { logfile.MarkStart(p.f, time.Now()) }

// rotate rotates small logs too, and drops no text.
func (p *program) rotate(tb failer) {
	s, err := openSpan(p.path)
	if err != nil {
		tb.Fatal(err)
	}
	defer s.close()
	if limit := s.size - s.live() - 1; limit > 0 {
		if err := logfile.Rotate(p.path, limit, 3); err != nil {
			tb.Fatal(err)
		}
	}
}

type failer interface{ Fatal(args ...any) }

func (p *program) show(previous bool, lines int) (string, error) {
	var out bytes.Buffer
	t := &tail{path: p.path, printer: printer{to: &out}}
	err := errors.Join(t.begin(previous, lines), t.printer.flush())
	return out.String(), err
}

func TestParts(t *testing.T) {
	t.Parallel()
	p := newProgram(t)
	if text, err := p.show(false, -1); err != nil || text != "" {
		t.Errorf("an empty log: %q, %v", text, err)
	}
	p.start()
	p.start() // a start with an empty log writes no mark
	p.write(t, "a1\na2\nunfinished")
	if _, err := p.show(true, -1); !errors.Is(err, errNoPrevious) ||
		!strings.HasPrefix(err.Error(), "nothing was written before its last start") {
		t.Errorf("started twice, and nothing written before the second time: %v", err)
	}
	p.start()
	p.rotate(t)
	p.write(t, "b1\nb2\n")
	p.rotate(t)
	p.start()
	p.write(t, "c1\nc2")
	tests := []struct {
		previous bool
		lines    int
		want     string
	}{
		{false, -1, "a1\na2\nunfinished\nb1\nb2\nc1\nc2"},
		{false, 100, "a1\na2\nunfinished\nb1\nb2\nc1\nc2"},
		{false, 0, ""},
		{false, 1, "c2"},
		{false, 3, "b2\nc1\nc2"},
		{true, -1, "b1\nb2\n"},
		{true, 1, "b2\n"},
		{true, 0, ""},
	}
	for _, tt := range tests {
		if got, err := p.show(tt.previous, tt.lines); err != nil || got != tt.want {
			t.Errorf("previous %t, %d lines: %q (%v), want %q", tt.previous, tt.lines, got, err, tt.want)
		}
	}
	p.start()
	if got, err := p.show(true, -1); err != nil || got != "c1\nc2" {
		t.Errorf("previous after one more start: %q, %v", got, err)
	}
}

func TestLongLines(t *testing.T) {
	t.Parallel()
	p := newProgram(t)
	long := strings.Repeat("x", 3*MaxLine+7)
	p.write(t, "a\n"+long+"\nb\n")
	if got, err := p.show(false, 2); err != nil || got != long+"\nb\n" {
		t.Errorf("%d bytes, %v; want %d", len(got), err, len(long)+3)
	}
}

func TestOnlyRegularFilesAreRead(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	secret := filepath.Join(dir, "secret")
	if err := os.WriteFile(secret, []byte("secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(dir, "main.log")
	if err := os.Symlink(secret, link); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	tl := &tail{path: link, printer: printer{to: &out}}
	if err := tl.begin(false, -1); err == nil || out.Len() > 0 {
		t.Errorf("a link was followed: %q, %v", out.String(), err)
	}
	if err := tl.more(); err == nil || out.Len() > 0 {
		t.Errorf("a link was followed: %q, %v", out.String(), err)
	}
}

// A follower sees each line once and in order, for any text and any rotations between two looks.
func TestFollowMissesNothing(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		p := newProgram(t)
		var out bytes.Buffer
		tl := &tail{path: p.path, printer: printer{to: &out}}
		line := 0
		var want strings.Builder
		begun := false
		for range rapid.IntRange(1, 30).Draw(rt, "steps") {
			switch rapid.IntRange(0, 4).Draw(rt, "step") {
			case 0, 1:
				text := fmt.Sprintf("line %d%s", line, strings.Repeat(".", rapid.IntRange(0, 30).Draw(rt, "dots")))
				if rapid.Bool().Draw(rt, "whole") {
					text += "\n"
				}
				line++
				p.write(rt, text)
				want.WriteString(text)
			case 2:
				p.rotate(rt)
				if _, err := os.Lstat(rotatedPath(p.path, 3)); err == nil && !begun {
					begun = true // before the oldest file is deleted
					if err := tl.begin(false, -1); err != nil {
						rt.Fatal(err)
					}
				}
				if begun { // so that there are not more rotations between two looks than files
					catchUp(rt, tl)
				}
			case 3:
				if !begun {
					begun = true
					if err := tl.begin(false, -1); err != nil {
						rt.Fatal(err)
					}
				}
			case 4:
				if begun {
					catchUp(rt, tl)
				}
			}
		}
		if !begun {
			if err := tl.begin(false, -1); err != nil {
				rt.Fatal(err)
			}
		}
		catchUp(rt, tl)
		if err := tl.printer.flush(); err != nil {
			rt.Fatal(err)
		}
		if got := out.String(); got != want.String() {
			rt.Fatalf("followed %q, written %q", got, want.String())
		}
	})
}

func catchUp(rt *rapid.T, t *tail) {
	if err := t.more(); err != nil {
		rt.Fatal(err)
	}
}

// A follower misses no line over several rotations between two looks.
func TestFollowOverSeveralRotations(t *testing.T) {
	t.Parallel()
	p := newProgram(t)
	p.write(t, "a\nb")
	var out bytes.Buffer
	tl := &tail{path: p.path, printer: printer{to: &out}}
	if err := tl.begin(false, -1); err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		p.write(t, fmt.Sprintf("%d\nmore than before, so that the size says nothing %d", i, i))
		p.rotate(t)
	}
	p.write(t, "last\n")
	if err := tl.more(); err != nil {
		t.Fatal(err)
	}
	all, err := p.show(false, -1)
	if err != nil || out.String() != all {
		t.Errorf("followed %q, the log holds %q (%v)", out.String(), all, err)
	}
	if err := os.Truncate(p.path, 0); err != nil {
		t.Fatal(err)
	}
	p.write(t, "x\n")
	if err := tl.more(); err != nil || !strings.HasSuffix(out.String(), "last\nx\n") {
		t.Errorf("followed %q (%v)", out.String(), err)
	}
}

// A log can be followed and read while it is written and rotated without a pause, and shortened once.
func TestFollowUnderFire(t *testing.T) {
	t.Parallel()
	p := newProgram(t)
	if err := os.Truncate(p.path, 62<<20); err != nil { // as if so much text was rotated out
		t.Fatal(err)
	}
	var out bytes.Buffer
	tl := &tail{path: p.path, printer: printer{to: &out}}
	if err := tl.begin(false, -1); err != nil {
		t.Fatal(err)
	}
	const lines, limit, keep = 400_000, 256 << 10, 60
	written := make(chan struct{})
	var others sync.WaitGroup
	others.Go(func() { // does the same as the supervisor, but without a pause
		for last := false; !last; {
			select {
			case <-written:
				last = true
			default:
			}
			if err := logfile.Rotate(p.path, limit, keep); err != nil {
				t.Error(err)
			}
		}
	})
	others.Go(func() {
		defer close(written)
		for i := range lines {
			if _, err := fmt.Fprintf(p.f, "line %d\n", i); err != nil {
				t.Error(err)
				return
			}
		}
	})
	for running := true; running; {
		select {
		case <-written:
			running = false
		default:
		}
		if err := tl.more(); err != nil {
			t.Fatal(err)
		}
		var whole bytes.Buffer
		once := &tail{path: p.path, printer: printer{to: &whole}}
		if err := once.begin(false, -1); err != nil {
			t.Fatal(err)
		}
		consecutive(t, whole.String())
	}
	others.Wait()
	if err := tl.more(); err != nil {
		t.Fatal(err)
	}
	if n := consecutive(t, out.String()); n != lines {
		t.Errorf("%d lines were followed, want %d", n, lines)
	}
	all, err := p.show(false, -1)
	if n := consecutive(t, all); n != lines || err != nil {
		t.Errorf("%d lines are in the files (%v), want %d", n, err, lines)
	}
	if _, err := os.Stat(rotatedPath(p.path, 10)); err != nil {
		t.Error("it was rotated less than ten times:", err)
	}
}

// A log that was not rotated for long can have more text than rotated files may keep. After its rotation, a follower
// that has read the text does not read it again.
func TestFollowWhatIsNotKept(t *testing.T) {
	t.Parallel()
	p := newProgram(t)
	var out bytes.Buffer
	tl := &tail{path: p.path, printer: printer{to: &out}}
	const limit, keep = 1000, 2
	lines := 0
	write := func(n int) {
		for range n {
			p.write(t, fmt.Sprintf("line %d\n", lines))
			lines++
		}
	}
	write(10)
	if err := tl.begin(false, -1); err != nil {
		t.Fatal(err)
	}
	for range 5 {
		write(1000)
		if err := tl.more(); err != nil {
			t.Fatal(err)
		}
		write(3)
		if err := logfile.Rotate(p.path, limit, keep); err != nil {
			t.Fatal(err)
		}
		write(3)
	}
	if err := tl.more(); err != nil {
		t.Fatal(err)
	}
	if n := consecutive(t, out.String()); n != lines {
		t.Errorf("%d lines were followed, want %d", n, lines)
	}
}

// consecutive needs each line once and in order, and counts them.
func consecutive(t *testing.T, text string) (n int) {
	t.Helper()
	for line := range strings.Lines(text) {
		if want := fmt.Sprintf("line %d\n", n); line != want && (line+"\n" != want || !strings.HasSuffix(text, line)) {
			t.Fatalf("%q follows %d lines", line[:min(len(line), 100)], n)
		}
		n++
	}
	return n
}
