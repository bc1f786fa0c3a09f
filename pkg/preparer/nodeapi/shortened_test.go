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

// farAlong is a little less than the size from which a rotation shortens the log by itself.
const farAlong = 63 << 20

// longRotated has rotated farAlong bytes out.
func longRotated(t *testing.T) *program {
	t.Helper()
	p := newProgram(t)
	if err := os.Truncate(p.path, farAlong); err != nil {
		t.Fatal(err)
	}
	return p
}

func (p *program) lines(t *testing.T, from, n int) (next int) {
	t.Helper()
	var text bytes.Buffer
	for i := range n {
		fmt.Fprintf(&text, "line %d\n", from+i)
	}
	p.write(t, text.String())
	return from + n
}

// content returns where the log's text begins, and the text.
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

// moveOut does the middle of a rotation: it copies the text to a file without a number, whose name it returns, and
// makes a hole in the log.
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

// shorten does a rotation's last step on any file system: it removes most of the hole at the log's beginning.
func (p *program) shorten(t *testing.T) {
	t.Helper()
	begin, text := p.content(t)
	if err := errors.Join(os.Truncate(p.path, 0), os.Truncate(p.path, begin%logfile.ShortenBy)); err != nil {
		t.Fatal(err)
	}
	p.write(t, string(text))
}

// doAt calls do at one step of look, and reports whether look has so many steps.
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

// A rotation's last step shortens the log: the same text is at other offsets, and no new file shows it. If this happens
// between any steps of one reading, a follower reads no text twice, and a reader gets the whole text.
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
			next = p.lines(t, next, 200) // a follower must not confuse these lines with the text in the copy
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

// Without holes in the file system, logs are truncated after each copy, and can still be followed.
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

// Reading a log in which a program makes holes, and which it truncates, again and again, ends with an error.
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
