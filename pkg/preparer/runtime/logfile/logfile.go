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
// them. Each holds whole lines, and at most twice the limit. What would not be kept is not copied, and nothing is kept
// then of what is older.
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
	t := turn{log: log, path: path, limit: limit, keep: keep}
	switch err = t.moveAll(size); {
	case err == nil && keep == 0:
		err = giveBack(log, size)
	case durable.Full(err): // a log that waits for room takes what is left of it
		err = fmt.Errorf("the log's content is lost, because there is no room for a copy: %w", errors.Join(err, giveBack(log, size)))
	}
	if err == nil && (!t.leftOut || size >= urgentSize) {
		Step("moved")
		err = shorten(log, limit)
	}
	if err != nil {
		return fmt.Errorf("rotate log: %w", err)
	}
	return nil
}

// turn is one rotation of a log.
type turn struct {
	log     *os.File
	path    string
	limit   int64
	keep    int
	holes   bool // can be punched
	leftOut bool // there is more in the log than what is copied
}

// moveAll moves what is in a log that is so long into files of their own.
func (t *turn) moveAll(size int64) error {
	if t.keep == 0 {
		return nil
	}
	all, err := Parts(t.log, 0, size)
	if err != nil || length(all) <= t.limit { // more was in it than a rotation that was begun has left
		return err
	}
	parts, err := newest(t.log, all, t.limit, t.keep)
	t.holes, t.leftOut = canPunch(t.path), length(parts) < length(all)
	for first := true; err == nil && (first || length(parts) > t.limit); first = false {
		chunk := parts
		if !t.holes {
			parts = nil // the log is cut behind all of it
		} else if chunk, parts, err = cut(t.log, parts, t.limit); err != nil {
			break
		}
		err = t.moveOut(chunk, first && t.leftOut)
	}
	return err
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

// moveOut moves what is in these parts into log.1, and the older files on by one. Where no holes can be punched, what
// is added meanwhile goes with them. After a gap the older files go instead: those that are kept, and the log, are one
// text, in which readers count back from where the log begins.
func (t *turn) moveOut(parts []Part, gap bool) error {
	upTo, err := copyAside(t.log, t.path, parts, !t.holes)
	if err != nil {
		return err
	}
	Step("half")
	if gap {
		if err := removeRotated(t.path); err != nil {
			return err
		}
	}
	pending := pendingPath(t.path, upTo)
	if err := os.Rename(asidePath(t.path), pending); err != nil {
		return err
	}
	// From here on it is in the copy, and no longer in the log.
	Step("copied")
	if err = giveBack(t.log, upTo); err != nil && !errors.Is(err, ErrCut) {
		return err
	}
	Step("given back")
	return errors.Join(err, Shift(pending, t.path, t.keep))
}

// removeRotated removes all rotated files of a log, the oldest first, so that those that are left lead up to it.
func removeRotated(path string) error {
	last := 0
	for ; ; last++ {
		if _, err := os.Lstat(rotatedPath(path, last+1)); errors.Is(err, fs.ErrNotExist) {
			break
		} else if err != nil {
			return err
		}
	}
	for ; last > 0; last-- {
		Step("removing")
		if err := os.Remove(rotatedPath(path, last)); err != nil {
			return err
		}
	}
	return nil
}

func rotatedPath(path string, n int) string { return fmt.Sprintf("%s.%d", path, n) }

// Step is called between two steps of a rotation, with what comes next or was done. Tests end the process there, or let
// others do something.
var Step = func(string) {}

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

// ShortenBy is the unit by which a log is made shorter. Blocks of all sizes are parts of it, and whoever knows where
// something was in the log finds it again.
const ShortenBy = 1 << 20

// A log that begins with a hole of more than longHole, and of more than eight times its limit, is made shorter. A
// program whose file reaches the largest size that there is would be killed: 16 TiB on ext4.
const (
	longHole   = 64 << 20
	holeLimits = 8
)

// urgentSize is from where on a log is made shorter also by a rotation that leaves something out. Whoever has read the
// log before such a one cannot tell from its length alone how much both took away; so it is left to the next one.
const urgentSize = 1 << 40

// shorten removes the hole that a log begins with, but for a rest by which readers know that nothing was cut off. Not
// all file systems can: on those without it no size is ever reached.
func shorten(log *os.File, limit int64) error {
	info, err := log.Stat()
	if err != nil {
		return err
	}
	begin, err := Begin(log, info.Size())
	if err != nil || begin < max(longHole, holeLimits*limit) || begin%ShortenBy == 0 {
		return err
	}
	err = fallocate(int(log.Fd()), unix.FALLOC_FL_COLLAPSE_RANGE, 0, begin-begin%ShortenBy)
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
	free := 1
	for ; free < keep; free++ {
		if _, err := os.Lstat(rotatedPath(path, free)); errors.Is(err, fs.ErrNotExist) {
			break
		}
	}
	for n := free; n > 1; n-- {
		Step("moving")
		if err := os.Rename(rotatedPath(path, n-1), rotatedPath(path, n)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return os.Rename(newest, rotatedPath(path, 1))
}

// Share lets a program that runs as another user open its log once more, as "> /dev/stderr" does. The file stays the
// supervisor's, and so does the directory that it is in.
func Share(log *os.File, iso *runtime.Isolation) error {
	if iso == nil || iso.GID == os.Getegid() {
		return nil
	}
	return errors.Join(log.Chown(-1, iso.GID), log.Chmod(0o660))
}
