package nodeapi

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rcfarm/rcfarm/pkg/internal/disktest"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime/logfile"
)

// farAlong is what was rotated out of a log in these tests, nearly so much that a rotation makes it shorter by itself.
const farAlong = 63 << 20

// longRotated returns a log that so much was rotated out of.
func longRotated(t *testing.T) *program {
	t.Helper()
	p := newProgram(t)
	if err := os.Truncate(p.path, farAlong); err != nil {
		t.Fatal(err)
	}
	return p
}

// lines writes numbered lines, and returns the number that is next.
func (p *program) lines(t *testing.T, from, n int) (next int) {
	t.Helper()
	var text bytes.Buffer
	for i := range n {
		fmt.Fprintf(&text, "line %d\n", from+i)
	}
	p.write(t, text.String())
	return from + n
}

// content returns where in its file a log begins, and what is in it.
func (p *program) content(t *testing.T) (begin int64, text []byte) {
	t.Helper()
	f, info, err := openLog(p.path)
	if err == nil {
		defer f.Close()
		begin, err = logfile.Begin(f, info.Size())
	}
	if err == nil {
		text, err = io.ReadAll(io.NewSectionReader(f, begin, info.Size()-begin))
	}
	if err != nil {
		t.Fatal(err)
	}
	return begin, text
}

// moveOut does what a rotation does before its end: what is in the log is in a copy that has no number yet, whose name
// it returns, and in the log is a hole.
func (p *program) moveOut(t *testing.T) (pending string) {
	t.Helper()
	begin, text := p.content(t)
	end := begin + int64(len(text))
	pending = fmt.Sprintf("%s.upto-%d", p.path, end)
	f, err := os.OpenFile(p.path, os.O_RDWR, 0)
	if err == nil {
		err = errors.Join(os.WriteFile(pending, text, 0o600),
			unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, end), f.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	return pending
}

// shorten does what a rotation does at its end, on any file system: it takes away most of the hole that the log begins
// with.
func (p *program) shorten(t *testing.T) {
	t.Helper()
	begin, text := p.content(t)
	if err := errors.Join(os.Truncate(p.path, 0), os.Truncate(p.path, begin%logfile.ShortenBy)); err != nil {
		t.Fatal(err)
	}
	p.write(t, string(text))
}

// doAt has something done at one step of a look at a log, and reports whether there was such a step.
func doAt(step int, do, look func()) (done bool) {
	defer func() { between = func() {} }()
	between = func() {
		if step--; step == 0 {
			done = true
			do()
		}
	}
	look()
	return done
}

// The last that a rotation does is to make a log shorter. What is in it has other offsets then, and no rotated file
// tells of that. Between any two steps of a look: who follows the log does not go back, and who reads it sees all of
// it.
func TestReadWhileTheLogIsMadeShorter(t *testing.T) {
	for name, look := range map[string]func(*tail) error{
		"follow": func(t *tail) error { return t.more() },
		"read": func(t *tail) error {
			t.printer.to.(*bytes.Buffer).Reset()
			return t.begin(false, -1)
		},
	} {
		for step, done := 1, true; done; step++ {
			p := longRotated(t)
			next := p.lines(t, 0, 300)
			var seen bytes.Buffer
			tl := &tail{path: p.path, printer: printer{to: &seen}}
			if err := tl.begin(false, -1); err != nil {
				t.Fatal(err)
			}
			pending := p.moveOut(t)
			next = p.lines(t, next, 200) // which a follower must not take for what is in the copy
			var err error
			done = doAt(step, func() {
				if err := logfile.Shift(pending, p.path, 3); err != nil {
					t.Fatal(err)
				}
				p.shorten(t)
			}, func() { err = look(tl) })
			if n := consecutive(t, seen.String()); n != next || err != nil {
				t.Errorf("%s, step %d: %d lines were seen, want %d: %v", name, step, n, next, err)
			}
			next = p.lines(t, next, 100)
			if err := tl.more(); err != nil {
				t.Fatal(err)
			}
			if n := consecutive(t, seen.String()); n != next {
				t.Errorf("%s, step %d: %d lines were seen later, want %d", name, step, n, next)
			}
		}
	}
}

// Where no holes can be punched a log is cut behind each copy, and is followed all the same.
func TestFollowWithoutHoles(t *testing.T) {
	disktest.Run(t, 1<<20, func(t *testing.T, disk string) {
		ram := filepath.Join(disk, "ram")
		if err := errors.Join(os.Mkdir(ram, 0o755), unix.Mount("ram", ram, "ramfs", 0, "")); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = unix.Unmount(ram, unix.MNT_DETACH) })
		t.Setenv("TMPDIR", ram)
		p := newProgram(t)
		next := p.lines(t, 0, 100)
		var out bytes.Buffer
		tl := &tail{path: p.path, printer: printer{to: &out}}
		if err := tl.begin(false, -1); err != nil {
			t.Fatal(err)
		}
		for range 5 {
			next = p.lines(t, next, 200)
			if err := logfile.Rotate(p.path, 1000, 3); !errors.Is(err, logfile.ErrCut) {
				t.Fatalf("got %v, want ErrCut", err)
			}
			next = p.lines(t, next, 10)
			if err := tl.more(); err != nil {
				t.Fatal(err)
			}
			if n := consecutive(t, out.String()); n != next {
				t.Errorf("%d lines were followed, want %d", n, next)
			}
		}
	})
}

// A program may make holes in its log and cut it, again and again. That ends a look at it, which takes no time for
// ever.
func TestReadOfARestlessLog(t *testing.T) {
	p := newProgram(t)
	p.lines(t, 0, 10)
	defer func() { between = func() {} }()
	long := int64(0)
	between = func() {
		long += 4 << 20
		if err := errors.Join(os.Truncate(p.path, 0), os.Truncate(p.path, long)); err != nil {
			t.Fatal(err)
		}
		p.write(t, "line\n")
	}
	if _, err := openSpan(p.path); !errors.Is(err, errRestless) {
		t.Errorf("got %v, want errRestless", err)
	}
}
