package logfile

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Part is a part of a file without holes, in bytes from its beginning.
type Part struct{ From, End int64 }

// maxParts bounds those of one log. A program that makes more holes than that has its log end there.
const maxParts = 1 << 16

// maxZeros bounds the zeros that the block may begin with in which a hole ends: it is as long as the largest page that
// there is.
const maxZeros = 2 << 20

func length(parts []Part) (n int64) {
	for _, p := range parts {
		n += p.End - p.From
	}
	return n
}

// Begin returns where a log begins that is so long: behind what was rotated out of it, which is a hole, and zeros up to
// the end of that in the middle of a block.
func Begin(log *os.File, size int64) (int64, error) {
	at, _, err := nextData(log, 0)
	if err != nil || at >= size {
		return size, err
	}
	buf := make([]byte, 4<<10)
	for end := min(size, at+maxZeros); at < end; {
		n, err := log.ReadAt(buf[:min(int64(len(buf)), end-at)], at)
		if text := bytes.TrimLeft(buf[:n], "\x00"); len(text) > 0 {
			return at + int64(n-len(text)), nil
		}
		if at += int64(n); err != nil && !errors.Is(err, io.EOF) {
			return 0, err
		}
		if n == 0 {
			break // it was cut meanwhile
		}
	}
	return min(at, size), nil
}

// HoleEnd returns where the hole ends that a log begins with: in the middle of what Begin counts to it, and at the end
// of a log that is nothing else.
func HoleEnd(log *os.File) (int64, error) {
	end, err := log.Seek(0, unix.SEEK_DATA)
	if errors.Is(err, unix.ENXIO) {
		return log.Seek(0, io.SeekEnd)
	}
	return end, err
}

// Parts returns what is in a log from an offset on, up to its size, but not in a copy of it. A program can make holes
// of its own; those are no part.
func Parts(log *os.File, from, size int64) (parts []Part, err error) {
	begin, err := Begin(log, size)
	if err != nil {
		return nil, err
	}
	for at := max(from, begin); at < size && len(parts) < maxParts; {
		p := Part{}
		if p.From, p.End, err = nextData(log, at); err != nil || p.From == p.End || p.From >= size {
			return parts, err
		}
		p.End = min(p.End, size)
		parts = append(parts, p)
		at = p.End
	}
	return parts, nil
}

// nextData returns the next part of a file, from the offset on, that is no hole; an empty one at the end (lseek(2)).
func nextData(f *os.File, offset int64) (from, end int64, err error) {
	from, err = f.Seek(offset, unix.SEEK_DATA)
	if errors.Is(err, unix.ENXIO) {
		end, err = f.Seek(0, io.SeekEnd)
		return end, end, err
	}
	if err != nil {
		return 0, 0, err
	}
	end, err = f.Seek(from, unix.SEEK_HOLE) // the end of a file counts as one
	if errors.Is(err, unix.ENXIO) {
		return offset, offset, nil // it was cut meanwhile
	}
	return from, end, err
}

// newest returns the parts without what would not be kept, from a whole line on: where there is more than what goes
// into so many files and what may stay in the log.
func newest(log *os.File, parts []Part, limit int64, keep int) ([]Part, error) {
	all := length(parts)
	if all <= int64(keep+1)*limit {
		return parts, nil
	}
	_, parts = split(parts, all-int64(keep)*limit-1) // a line may begin just there
	next, err := nextLine(io.NewSectionReader(log, parts[0].From, parts[0].End-parts[0].From))
	_, parts = split(parts, max(next, 1))
	return parts, err
}

// cut returns what the next copy is to hold, which ends with a line where it can, and what remains. No copy is left
// that holds next to nothing.
func cut(log *os.File, parts []Part, limit int64) (chunk, rest []Part, err error) {
	take := limit
	if all := length(parts); all <= 2*limit {
		take = all
	}
	chunk, rest = split(parts, take)
	last := &chunk[len(chunk)-1]
	after, err := lastLine(log, *last)
	if err != nil || after == last.From || after == last.End { // one line, which is cut where it is
		return chunk, rest, err
	}
	if len(rest) > 0 && rest[0].From == last.End {
		rest[0].From = after
	} else {
		rest = append([]Part{{after, last.End}}, rest...)
	}
	last.End = after
	return chunk, rest, nil
}

// split divides parts behind so many bytes.
func split(parts []Part, n int64) (first, rest []Part) {
	for i, p := range parts {
		if l := p.End - p.From; n >= l {
			n -= l
			continue
		}
		first = append(first, parts[:i]...)
		if n > 0 {
			first = append(first, Part{p.From, p.From + n})
		}
		return first, append([]Part{{p.From + n, p.End}}, parts[i+1:]...)
	}
	return parts, nil
}

// nextLine is the offset after the first line break, and 0 when there is none.
func nextLine(r io.Reader) (int64, error) {
	buf := make([]byte, 32<<10)
	for read := int64(0); ; {
		n, err := r.Read(buf)
		if i := bytes.IndexByte(buf[:n], '\n'); i >= 0 {
			return read + int64(i) + 1, nil
		}
		read += int64(n)
		if errors.Is(err, io.EOF) {
			return 0, nil
		}
		if err != nil {
			return 0, err
		}
	}
}

// lastLine is the offset after the last line break of a part, and its beginning when there is none.
func lastLine(log *os.File, p Part) (int64, error) {
	buf := make([]byte, 32<<10)
	for end := p.End; end > p.From; {
		from := max(p.From, end-int64(len(buf)))
		n, err := log.ReadAt(buf[:end-from], from)
		if i := bytes.LastIndexByte(buf[:n], '\n'); i >= 0 {
			return from + int64(i) + 1, nil
		}
		if err != nil && !errors.Is(err, io.EOF) {
			return 0, err
		}
		end = from
	}
	return p.From, nil
}

// pendingMark is between a log's name and how far a copy goes.
const pendingMark = ".upto-"

func pendingPath(path string, upTo int64) string {
	return path + pendingMark + strconv.FormatInt(upTo, 10)
}

// Pending returns the copy of a log that is about to be log.1, and how far in the log it goes: the log begins there,
// though what is before that may be in it still. It is "" where there is none.
func Pending(path string) (pending string, upTo int64, err error) {
	dir, err := os.Open(filepath.Dir(path))
	if errors.Is(err, fs.ErrNotExist) {
		return "", 0, nil
	}
	if err != nil {
		return "", 0, fmt.Errorf("look for copies of a log: %w", err)
	}
	names, err := dir.Readdirnames(-1)
	if err = errors.Join(err, dir.Close()); err != nil {
		return "", 0, fmt.Errorf("look for copies of a log: %w", err)
	}
	for _, name := range names {
		number, is := strings.CutPrefix(name, filepath.Base(path)+pendingMark)
		if upTo, err := strconv.ParseInt(number, 10, 64); is && err == nil && upTo > 0 {
			return pendingPath(path, upTo), upTo, nil
		}
	}
	return "", 0, nil
}
