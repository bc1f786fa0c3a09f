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

const maxRotated = 1000

// span presents a log and its rotated files, as they are at one moment, as one file.
type span struct {
	path   string
	pieces []piece // the oldest first
	ids    []fileID
	begins []int64 // where each rotated file begins in the span, then where the log begins
	size   int64   // of the span
	newer  fileID  // id of the newest rotated file

	log      *os.File // the log itself; nil if it does not exist
	logBegin int64    // offset in the log's file where its text begins
	// hole is where the hole at the beginning of the log's file ended when the file was opened.
	hole int64

	files    []*os.File
	sections []*section
}

// piece is a part of a file without holes.
type piece struct {
	file  *os.File
	at    logfile.Part // in the file
	begin int64        // in the span
	live  bool         // the piece is in the log itself, and may be rotated out
}

func (p piece) end() int64 { return p.begin + p.at.End - p.at.From }

func (s *span) live() int64 { return s.begins[len(s.begins)-1] }

// place is a position in the text that can be found again after rotations, and after the log was shortened.
type place struct {
	in     fileID // the rotated file with the position; zero: it is in the log
	newer  fileID // the rotated file before that file; zero: none
	offset int64  // distance from the beginning of that file, without holes
	at     int64  // offset in the log's file, as if the text were still there
	begin  int64  // offset in the log's file where its text began
}

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

// find returns the present offset of a place. If the place is gone, it returns the first offset behind it.
func (s *span) find(p place) int64 {
	if i := slices.Index(s.ids, p.in); i >= 0 {
		return s.begins[i] + p.offset
	}
	// Text that was copied since then begins here. If the file before it is gone, this is the beginning of the span.
	since := s.begins[slices.Index(s.ids, p.newer)+1]
	copied, left := s.live()-since, s.size-s.live()
	if s.logBegin == 0 || copied == 0 && s.logBegin <= p.begin { // no text was rotated out, or the log was truncated
		if since+p.offset > s.size {
			return since // the program has truncated the log
		}
		return since + p.offset
	}
	// If rotations dropped a part of the log, only the offset in the log's file (p.at) is right. If it is beyond the
	// possible places, the log was shortened since, by a number of units of ShortenBy.
	ahead, most := s.ahead(p.at), min(p.offset-copied, left)
	if more := ahead - most; more > 0 {
		ahead -= (more + logfile.ShortenBy - 1) / logfile.ShortenBy * logfile.ShortenBy
	}
	return max(since, s.live()+ahead)
}

// ahead returns the distance, without holes, from the beginning of the log's text to an offset in the log's file;
// negative if the offset is before the text.
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

// fileID identifies a rotated file after a rename. An inode number can be used again, so it also has the time of the
// last write.
type fileID struct {
	dev, ino uint64
	written  syscall.Timespec
}

func idOf(info fs.FileInfo) fileID {
	st, _ := info.Sys().(*syscall.Stat_t) // always succeeds on Linux
	return fileID{st.Dev, st.Ino, st.Mtim}
}

func rotatedPath(path string, n int) string { return fmt.Sprintf("%s.%d", path, n) }

// newestID returns the id of the newest rotated file, or the zero value. While the log still has the text of this file,
// its name is from logfile.Pending.
func newestID(path string) fileID {
	for range 2 { // twice, because the file may be renamed in between
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

// openLog does not follow links, because the directory may belong to the program's user.
func openLog(path string) (*os.File, fs.FileInfo, error) {
	return regular.Open(path, os.O_RDONLY|unix.O_NOFOLLOW)
}

// maxLooks is how often a log is read again because it changed during the read. A program that makes holes could cause
// such reads for ever.
const maxLooks = 200

var errRestless = errors.New("the log is rotated or cut again and again while it is read")

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

// Tests use between to write to the log, or to rotate it.
var between = func() {}

// maxBlock is the largest block of a file system. A punched hole can end too early by less than a block.
const maxBlock = 2 << 20

// stands reports whether the log's text is still where the span found it. If so, all text that was read before this
// call is right. A rotation makes its copy the newest rotated file, then removes text from the log, then perhaps
// shortens the log. The newest file shows the first two steps. In a shortened log, the hole at the beginning ends at
// another offset. The hole is checked first: if it has its old end again, there was another rotation, and the newest
// file shows it.
func (s *span) stands() (bool, error) {
	if s.log != nil {
		hole, err := logfile.HoleEnd(s.log)
		punched := hole > s.logBegin-maxBlock && hole <= s.logBegin // only copied text was removed
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
	if pending == "" || size < upTo { // no copy, or the program has truncated the log since
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

func (s *span) openLog() (size int64, err error) {
	log, _, err := openLog(s.path)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil // the program may make it later
	}
	if err != nil {
		return 0, err
	}
	s.log, s.files = log, append(s.files, log)
	if s.hole, err = logfile.HoleEnd(log); err != nil {
		return 0, err
	}
	info, err := log.Stat() // called after newestID, so that every later change is noticed
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}

type opened struct {
	file *os.File
	info fs.FileInfo
}

// openRotated returns the oldest first. While a rotation renames files, one number may have no file.
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
		// if the file is in the list, it was renamed meanwhile
		if !slices.ContainsFunc(rotated, func(o opened) bool { return idOf(o.info) == id }) {
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

// section reads a part of a span. Text that was rotated out of the log meanwhile is read from the copy, because the log
// has zeros or later text there.
type section struct {
	of   *span
	from *span // the span that is read now; after a rotation, a later span
	at   int64 // offset in from
	left int64
}

// section returns a reader, which closes with the span.
func (s *span) section(from, to int64) *section {
	r := &section{of: s, from: s, at: from, left: to - from}
	s.sections = append(s.sections, r)
	return r
}

func (s *section) place() place { return s.from.place(s.at) }

func (s *section) Read(buf []byte) (int, error) {
	for range maxLooks {
		n, live, err := s.from.readAt(buf[:min(int64(len(buf)), s.left)], s.at)
		stands := true
		if live && err == nil {
			stands, err = s.from.stands()
		}
		switch {
		case err != nil:
			return 0, err
		case !stands:
			if err := s.moveOn(); err != nil {
				return 0, err
			}
		case n == 0 && len(buf) > 0:
			return 0, io.EOF
		default:
			s.at, s.left = s.at+int64(n), s.left-int64(n)
			return n, nil
		}
	}
	return 0, fmt.Errorf("read %s: %w", s.of.path, errRestless)
}

// moveOn opens the log again, and continues at the first unread byte.
func (s *section) moveOn() error {
	now, err := openSpan(s.of.path)
	if err != nil {
		return err
	}
	last, at, end := s.from, now.find(s.place()), now.find(s.from.place(s.at+s.left))
	s.from, s.at, s.left = now, at, max(0, end-at)
	if last != s.of {
		last.close()
	}
	return nil
}

// readAt reads from one piece. live: the piece is in the log itself. At the end of the span, n is 0.
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
