// Package logfile keeps the log files that programs append to themselves: bounded, and within their reach.
package logfile

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/rcfarm/rcfarm/pkg/internal/durable"
	"github.com/rcfarm/rcfarm/pkg/internal/regular"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime"
)

// maxRotated bounds what one rotation copies of what it finds, in multiples of LogBytes. A program that wrote more than that
// between two looks loses the oldest of it, which is what rotation is about. As much again may be copied of what is added
// meanwhile; a program that writes more than that loses the newest, because a copy must end before its disk is full.
const maxRotated = 4

// Rotate moves the content of a log that is larger than limit into log.1, log.1 into log.2 and so on, keeping so many
// of them. It copies and truncates, because the program holds the file open and appends to it (R12). What the
// program writes between the last read and the truncation is lost: some microseconds' worth. On a full disk all of it is, which
// is the error then. How long the log seems does not matter: holes in it are not copied.
func Rotate(path string, limit int64, keep int) (err error) {
	// Next to always this is all: a node looks at hundreds of logs each second.
	if info, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) || err == nil && info.Mode().IsRegular() && info.Size() <= limit {
		return nil
	}
	// Not through a symbolic link: the directory may belong to whoever wrote the program.
	log, info, err := regular.Open(path, os.O_RDWR|unix.O_NOFOLLOW)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, regular.ErrOther):
		return nil
	case err != nil:
		return fmt.Errorf("rotate log: %w", err)
	}
	defer func() { err = errors.Join(err, log.Close()) }()
	if info.Size() <= limit {
		return nil
	}
	if keep > 0 {
		err = copyAside(log, path, begin(info, maxRotated*limit), 2*maxRotated*limit)
		if err == nil {
			err = Shift(asidePath(path), path, keep)
		}
		if err != nil && !durable.Full(err) {
			return fmt.Errorf("rotate log: %w", err)
		}
	}
	if err != nil { // a log that waits for room takes what is left of it
		err = fmt.Errorf("the log's content is lost, because there is no room for a copy: %w", err)
	}
	if err = errors.Join(err, log.Truncate(0)); err != nil {
		return fmt.Errorf("rotate log: %w", err)
	}
	return nil
}

// begin returns where the last so many bytes of a log begin. One that takes no more room than that is copied whole, though a
// program may have made it seem longer.
func begin(info fs.FileInfo, most int64) int64 {
	const sector = 512 // the unit of st_blocks (inode(7))
	if st, ok := info.Sys().(*syscall.Stat_t); ok && st.Blocks*sector <= most && st.Blocks*sector < info.Size() {
		return 0
	}
	return max(0, info.Size()-most)
}

func asidePath(path string) string { return path + ".rotating" }

// copyAside copies the log from the offset on into a temporary file, so that a crash leaves no half log.1.
func copyAside(log *os.File, path string, offset, most int64) error {
	aside := asidePath(path)
	if err := os.Remove(aside); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := os.OpenFile(aside, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o640)
	if err != nil {
		return err
	}
	if err = errors.Join(copyFrom(f, log, offset, most), f.Close()); err != nil {
		return errors.Join(err, os.Remove(aside))
	}
	return nil
}

// copyFrom copies at most so many bytes of the log from the offset on, and from the next whole line on where that cuts one in
// two. A log without a line break is copied as it is. The log may change all the time, in any way.
func copyFrom(to io.Writer, log *os.File, offset, most int64) error {
	if offset > 0 {
		next, err := nextLine(io.NewSectionReader(log, offset, most))
		if err != nil {
			return err
		}
		offset += next
	}
	for most > 0 {
		from, end, err := nextData(log, offset)
		if err != nil || from == end {
			return err
		}
		n, err := io.Copy(to, io.NewSectionReader(log, from, min(end-from, most)))
		if err != nil || n == 0 { // nothing: it was cut meanwhile
			return err
		}
		offset, most = from+n, most-n
	}
	return nil
}

// nextData returns the next part of a file, from the offset on, that is no hole; an empty one at the end (lseek(2)).
func nextData(f *os.File, offset int64) (from, end int64, err error) {
	from, err = f.Seek(offset, unix.SEEK_DATA)
	if errors.Is(err, unix.ENXIO) {
		return offset, offset, nil
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

// Shift makes room at log.1, from the oldest of so many on, and renames a file to that.
func Shift(newest, path string, keep int) error {
	numbered := func(n int) string { return fmt.Sprintf("%s.%d", path, n) }
	for n := keep; n > 1; n-- {
		if err := os.Rename(numbered(n-1), numbered(n)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return os.Rename(newest, numbered(1))
}

// Share lets a program that runs as another user open its log once more, as "> /dev/stderr" does. The file stays the
// supervisor's, and so does the directory that it is in.
func Share(log *os.File, iso *runtime.Isolation) error {
	if iso == nil || iso.GID == os.Getegid() {
		return nil
	}
	return errors.Join(log.Chown(-1, iso.GID), log.Chmod(0o660))
}
