package nodeapi

import (
	"cmp"
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

	log      *os.File // the log itself, nil where there is none
	logBegin int64    // in its file: where the log begins
	hole     int64    // in its file: where the hole ended that it began with when it was opened

	files    []*os.File
	sections []*section
}

// piece is a part of a file without holes.
type piece struct {
	file  *os.File
	at    logfile.Part // in the file
	begin int64        // in the span
	live  bool         // of the log itself, out of which it may be rotated
}

// end is where a piece ends in the span.
func (p piece) end() int64 { return p.begin + p.at.End - p.at.From }

// live is where the log itself begins.
func (s *span) live() int64 { return s.begins[len(s.begins)-1] }

// place is one in the log, by which it is found again whatever was rotated out of that, and where the log was made
// shorter.
type place struct {
	in     fileID // the rotated file that it is in, if it is in one
	newer  fileID // of the rotated file that was before the file that it is in, if there was one
	offset int64  // from where that begins, without holes
	at     int64  // in the log's file, though it may not be in there any more
	begin  int64  // of the log in its file
}

// place returns that of an offset.
func (s *span) place(at int64) place {
	in := len(s.ids)
	for in > 0 && s.begins[in] > at {
		in--
	}
	p := place{offset: at - s.begins[in], at: s.logBegin + at - s.live(), begin: s.logBegin}
	if in > 0 {
		p.newer = s.ids[in-1]
	}
	if in < len(s.ids) {
		p.in = s.ids[in]
	}
	for _, part := range s.pieces {
		if part.live && part.begin <= at {
			p.at = part.at.From + at - part.begin
		}
	}
	return p
}

// find returns where in the span a place is now, and the first that is behind it where that is gone.
func (s *span) find(p place) int64 {
	if i := slices.Index(s.ids, p.in); i >= 0 {
		return s.begins[i] + p.offset
	}
	// What was copied since begins here: everything, where the file before that is gone.
	since := s.begins[slices.Index(s.ids, p.newer)+1]
	copied, left := s.live()-since, s.size-s.live()
	if s.logBegin == 0 || copied == 0 && s.logBegin <= p.begin { // nothing was rotated out of it, or it was cut then
		if since+p.offset > s.size {
			return since // its program has cut it
		}
		return since + p.offset
	}
	// Its offset in the file is right where something was left out of the copies. If it is too large, the log was made
	// shorter since, by so many units as lead to where the place can be.
	ahead, most := s.ahead(p.at), min(p.offset-copied, left)
	if more := ahead - most; more > 0 {
		ahead -= (more + logfile.ShortenBy - 1) / logfile.ShortenBy * logfile.ShortenBy
	}
	return max(since, s.live()+ahead)
}

// ahead returns how far a place in the log's file is from where the log begins, without holes; negative before that.
func (s *span) ahead(at int64) int64 {
	if at < s.logBegin {
		return at - s.logBegin
	}
	end := s.logBegin
	for _, p := range s.pieces {
		switch {
		case !p.live:
			continue
		case at < p.at.From:
			return p.begin - s.live()
		case at < p.at.End:
			return p.begin - s.live() + at - p.at.From
		}
		end = p.at.End
	}
	return s.size - s.live() + at - end
}

// fileID tells rotated files apart whatever they are called. Nothing is written to them any more, so that the time of
// the last write tells those apart too that have had one number after the other.
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
		between()
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

// maxLooks bounds how often a log is looked at anew because it was changed meanwhile. A rotation takes a few of them; a
// program that makes holes could go on for ever.
const maxLooks = 200

var errRestless = errors.New("the log is rotated or cut again and again while it is read")

// openSpan opens all files of a log. One that is being rotated is looked at again.
func openSpan(path string) (*span, error) {
	for range maxLooks {
		before := newestID(path)
		s, err := openFiles(path)
		if err != nil {
			return nil, err
		}
		stands, err := s.stands()
		if stands && s.newer == before {
			return s, nil
		}
		s.close()
		if err != nil {
			return nil, err
		}
	}
	return nil, fmt.Errorf("read %s: %w", path, errRestless)
}

// between is called between two steps of a look at a log. Tests write and rotate there.
var between = func() {}

// maxBlock is the largest block in which a hole may end that is punched.
const maxBlock = 2 << 20

// stands reports whether what was found in the log is still where it was: then what was read of it before this call is
// right. A rotation makes its copy the newest file before it takes anything out of the log, and at its end it may make
// the log shorter, which no file tells, but the hole that the log begins with ends elsewhere then. The hole is looked
// at first: it may be back where it was only after another rotation, which the newest file tells.
func (s *span) stands() (bool, error) {
	if s.log != nil {
		hole, err := logfile.HoleEnd(s.log)
		punched := hole > s.logBegin-maxBlock && hole <= s.logBegin // that is no longer in the log which is in the copy
		if err != nil || hole != s.hole && !punched {
			return false, err
		}
	}
	between()
	return newestID(s.path) == s.newer, nil
}

func openFiles(path string) (s *span, err error) {
	s = &span{path: path}
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	size, err := s.openLog()
	if err != nil {
		return s, err
	}
	between()
	pending, upTo, err := logfile.Pending(path)
	if err != nil {
		return s, err
	}
	between()
	rotated, err := s.openRotated(path, pending)
	if err != nil {
		return s, err
	}
	between()
	for _, r := range rotated {
		s.newer = idOf(r.info)
		s.begins, s.ids = append(s.begins, s.size), append(s.ids, s.newer)
		s.add(r.file, false, logfile.Part{End: r.info.Size()})
	}
	s.begins = append(s.begins, s.size)
	if s.log == nil {
		return s, nil
	}
	if pending == "" || size < upTo { // its program has cut it since
		upTo = 0
	}
	parts, err := logfile.Parts(s.log, upTo, size)
	if err != nil {
		return s, err
	}
	s.logBegin = max(upTo, size)
	if len(parts) > 0 {
		s.logBegin = parts[0].From
	}
	s.add(s.log, true, parts...)
	between()
	return s, nil
}

// openLog opens the log itself, if there is one, and returns how long it is.
func (s *span) openLog() (size int64, err error) {
	log, _, err := openLog(s.path)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil // it may be about to be written
	}
	if err != nil {
		return 0, err
	}
	s.log, s.files = log, append(s.files, log)
	if s.hole, err = logfile.HoleEnd(log); err != nil {
		return 0, err
	}
	info, err := log.Stat() // behind that: what has changed until then is found, and what changes later is seen
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
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
		id := idOf(info)
		if !slices.ContainsFunc(rotated, func(o opened) bool { return idOf(o.info) == id }) { // else it was moved meanwhile
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
	for _, r := range s.sections {
		if r.from != s {
			r.from.close()
		}
	}
}

// section reads a part of a span. What is rotated out of the log before it was read is read from where it is then: in
// the log are zeros, or what was written later.
type section struct {
	of   *span
	from *span // that it reads, a later one when the log was rotated
	at   int64 // in that
	left int64
}

// section returns what reads a part of the span, until that is closed.
func (s *span) section(from, to int64) *section {
	r := &section{of: s, from: s, at: from, left: to - from}
	s.sections = append(s.sections, r)
	return r
}

// place returns how far it has read.
func (r *section) place() place { return r.from.place(r.at) }

func (r *section) Read(buf []byte) (int, error) {
	for range maxLooks {
		n, live, err := r.from.readAt(buf[:min(int64(len(buf)), r.left)], r.at)
		stands := true
		if live && err == nil {
			stands, err = r.from.stands()
		}
		switch {
		case err != nil:
			return 0, err
		case !stands:
			if err := r.moveOn(); err != nil {
				return 0, err
			}
		case n == 0 && len(buf) > 0:
			return 0, io.EOF
		default:
			r.at, r.left = r.at+int64(n), r.left-int64(n)
			return n, nil
		}
	}
	return 0, fmt.Errorf("read %s: %w", r.of.path, errRestless)
}

// moveOn opens the log anew, and goes on from where that is which was not read yet.
func (r *section) moveOn() error {
	now, err := openSpan(r.of.path)
	if err != nil {
		return err
	}
	last, at, end := r.from, now.find(r.place()), now.find(r.from.place(r.at+r.left))
	r.from, r.at, r.left = now, at, max(0, end-at)
	if last != r.of {
		last.close()
	}
	return nil
}

// readAt reads what is in one piece, and says whether that is in the log itself. It reads nothing at the end.
func (s *span) readAt(buf []byte, at int64) (n int, live bool, err error) {
	i, found := slices.BinarySearchFunc(s.pieces, at, func(p piece, at int64) int { return cmp.Compare(p.begin, at) })
	if !found {
		i--
	}
	if i < 0 || at >= s.pieces[i].end() || len(buf) == 0 {
		return 0, false, nil
	}
	p := s.pieces[i]
	n, err = p.file.ReadAt(buf[:min(int64(len(buf)), p.end()-at)], p.at.From+at-p.begin)
	between()
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return n, p.live, err
}
