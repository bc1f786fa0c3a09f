package archive

import (
	"errors"
	"fmt"
	"io"

	"golang.org/x/sys/unix"
)

// ErrNoSpace is not final, because space becomes free when the cache is pruned or files are removed.
var ErrNoSpace = errors.New("not enough disk space")

// SpaceError is an ErrNoSpace with the missing amount.
type SpaceError struct {
	Dir                        string
	What                       string // the work that needs the space
	Needed, Reserve, Available int64  // bytes
}

// Error returns the numbers in one line.
func (s *SpaceError) Error() string {
	return fmt.Sprintf("%v in %s: %s needs %d bytes and leaves %d in reserve, %d are available; free some", ErrNoSpace,
		s.Dir, s.What, s.Needed, s.Reserve, s.Available)
}

// Unwrap returns ErrNoSpace.
func (s *SpaceError) Unwrap() error { return ErrNoSpace }

// Missing returns how many bytes must become free.
func (s *SpaceError) Missing() int64 { return s.Needed + s.Reserve - s.Available }

// AskAgain is how many bytes are written before the free space is read again, because other programs write too.
const AskAgain = 32 << 20

// blockBytes is the usual block size. Every entry of a tree is assumed to take one block besides its content.
const blockBytes = 4096

// Occupied returns approximately how much space a file of this size takes on the disk.
func Occupied(size int64) int64 { return (size+blockBytes-1)/blockBytes*blockBytes + blockBytes }

// Room checks that writes leave the reserve of the disk free.
type Room struct {
	Dir     string
	Reserve int64 // bytes to leave free

	left int64 // bytes that may be written before the free space is read again
}

// Check returns a *SpaceError if the disk has no space for so many bytes.
func (r *Room) Check(bytes int64, what string) error {
	var st unix.Statfs_t
	if err := unix.Statfs(r.Dir, &st); err != nil {
		return fmt.Errorf("ask for the free space of %s: %w", r.Dir, err)
	}
	available := int64(st.Bavail) * st.Bsize
	if bytes > available-r.Reserve {
		return &SpaceError{Dir: r.Dir, What: what, Needed: bytes, Reserve: r.Reserve, Available: available}
	}
	r.left = min(available-r.Reserve, max(bytes, AskAgain))
	return nil
}

// Take counts bytes that are written now. It returns a *SpaceError if there is no space.
func (r *Room) Take(bytes int64, what string) error {
	if bytes > r.left {
		if err := r.Check(bytes, what); err != nil {
			return err
		}
	}
	r.left -= bytes
	return nil
}

// Writer returns a writer that passes writes on, and calls Take for each.
func (r *Room) Writer(to io.Writer, what string) io.Writer { return roomWriter{to, r, what} }

type roomWriter struct {
	to   io.Writer
	room *Room
	what string
}

func (r roomWriter) Write(p []byte) (int, error) {
	if err := r.room.Take(int64(len(p)), r.what); err != nil {
		return 0, err
	}
	return r.to.Write(p)
}
