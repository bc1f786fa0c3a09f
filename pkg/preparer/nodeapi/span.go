package nodeapi

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/rcfarm/rcfarm/pkg/internal/regular"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime/logfile"
)

// maxRotated bounds the rotated files of one log that are read.
const maxRotated = 1000

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
