package artifact

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// ErrNoSpace is what lacking disk space matches. It is not final: pods end, files are removed, the cache is pruned.
var ErrNoSpace = errors.New("not enough disk space")

// SpaceError says how much is missing. It matches ErrNoSpace.
type SpaceError struct {
	Dir                        string
	What                       string // is to be done
	Needed, Reserve, Available int64  // bytes
}

// Error renders the numbers on one line.
func (e *SpaceError) Error() string {
	return fmt.Sprintf("%v in %s: %s needs %d bytes and leaves %d in reserve, %d are available; free some", ErrNoSpace, e.Dir, e.What, e.Needed, e.Reserve, e.Available)
}

// Unwrap returns ErrNoSpace.
func (e *SpaceError) Unwrap() error { return ErrNoSpace }

// missing is how many bytes would have to be freed.
func (e *SpaceError) missing() int64 { return e.Needed + e.Reserve - e.Available }

// askAgain is how many bytes may be written before the file system is asked again: others write to it too.
const askAgain = 32 << 20

// blockBytes is what file systems usually hand out space by; every entry of a tree takes one block besides its content.
const blockBytes = 4096

// occupied is roughly what a file of this size takes on the disk.
func occupied(size int64) int64 { return (size+blockBytes-1)/blockBytes*blockBytes + blockBytes }

// room watches that what is written leaves the reserve of a file system alone.
type room struct {
	dir     string
	reserve int64 // bytes that others are left
	left    int64 // bytes that may be written before the file system is asked again
}

// check returns a *SpaceError unless so many bytes can be written.
func (r *room) check(bytes int64, what string) error {
	var st unix.Statfs_t
	if err := unix.Statfs(r.dir, &st); err != nil {
		return fmt.Errorf("ask for the free space of %s: %w", r.dir, err)
	}
	available := int64(st.Bavail) * st.Bsize
	if bytes > available-r.reserve {
		return &SpaceError{Dir: r.dir, What: what, Needed: bytes, Reserve: r.reserve, Available: available}
	}
	r.left = min(available-r.reserve, max(bytes, askAgain))
	return nil
}

// take is check for what is written right now.
func (r *room) take(bytes int64, what string) error {
	if bytes > r.left {
		if err := r.check(bytes, what); err != nil {
			return err
		}
	}
	r.left -= bytes
	return nil
}

// roomWriter takes room for all that is written through it.
type roomWriter struct {
	to   io.Writer
	room *room
}

func (w roomWriter) Write(p []byte) (int, error) {
	if err := w.room.take(int64(len(p)), "fetching"); err != nil {
		return 0, err
	}
	return w.to.Write(p)
}

// unpackedSize is what the end of a gzip file says about the size of its content, modulo 4 GiB, and only of the last of
// several members (RFC 1952, section 2.3.1). It is a hint that lets most archives be refused before they fill the disk;
// room.take sees to the others.
func unpackedSize(archive *os.File) (int64, error) {
	info, err := archive.Stat()
	if err != nil {
		return 0, fmt.Errorf("look at the fetched file: %w", err)
	}
	var end [4]byte
	if info.Size() < int64(len(end)) {
		return 0, nil
	}
	if _, err := archive.ReadAt(end[:], info.Size()-int64(len(end))); err != nil {
		return 0, fmt.Errorf("read the end of the fetched file: %w", err)
	}
	return int64(binary.LittleEndian.Uint32(end[:])), nil
}
