// Package logfile keeps the log files that programs append to themselves: bounded, and within their reach.
package logfile

import (
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

// ErrCut is about a log on a file system that cannot punch holes (fallocate(2)): ext4, XFS, Btrfs and tmpfs can. The
// log was cut to nothing, and what its program wrote between the last read and the cut is lost: some microseconds'
// worth.
var ErrCut = errors.New("this file system cannot punch holes: what the program wrote between the copy and the cut is lost")

// Rotate moves what is in a log that holds more than limit into log.1, log.1 into log.2 and so on, keeping so many of
// them. Each holds whole lines, and at most twice the limit. What would not be kept is not copied.
//
// The program holds the file open and appends to it, and knows nothing of this (R12). So a part of the log is copied,
// and then a hole is punched over exactly that part: what the program appends meanwhile is behind it. The log seems to
// grow for ever, and takes only the room of what was not rotated yet; where the file system can, it is made shorter now
// and then. The copy has a name that says how far it goes (see Pending) from the moment on that it is whole until the
// hole is there: so whoever is killed in between leaves nothing that is in two files or in none, and readers see each
// line once at any moment. Settle ends what was begun.
//
// On a full disk what is in the log is lost, because there is no room for a copy, which is the error then. Another
// error to test for: ErrCut.
func Rotate(path string, limit int64, keep int) (err error) {
	// Next to always this is all: a node looks at hundreds of logs each second.
	if info, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) || err == nil && info.Mode().IsRegular() && room(info) <= limit {
		return nil
	}
	log, size, err := open(path)
	if log == nil {
		return err
	}
	defer func() { err = errors.Join(err, log.Close()) }()
	parts, err := Parts(log, 0, size)
	if err != nil {
		return fmt.Errorf("rotate log: %w", err)
	}
	if length(parts) <= limit {
		return nil // what it takes besides is the file system's
	}
	if err := Settle(path, keep); err != nil {
		return err
	}
	if parts, err = Parts(log, 0, size); err == nil && keep > 0 {
		parts, err = newest(log, parts, limit, keep)
	}
	holes := err == nil && keep > 0 && canPunch(path)
	for first := true; err == nil && keep > 0 && (first || length(parts) > limit); first = false {
		chunk := parts
		if !holes {
			parts = nil // the log is cut behind all of it
		} else if chunk, parts, err = cut(log, parts, limit); err != nil {
			break
		}
		err = moveOut(log, path, chunk, keep, !holes)
	}
	switch {
	case err == nil && keep == 0:
		err = giveBack(log, size)
	case durable.Full(err): // a log that waits for room takes what is left of it
		err = fmt.Errorf("the log's content is lost, because there is no room for a copy: %w", errors.Join(err, giveBack(log, size)))
	}
	if err == nil {
		err = shorten(log, limit)
	}
	if err != nil {
		return fmt.Errorf("rotate log: %w", err)
	}
	return nil
}

// Settle ends a rotation that was begun by somebody who was killed.
func Settle(path string, keep int) (err error) {
	pending, upTo, err := Pending(path)
	if err != nil || pending == "" {
		return err
	}
	log, size, err := open(path)
	if log != nil {
		if size >= upTo { // else the program has cut it since
			err = giveBack(log, upTo)
		}
		err = errors.Join(err, log.Close())
	}
	if err == nil || errors.Is(err, ErrCut) {
		err = errors.Join(err, Shift(pending, path, max(keep, 1)))
	}
	if err != nil {
		return fmt.Errorf("end a rotation that was begun: %w", err)
	}
	return nil
}

// open opens a log and returns its size; no file where there is none, or something else. It follows no symbolic link:
// the directory may belong to whoever wrote the program.
func open(path string) (*os.File, int64, error) {
	log, info, err := regular.Open(path, os.O_RDWR|unix.O_NOFOLLOW)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, regular.ErrOther):
		return nil, 0, nil
	case err != nil:
		return nil, 0, fmt.Errorf("rotate log: %w", err)
	}
	return log, info.Size(), nil
}

// room is what a file takes, or its length where that is less. A program can make a log seem as long as it likes.
func room(info fs.FileInfo) int64 {
	const sector = 512 // the unit of st_blocks (inode(7))
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return min(st.Blocks*sector, info.Size())
	}
	return info.Size()
}

// moveOut moves what is in these parts into log.1, and the older files on by one. grown: what is added meanwhile goes
// with them.
func moveOut(log *os.File, path string, parts []Part, keep int, grown bool) error {
	upTo, err := copyAside(log, path, parts, grown)
	if err != nil {
		return err
	}
	failpoint("half")
	pending := pendingPath(path, upTo)
	if err := os.Rename(asidePath(path), pending); err != nil { // from here on it is in the copy, and no longer in the log
		return err
	}
	failpoint("copied")
	if err = giveBack(log, upTo); err != nil && !errors.Is(err, ErrCut) {
		return err
	}
	failpoint("given back")
	return errors.Join(err, Shift(pending, path, keep))
}

// failpoint is where tests end the process.
var failpoint = func(string) {}

// fallocate is fallocate(2), and something else for tests of file systems without it.
var fallocate = unix.Fallocate

// punch makes a hole, which reads as zeros and takes no room. What is behind it stays where it is.
func punch(log *os.File, from, bytes int64) error {
	err := fallocate(int(log.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, from, bytes)
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOSYS) {
		return ErrCut
	}
	return err
}

// canPunch tries it beside the log: nothing in that may be touched that its program has just written.
func canPunch(path string) bool {
	f, err := newAside(path)
	if err != nil {
		return true // which the copy meets again
	}
	err = punch(f, 0, 1)
	_, _ = f.Close(), os.Remove(f.Name()) // the copy removes it as well
	return !errors.Is(err, ErrCut)
}

// giveBack gives back what the first so many bytes of a log take; where it can make no hole it cuts all of it.
func giveBack(log *os.File, upTo int64) error {
	if upTo == 0 {
		return nil
	}
	err := punch(log, 0, upTo)
	if errors.Is(err, ErrCut) {
		return errors.Join(err, log.Truncate(0))
	}
	return err
}

// A log that begins with a hole of more than longHole, and of more than eight times its limit, is made shorter by whole
// units of that, of which blocks of all sizes are parts. A program whose file reaches the largest size that there is
// would be killed: 16 TiB on ext4.
const (
	longHole   = 64 << 20
	shortenBy  = 1 << 20
	holeLimits = 8
)

// shorten removes the hole that a log begins with, but for a rest by which readers know that nothing was cut off. Not
// all file systems can: on those without it no size is ever reached.
func shorten(log *os.File, limit int64) error {
	info, err := log.Stat()
	if err != nil {
		return err
	}
	begin, err := Begin(log, info.Size())
	if err != nil || begin < max(longHole, holeLimits*limit) || begin%shortenBy == 0 {
		return err
	}
	err = fallocate(int(log.Fd()), unix.FALLOC_FL_COLLAPSE_RANGE, 0, begin-begin%shortenBy)
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EINVAL) {
		return nil
	}
	return err
}

func asidePath(path string) string { return path + ".rotating" }

func newAside(path string) (*os.File, error) {
	aside := asidePath(path)
	if err := os.Remove(aside); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	return os.OpenFile(aside, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o640)
}

// copyAside copies parts of a log into a temporary file, so that a crash leaves no half copy, and returns how far in
// the log that goes. With grown it also copies what is added meanwhile, a few times: a program may be quicker than the
// copy.
func copyAside(log *os.File, path string, parts []Part, grown bool) (upTo int64, err error) {
	f, err := newAside(path)
	if err != nil {
		return 0, err
	}
	for rounds := 0; err == nil && len(parts) > 0; rounds++ {
		upTo, err = copyParts(f, log, parts)
		if parts = nil; grown && err == nil && rounds < maxRounds {
			var info fs.FileInfo
			if info, err = log.Stat(); err == nil && info.Size() > upTo {
				parts, err = Parts(log, upTo, info.Size())
			}
		}
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return 0, errors.Join(err, os.Remove(f.Name()))
	}
	return upTo, nil
}

// maxRounds bounds how often a copy follows a log that grows.
const maxRounds = 16

func copyParts(to io.Writer, log *os.File, parts []Part) (upTo int64, err error) {
	for _, p := range parts {
		if _, err = io.Copy(to, io.NewSectionReader(log, p.From, p.End-p.From)); err != nil {
			return 0, err
		}
		upTo = p.End
	}
	return upTo, nil
}

// Shift makes room at log.1 and renames a file to that. The oldest of so many goes, unless a number is free: then
// somebody was killed who had moved those behind it.
func Shift(newest, path string, keep int) error {
	numbered := func(n int) string { return fmt.Sprintf("%s.%d", path, n) }
	free := 1
	for ; free < keep; free++ {
		if _, err := os.Lstat(numbered(free)); errors.Is(err, fs.ErrNotExist) {
			break
		}
	}
	for n := free; n > 1; n-- {
		failpoint("moving")
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
