package nodeapi

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rcfarm/rcfarm/pkg/internal/regular"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime/logfile"
)

// Bounds on logs that are read.
const (
	MaxLine    = 64 << 10 // bytes; a longer line is handed on in pieces
	maxRotated = 1000     // files of one log
)

// followEvery is how often a log that is followed is looked at.
const followEvery = 200 * time.Millisecond

// errNoPrevious is what is told of a log without a start that found something written. Starts that found nothing leave no note.
var errNoPrevious = errors.New("nothing was written before its last start, or the log does not go back so far")

// span is the content of a log and of its rotated files at one moment, as if it were one file.
type span struct {
	files []*os.File    // the oldest first
	infos []fs.FileInfo // of each
	size  int64         // of all
	log   fs.FileInfo   // of the log itself; nil: it is not there
	newer fileID        // of the newest rotated file
}

// last is the size of the log itself.
func (s *span) last() int64 {
	if s.log == nil {
		return 0
	}
	return s.log.Size()
}

// fileID tells rotated files apart whatever they are called. Nothing is written to them any more, so that the time of the last
// write tells those apart too that have had one number after the other.
type fileID struct {
	dev, ino uint64
	written  syscall.Timespec
}

func idOf(info fs.FileInfo) fileID {
	st, _ := info.Sys().(*syscall.Stat_t) // there is one on Linux
	return fileID{st.Dev, st.Ino, st.Mtim}
}

func rotatedPath(path string, n int) string { return fmt.Sprintf("%s.%d", path, n) }

// rotatedID returns the zero value for a file that is not there.
func rotatedID(path string, n int) fileID {
	info, err := os.Lstat(rotatedPath(path, n))
	if err != nil {
		return fileID{}
	}
	return idOf(info)
}

// openLog opens a regular file, and no link to one: the directory may belong to whoever wrote the program.
func openLog(path string) (*os.File, fs.FileInfo, error) {
	return regular.Open(path, os.O_RDONLY|unix.O_NOFOLLOW)
}

// openSpan opens all files of a log. One that is being rotated is looked at again.
func openSpan(path string) (*span, error) {
	for {
		before := rotatedID(path, 1)
		s, err := openFiles(path)
		if err != nil {
			return nil, err
		}
		if rotatedID(path, 1) == before {
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
		f, info, err := openLog(name)
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
		if n == 0 {
			s.log = info
		}
		s.files, s.infos, s.size = append(s.files, f), append(s.infos, info), s.size+info.Size()
	}
	slices.Reverse(s.files)
	slices.Reverse(s.infos)
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
		end := begin + s.infos[i].Size()
		if low, high := max(from, begin), min(to, end); low < high {
			parts = append(parts, io.NewSectionReader(f, low-begin, high-low))
		}
		begin = end
	}
	return io.MultiReader(parts...)
}

// marks returns where the last two starts of the program are noted: each where its output begins, and where that of the
// start before ends. A start that finds nothing written is not noted.
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

// copied reports whether the log is still what its newest rotated file was copied from: it is copied first and cut after.
func (s *span) copied() bool {
	n := len(s.infos)
	return s.log != nil && n > 1 && s.log.Size() >= s.infos[n-2].Size() && !s.log.ModTime().After(s.infos[n-2].ModTime())
}

// since returns where in the span an offset in the log is now, from the time when that was its newest rotated file.
func (s *span) since(newest fileID, offset int64) int64 {
	i, begin := len(s.infos), s.size
	for i > 0 && idOf(s.infos[i-1]) != newest {
		i--
		begin -= s.infos[i].Size()
	}
	if i == len(s.infos) {
		return s.size
	}
	return begin + min(offset, s.infos[i].Size()) // a copy may be shorter than the log was
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
	t.offset, t.rotated = s.last(), s.newer
	return t.printer.copy(s.section(from, to))
}

// next prints what was added, over rotations. It returns false when it must be called again before anything is known: a log that is
// rotated is copied first and cut after, and what is read in between would be read twice.
func (t *tail) next() (caughtUp bool, err error) {
	s, err := openSpan(t.path)
	if err != nil {
		return true, err
	}
	defer s.close()
	none := fileID{}
	// Between two renames the second newest is there, and the newest is not yet.
	betweenRenames := s.newer == none && rotatedID(t.path, 2) != none
	if t.wait(betweenRenames || s.newer != t.rotated && s.copied()) {
		return false, nil
	}
	if s.newer == t.rotated && s.last() < t.offset {
		t.offset = 0 // cut without a copy
	}
	from := s.since(t.rotated, t.offset)
	added := &io.LimitedReader{R: s.section(from, s.size), N: s.size - from}
	err = t.printer.copy(added)
	t.offset, t.rotated = s.last()-added.N, s.newer // what is cut while it is read is in the copy
	return true, err
}

// follow prints what is added to the logs until ctx ends, or nothing writes to them any more.
func follow(ctx context.Context, tails []*tail, more func() bool, flush func() error) error {
	for {
		last := !more()
		for _, t := range tails {
			caughtUp, err := t.next()
			if err != nil {
				return err
			}
			last = last && caughtUp
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
		case <-time.After(followEvery):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
