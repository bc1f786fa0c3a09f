package durable

import (
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// A reserve is so many files of so many bytes: a MiB in all, enough for as many records.
const (
	pieces     = 64
	pieceBytes = 16 << 10
)

// Reserve is room on a disk that is set aside for records, so that what fills the disk can still be stopped. It is a
// directory of files that hold blocks already: a record that finds no room is written into one of them. Freeing the room first
// would be no use, because whoever fills the disk would be quicker. All that it knows is on the disk, so that several may share
// one directory. A nil *Reserve has nothing set aside.
type Reserve struct {
	Dir  string // on the file system of the records
	Used func() // told when a piece was given up; may be nil
}

// WriteFile is WriteFile, with a piece of the reserve where the disk is full.
func (r *Reserve) WriteFile(path string, data []byte) error {
	err := WriteFile(path, data)
	if r == nil || !Full(err) {
		return err
	}
	for Full(err) && r.give(path+TempSuffix) {
		err = replace(path, data, 0) // into the blocks that the piece has
	}
	if err != nil {
		_ = discard(path + TempSuffix) // without it there is less room, and an error already
		return err
	}
	return SyncDir(filepath.Dir(path))
}

// Full reports whether an error says that a disk, or a user's share of it, is full.
func Full(err error) bool { return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) }

// give puts a piece at path, and reports whether there was one.
func (r *Reserve) give(path string) bool {
	for n := range pieces {
		if os.Rename(r.piece(n), path) == nil {
			if r.Used != nil {
				r.Used()
			}
			return true
		}
	}
	return false
}

func (r *Reserve) piece(n int) string { return filepath.Join(r.Dir, strconv.Itoa(n)) }

// Fill sets room aside again where there is plenty. It returns how many bytes are set aside, and an error when that is
// less than it should be.
func (r *Reserve) Fill() (bytes int64, err error) {
	if err := os.MkdirAll(r.Dir, 0o700); err != nil {
		return 0, fmt.Errorf("set room aside: %w", err)
	}
	var missing []int
	for n := range pieces {
		if info, err := os.Lstat(r.piece(n)); err != nil || info.Size() != pieceBytes {
			missing = append(missing, n)
		}
	}
	for len(missing) > 0 {
		if err = r.room(); err == nil {
			err = r.set(missing[0])
		}
		if err != nil {
			break
		}
		missing = missing[1:]
	}
	return int64(pieces-len(missing)) * pieceBytes, err
}

// room returns an error unless the disk has room for the whole reserve twice: the last bytes are not for it.
func (r *Reserve) room() error {
	var st unix.Statfs_t
	if err := unix.Statfs(r.Dir, &st); err != nil {
		return fmt.Errorf("look for room on the disk of %s: %w", r.Dir, err)
	}
	if free := st.Bavail * uint64(st.Bsize); free < 2*pieces*pieceBytes {
		return fmt.Errorf("the disk of %s is full: %d bytes are free: %w", r.Dir, free, unix.ENOSPC)
	}
	return nil
}

// set makes one piece. Its content is random, so that no file system makes it smaller; it need not survive a power failure.
func (r *Reserve) set(n int) error {
	var data [pieceBytes]byte
	_, _ = rand.Read(data[:]) // never fails (crypto/rand)
	if err := os.WriteFile(r.piece(n), data[:], 0o600); err != nil {
		return fmt.Errorf("set room aside: %w", errors.Join(err, discard(r.piece(n))))
	}
	return nil
}
