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
	path   string
	pieces []piece // the oldest first
	ids    []fileID
	begins []int64 // where each file begins, and the log behind them
	size   int64   // of all
	newer  fileID  // of the newest rotated file

	logBegin, logEnd int64 // of what there is of the log itself, in that

	files []*os.File
	later []*span // opened because the log was rotated while it was read
}

// piece is a part of a file without holes.
type piece struct {
	file  *os.File
	at    logfile.Part // in the file
	begin int64        // in the span
	live  bool         // of the log itself, out of which it may be rotated
}

// live is where the log itself begins.
func (s *span) live() int64 { return s.begins[len(s.begins)-1] }

// place is one in the log itself, by which it is found again when it was rotated out of that.
type place struct {
	newer  fileID // of what was the newest rotated file
	offset int64  // from where the log began then, without holes
	at     int64  // in the log's file
	begin  int64  // of the log in its file
}

// place returns one in the log itself.
func (s *span) place(at int64) place {
	p := place{newer: s.newer, offset: at - s.live(), at: s.logBegin, begin: s.logBegin}
	for _, part := range s.pieces {
		if part.live && part.begin <= at {
			p.at = part.at.From + at - part.begin
		}
	}
	return p
}

// find returns where in the span a place is now, and the first that is behind it where that is gone.
func (s *span) find(p place) int64 {
	since := s.begins[slices.Index(s.ids, p.newer)+1] // what has come since begins here; everything where the file is gone
	switch {
	case s.logBegin > p.begin && p.at <= s.logEnd: // something was rotated out of the log, and perhaps not all of it copied
		return max(since, s.live()+p.at-s.logBegin)
	case since+p.offset > s.size:
		return since // the log was cut by its program
	default: // nothing was rotated, or the log was made shorter then
		return since + p.offset
	}
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

// newestID returns that of the newest rotated file, which has another name until it is no longer in the log. It is the
// zero value where there is none.
func newestID(path string) fileID {
	for range 2 { // it may get its number in between
		pending, _, err := logfile.Pending(path)
		if err != nil || pending == "" {
			break
		}
		if info, err := os.Lstat(pending); err == nil {
			return idOf(info)
		}
	}
	info, err := os.Lstat(rotatedPath(path, 1))
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
		before := newestID(path)
		s, err := openFiles(path)
		if err != nil {
			return nil, err
		}
		if n := len(s.ids); n > 0 {
			s.newer = s.ids[n-1]
		}
		if s.newer == before && newestID(path) == before {
			return s, nil
		}
		s.close()
	}
}

func openFiles(path string) (s *span, err error) {
	s = &span{path: path}
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	log, info, err := openLog(path)
	switch {
	case err == nil:
		s.files = append(s.files, log)
	case !errors.Is(err, fs.ErrNotExist): // else it may be about to be written
		return s, err
	}
	pending, upTo, err := logfile.Pending(path)
	if err != nil {
		return s, err
	}
	rotated, err := s.openRotated(path, pending)
	if err != nil {
		return s, err
	}
	for _, r := range rotated {
		s.begins, s.ids = append(s.begins, s.size), append(s.ids, idOf(r.info))
		s.add(r.file, false, logfile.Part{End: r.info.Size()})
	}
	s.begins = append(s.begins, s.size)
	if log != nil {
		if pending == "" || info.Size() < upTo { // its program has cut it since
			upTo = 0
		}
		parts, err := logfile.Parts(log, upTo, info.Size())
		if err != nil {
			return s, err
		}
		s.logBegin, s.logEnd = max(upTo, info.Size()), info.Size()
		if len(parts) > 0 {
			s.logBegin = parts[0].From
		}
		s.add(log, true, parts...)
	}
	return s, nil
}

type opened struct {
	file *os.File
	info fs.FileInfo
}

// openRotated opens the rotated files, the oldest first. While one is about to get the first number, there is one
// number without a file.
func (s *span) openRotated(path, pending string) (rotated []opened, err error) {
	free := 0
	names := func(n int) string { return rotatedPath(path, n) }
	if pending != "" {
		free = 1
		names = func(n int) string {
			if n == 1 {
				return pending
			}
			return rotatedPath(path, n-1)
		}
	}
	for n := 1; n < maxRotated; n++ {
		f, info, err := openLog(names(n))
		switch {
		case errors.Is(err, fs.ErrNotExist) && free > 0:
			free--
			continue
		case errors.Is(err, fs.ErrNotExist):
			slices.Reverse(rotated)
			return rotated, nil
		case err != nil:
			return nil, err
		}
		s.files = append(s.files, f)
		if known := slices.ContainsFunc(rotated, func(o opened) bool { return idOf(o.info) == idOf(info) }); !known { // it was moved meanwhile
			rotated = append(rotated, opened{f, info})
		}
	}
	slices.Reverse(rotated)
	return rotated, nil
}

func (s *span) add(f *os.File, live bool, parts ...logfile.Part) {
	for _, p := range parts {
		s.pieces = append(s.pieces, piece{file: f, at: p, begin: s.size, live: live})
		s.size += p.End - p.From
	}
}

func (s *span) close() {
	for _, f := range s.files {
		_ = f.Close()
	}
	for _, l := range s.later {
		l.close()
	}
}

// section reads a part of the span.
func (s *span) section(from, to int64) io.Reader {
	var parts []io.Reader
	for _, p := range s.pieces {
		low, high := max(from, p.begin), min(to, p.begin+p.at.End-p.at.From)
		if low >= high {
			continue
		}
		var r io.Reader = io.NewSectionReader(p.file, p.at.From+low-p.begin, high-low)
		if p.live {
			r = &liveReader{span: s, from: r, at: low, end: high}
		}
		parts = append(parts, r)
	}
	return io.MultiReader(parts...)
}

// liveReader reads from the log itself. What is rotated out of it before it was read is read from where it is then: in
// the log are zeros.
type liveReader struct {
	span    *span
	from    io.Reader
	at, end int64 // in the span
	moved   bool
}

func (r *liveReader) Read(buf []byte) (int, error) {
	n, err := r.from.Read(buf)
	if r.moved || newestID(r.span.path) == r.span.newer {
		r.at += int64(n)
		return n, err
	}
	now, err := openSpan(r.span.path)
	if err != nil {
		return 0, err
	}
	r.span.later = append(r.span.later, now)
	at := now.find(r.span.place(r.at))
	r.from, r.moved = now.section(at, at+r.end-r.at), true // which looks for itself whether it is moved on
	return r.from.Read(buf)
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
	next    place // of what was not read yet
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
	t.next = s.place(s.size)
	return t.printer.copy(s.section(from, to))
}

// more prints what was added, over rotations.
func (t *tail) more() error {
	s, err := openSpan(t.path)
	if err != nil {
		return err
	}
	defer s.close()
	from := s.find(t.next)
	added := &io.LimitedReader{R: s.section(from, s.size), N: s.size - from}
	err = t.printer.copy(added)
	t.next = s.place(s.size - added.N) // what is cut while it is read is in the copy
	return err
}

// follow prints what is added to the logs until ctx ends, or nothing writes to them any more.
func follow(ctx context.Context, tails []*tail, more func() bool, flush func() error) error {
	for {
		last := !more()
		for _, t := range tails {
			if err := t.more(); err != nil {
				return err
			}
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
