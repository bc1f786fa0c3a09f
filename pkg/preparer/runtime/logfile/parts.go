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

// Part is a part of a file without holes, in bytes from the beginning of the file.
type Part struct{ From, End int64 }

// maxParts bounds the parts of one log. Text behind them is ignored.
const maxParts = 1 << 16

// maxZeros is the most zeros that can follow a hole, because the hole ended within a block: the size of the largest
// page.
const maxZeros = 2 << 20

func length(parts []Part) (n int64) {
	for _, p := range parts {
		n += p.End - p.From
	}
	return n
}

// Begin returns where the text of a log of this size begins: behind the hole that rotations have made. If the hole ends
// within a block, Begin also skips the zeros at the beginning of that block.
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
			break // the log was truncated meanwhile
		}
	}
	return min(at, size), nil
}

// HoleEnd returns the end of the hole at the beginning of a log, without the zeros that Begin skips. If the whole log
// is a hole, it returns the log's end.
func HoleEnd(log *os.File) (int64, error) {
	end, err := log.Seek(0, unix.SEEK_DATA)
	if errors.Is(err, unix.ENXIO) {
		return log.Seek(0, io.SeekEnd)
	}
	return end, err
}

// Parts returns the parts of a log between from and size, without holes of rotations or of the program.
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

// nextData returns the next part, from the offset on, that is not a hole. At the end of the file it is empty
// (lseek(2)).
func nextData(f *os.File, offset int64) (from, end int64, err error) {
	from, err = f.Seek(offset, unix.SEEK_DATA)
	if errors.Is(err, unix.ENXIO) {
		end, err = f.Seek(0, io.SeekEnd)
		return end, end, err
	}
	if err != nil {
		return 0, 0, err
	}
	end, err = f.Seek(from, unix.SEEK_HOLE) // the end of a file is a hole too
	if errors.Is(err, unix.ENXIO) {
		return offset, offset, nil // the file was truncated meanwhile
	}
	return from, end, err
}

// newest drops the oldest text, up to the beginning of a line, if the parts have more than rotated files and log may
// have together. Later rotations would drop this text anyway.
func newest(log *os.File, parts []Part, limit int64, keep int) ([]Part, error) {
	all := length(parts)
	if all <= int64(keep+1)*limit {
		return parts, nil
	}
	_, parts = split(parts, all-int64(keep)*limit-1) // one byte more stays, because a line may begin exactly there
	next, err := nextLine(io.NewSectionReader(log, parts[0].From, parts[0].End-parts[0].From))
	_, parts = split(parts, max(next, 1))
	return parts, err
}

// cut returns the parts for the next copy, and the rest. The copy ends with a whole line if possible. If the parts have
// at most twice the limit, the copy has all.
func cut(log *os.File, parts []Part, limit int64) (chunk, rest []Part, err error) {
	take := limit
	if all := length(parts); all <= 2*limit {
		take = all
	}
	chunk, rest = split(parts, take)
	last := &chunk[len(chunk)-1]
	after, err := lastLine(log, *last)
	if err != nil || after == last.From || after == last.End { // a single line, or a part that ends with a line
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

// nextLine returns the offset after the first line break, or 0.
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

// lastLine returns the offset after the last line break of a part, or the beginning of the part.
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

const pendingMark = ".upto-"

func pendingPath(path string, upTo int64) string {
	return path + pendingMark + strconv.FormatInt(upTo, 10)
}

// Pending returns the copy of a log that will become log.1, or "", and the position in the log up to which it reaches.
// Readers begin to read the log at this position, although the log may still have the text before.
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
