package nodeapi

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rcfarm/rcfarm/pkg/runtime/logfile"
)

// Bounds on logs that are read.
const (
	MaxLine    = 64 << 10 // bytes; a longer line is handed on in pieces
	maxRotated = 1000     // files of one log
)

// followEvery is how often a log that is followed is looked at.
const followEvery = 200 * time.Millisecond

// errNoPrevious is what a program has that was started once.
var errNoPrevious = errors.New("it was started once only since its log begins, so there is no earlier output")

// span is the content of a log and of its rotated files at one moment, as if it were one file.
type span struct {
	files []*os.File // the oldest first
	sizes []int64
	size  int64 // of all
	last  int64 // of the log itself
	newer fileID
}

// fileID tells rotated files apart whatever they are called. Nothing is written to them any more, so that the time of the last
// write tells those apart too that have had one number after the other.
type fileID struct {
	dev, ino uint64
	written  unix.Timespec
}

func idFrom(st *unix.Stat_t) fileID { return fileID{st.Dev, st.Ino, st.Mtim} }

func rotatedPath(path string, n int) string { return fmt.Sprintf("%s.%d", path, n) }

// idOf returns the zero value for a file that is not there.
func idOf(path string) fileID {
	var st unix.Stat_t
	if unix.Lstat(path, &st) != nil {
		return fileID{}
	}
	return idFrom(&st)
}

// openLog opens a regular file, and nothing else: the directory may belong to whoever wrote the program.
func openLog(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is no regular file", path)
	}
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

// openSpan opens all files of a log. One that is being rotated is looked at again.
func openSpan(path string) (*span, error) {
	for {
		before := idOf(rotatedPath(path, 1))
		s, err := openFiles(path)
		if err != nil {
			return nil, err
		}
		if idOf(rotatedPath(path, 1)) == before {
			s.newer = before
			return s, nil
		}
		s.close()
	}
}

func openFiles(path string) (*span, error) {
	s := &span{}
	for n := range maxRotated {
		name := path
		if n > 0 {
			name = rotatedPath(path, n)
		}
		f, err := openLog(name)
		if errors.Is(err, fs.ErrNotExist) {
			if n == 0 {
				continue // it may be about to be written
			}
			break
		}
		if err != nil {
			s.close()
			return nil, err
		}
		info, err := f.Stat()
		if err != nil {
			_ = f.Close()
			s.close()
			return nil, err
		}
		if n == 0 {
			s.last = info.Size()
		}
		s.files, s.sizes, s.size = append(s.files, f), append(s.sizes, info.Size()), s.size+info.Size()
	}
	slices.Reverse(s.files)
	slices.Reverse(s.sizes)
	return s, nil
}

func (s *span) close() {
	for _, f := range s.files {
		_ = f.Close()
	}
}

// section reads a part of the span.
func (s *span) section(from, to int64) io.Reader {
	var parts []io.Reader
	var begin int64
	for i, f := range s.files {
		end := begin + s.sizes[i]
		if low, high := max(from, begin), min(to, end); low < high {
			parts = append(parts, io.NewSectionReader(f, low-begin, high-low))
		}
		begin = end
	}
	return io.MultiReader(parts...)
}

// marks returns where the last two starts of the program are noted: each where its output begins, and where that of the
// start before ends. A log without notes was started once.
func (s *span) marks() (last, before mark, count int, err error) {
	err = s.lines(0, s.size, func(at int64, line []byte) {
		if rest, marked := logfile.CutMark(line); marked {
			before, last = last, mark{ends: at + int64(len(rest)), begins: at + int64(len(line))}
			count++
		}
	})
	return last, before, count, err
}

// mark is where the output of one start ends and that of the next begins.
type mark struct{ ends, begins int64 }

// EachLine calls visit for each line, its end included, until that returns an error. A line that is too long comes in pieces.
func EachLine(from io.Reader, visit func(line []byte) error) error {
	r := bufio.NewReaderSize(from, MaxLine)
	for {
		line, err := r.ReadSlice('\n')
		if len(line) > 0 {
			if err := visit(line); err != nil {
				return err
			}
		}
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil && !errors.Is(err, bufio.ErrBufferFull):
			return err
		}
	}
}

// lines calls visit for each line, with where it begins.
func (s *span) lines(from, to int64, visit func(at int64, line []byte)) error {
	return EachLine(s.section(from, to), func(line []byte) error {
		visit(from, line)
		from += int64(len(line))
		return nil
	})
}

// part returns which part of the span is asked for.
func (s *span) part(previous bool, tail int) (from, to int64, err error) {
	to = s.size
	if previous {
		last, before, count, err := s.marks()
		if err != nil {
			return 0, 0, err
		}
		if count == 0 {
			return 0, 0, errNoPrevious
		}
		from, to = before.begins, last.ends
	}
	if tail < 0 {
		return from, to, nil
	}
	begins := make([]int64, 0, min(tail, 1000)) // of the last lines
	next := 0
	whole := true // the last line seen has an end
	err = s.lines(from, to, func(at int64, line []byte) {
		_, marked := logfile.CutMark(line)
		if continued := !whole; !continued && !marked && tail > 0 {
			if len(begins) < tail {
				begins = append(begins, at)
			} else {
				begins[next%tail] = at
			}
			next++
		}
		whole = bytes.HasSuffix(line, []byte("\n"))
	})
	switch {
	case tail == 0:
		from = to
	case next > tail:
		from = begins[next%tail]
	}
	return from, to, err
}

// printer writes lines of one log, without the notes of starts.
type printer struct {
	to     io.Writer
	prefix string // of each line
	held   []byte // the beginning of a line
	middle bool   // the beginning of the line has been written
}

// copy writes what the reader gives. A line without an end is held until its end comes, or flush is called.
func (p *printer) copy(from io.Reader) error {
	return EachLine(from, func(line []byte) error {
		p.held = append(p.held, line...)
		if line[len(line)-1] != '\n' && len(p.held) < MaxLine {
			return nil
		}
		return p.print()
	})
}

// print writes what is held.
func (p *printer) print() error {
	line, marked := logfile.CutMark(p.held)
	defer func() { p.held = p.held[:0] }()
	if marked && (len(line) > 0 || p.middle) {
		line = append(slices.Clone(line), '\n')
	}
	if len(line) == 0 {
		return nil
	}
	if !p.middle {
		if _, err := io.WriteString(p.to, p.prefix); err != nil {
			return err
		}
	}
	p.middle = line[len(line)-1] != '\n'
	_, err := p.to.Write(line)
	return err
}

// flush writes a line that has no end yet.
func (p *printer) flush() error {
	if len(p.held) == 0 {
		return nil
	}
	return p.print()
}

// tail follows one log over its rotations.
type tail struct {
	path    string
	printer printer
	offset  int64  // in the log, of what was not read yet
	rotated fileID // of the newest rotated file that was read
	waited  int    // looks in a row that found the log half way through its rotation
}

// maxWaited bounds these looks: one whose supervisor was killed half way stays so.
const maxWaited = 10

// wait reports whether to look again before anything is taken as it is.
func (t *tail) wait(halfWay bool) bool {
	if !halfWay {
		t.waited = 0
		return false
	}
	t.waited++
	return t.waited <= maxWaited
}

// copied reports whether a log is still what its newest rotated file was copied from: it is copied first and cut after.
func (t *tail) copied(log fs.FileInfo) bool {
	rotated, err := os.Lstat(rotatedPath(t.path, 1))
	return err == nil && log.Size() >= rotated.Size() && !log.ModTime().After(rotated.ModTime())
}

// begin prints the part of the log that is asked for, and remembers where it ended.
func (t *tail) begin(previous bool, lines int) error {
	s, err := openSpan(t.path)
	if err != nil {
		return err
	}
	defer s.close()
	from, to, err := s.part(previous, lines)
	if err != nil {
		return err
	}
	t.offset, t.rotated = s.last, s.newer
	return t.printer.copy(s.section(from, to))
}

// next prints what was added. It returns false when it must be called again before anything is known: a log that is
// rotated is copied first and cut after, and what is read in between would be read twice.
func (t *tail) next() (settled bool, err error) {
	if newest := idOf(rotatedPath(t.path, 1)); newest != t.rotated {
		// Between two renames the second newest is there, and the newest is not yet.
		if t.wait(newest == fileID{} && idOf(rotatedPath(t.path, 2)) != fileID{}) {
			return false, nil
		}
		return false, t.readRotated(newest)
	}
	f, err := openLog(t.path)
	if errors.Is(err, fs.ErrNotExist) {
		t.offset = 0
		return true, nil
	}
	if err != nil {
		return true, err
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return true, err
	}
	if t.wait(t.offset == 0 && t.copied(info)) {
		return false, nil
	}
	if info.Size() < t.offset {
		if idOf(rotatedPath(t.path, 1)) != t.rotated {
			return false, nil // it was rotated just now
		}
		t.offset = 0 // cut without a copy
	}
	added := io.NewSectionReader(f, t.offset, math.MaxInt64-t.offset)
	err = t.printer.copy(added)
	n, _ := added.Seek(0, io.SeekCurrent) // it tells how far that is
	t.offset += n
	return true, err
}

// readRotated prints the rest of what was in the log, and all that came and went since.
func (t *tail) readRotated(newest fileID) error {
	var files []*os.File
	defer func() {
		for _, f := range files {
			_ = f.Close()
		}
	}()
	for n := 1; n < maxRotated; n++ {
		f, err := openLog(rotatedPath(t.path, n))
		if errors.Is(err, fs.ErrNotExist) {
			break
		}
		if err != nil {
			return err
		}
		id := idOfFile(f)
		if id == t.rotated {
			_ = f.Close()
			break
		}
		if len(files) > 0 && id == idOfFile(files[len(files)-1]) {
			_ = f.Close() // it was moved on just now
			continue
		}
		files = append(files, f)
	}
	if len(files) == 0 { // they are gone
		t.rotated = newest
		return nil
	}
	slices.Reverse(files)
	for _, f := range files {
		if _, err := f.Seek(t.offset, io.SeekStart); err != nil {
			return err
		}
		t.offset = 0
		if err := t.printer.copy(f); err != nil {
			return err
		}
	}
	t.rotated = idOfFile(files[len(files)-1])
	return nil
}

func idOfFile(f *os.File) fileID {
	var st unix.Stat_t
	if unix.Fstat(int(f.Fd()), &st) != nil {
		return fileID{}
	}
	return idFrom(&st)
}

// follow prints what is added to the logs until ctx ends, or nothing writes to them any more.
func follow(ctx context.Context, tails []*tail, more func() bool, flush func() error) error {
	tick := time.NewTicker(followEvery)
	defer tick.Stop()
	for {
		last := !more()
		for _, t := range tails {
			settled, err := t.next()
			if err != nil {
				return err
			}
			last = last && settled
		}
		if last {
			for _, t := range tails {
				if err := t.printer.flush(); err != nil {
					return err
				}
			}
			return flush()
		}
		if err := flush(); err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
