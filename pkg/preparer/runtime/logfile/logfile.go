// Package logfile rotates the log files that programs append to, and bounds their size.
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

// ErrCut means that the file system cannot punch holes (fallocate(2)), so Rotate has truncated the log. Text that the
// program wrote between the last read and the truncation, in some microseconds, is lost.
var ErrCut = errors.New(
	"this file system cannot punch holes: what the program wrote between the copy and the cut is lost")

// Rotate moves the content of a log that has more than limit bytes into log.1, log.1 into log.2, and so on, up to keep
// files. Each file has at most twice the limit, and whole lines if possible. If the log has more text than these files
// may have, Rotate drops the oldest text and all older files.
//
// The program appends to the open file, and does not know about the rotation (R12). So Rotate copies a part of the log,
// and then punches a hole over exactly this part. Text that the program appends meanwhile is behind the hole.
//
// When a copy is complete, its name contains the position in the log up to which it reaches (see Pending), until the
// hole is made. Readers skip the log up to this position. So they see each line exactly once at any moment, even if the
// rotation is killed in between.
//
// If the disk is full, the log's content is lost. An error to test for: ErrCut.
func Rotate(path string, limit int64, keep int) (err error) {
	// Nearly every call ends here. That must be cheap, because a node checks hundreds of logs each second.
	if info, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) || err == nil && info.Mode().IsRegular() &&
		room(info) <= limit {
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
		return nil // the file takes more space than its text, because of blocks
	}
	if err := Settle(path, keep); err != nil {
		return err
	}
	t := turn{log: log, path: path, limit: limit, keep: keep}
	switch err = t.moveAll(size); {
	case err == nil && keep == 0:
		err = giveBack(log, size)
	case durable.Full(err): // if the log waited for space, it would fill the disk
		err = fmt.Errorf("the log's content is lost, because the disk has no space for a copy: %w",
			errors.Join(err, giveBack(log, size)))
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

type turn struct {
	log     *os.File
	path    string
	limit   int64
	keep    int
	holes   bool // the file system can punch holes
	leftOut bool // the log has more text than is copied
}

func (t *turn) moveAll(size int64) error {
	if t.keep == 0 {
		return nil
	}
	all, err := Parts(t.log, 0, size)
	if err != nil || length(all) <= t.limit { // Settle may have moved enough
		return err
	}
	parts, err := newest(t.log, all, t.limit, t.keep)
	t.holes, t.leftOut = canPunch(t.path), length(parts) < length(all)
	for first := true; err == nil && (first || length(parts) > t.limit); first = false {
		chunk := parts
		if !t.holes {
			parts = nil // one copy has all, because the whole log is cut
		} else if chunk, parts, err = cut(t.log, parts, t.limit); err != nil {
			break
		}
		err = t.moveOut(chunk, first && t.leftOut)
	}
	return err
}

// Settle finishes a rotation that was killed after its copy was complete.
func Settle(path string, keep int) (err error) {
	pending, upTo, err := Pending(path)
	if err != nil || pending == "" {
		return err
	}
	log, size, err := open(path)
	if log != nil {
		if size >= upTo { // else the program itself has truncated the log since
			err = giveBack(log, upTo)
		}
		err = errors.Join(err, log.Close())
	}
	if err == nil || errors.Is(err, ErrCut) {
		err = errors.Join(err, Shift(pending, path, max(keep, 1)))
	}
	if err != nil {
		return fmt.Errorf("finish a rotation that was interrupted: %w", err)
	}
	return nil
}

// open returns no file if the log is missing or is not a regular file. It does not follow symbolic links, because the
// directory may belong to the program's user.
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

// room returns the space that a file takes on the disk. The file's length includes holes.
func room(info fs.FileInfo) int64 {
	const sector = 512 // the unit of st_blocks (inode(7))
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return min(st.Blocks*sector, info.Size())
	}
	return info.Size()
}

// moveOut makes log.1 of these parts of the log. gap is true if text before them was dropped. Then moveOut deletes the
// older files, because readers treat rotated files and log as one text without gaps.
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
	Step("copied")
	if err = giveBack(t.log, upTo); err != nil && !errors.Is(err, ErrCut) {
		return err
	}
	Step("given back")
	return errors.Join(err, Shift(pending, t.path, t.keep))
}

// removeRotated removes the oldest file first, so that the remaining files never have a gap.
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

// Step is called between two steps of a rotation. Tests replace it, for example to end the process there.
var Step = func(string) {}

// Tests replace fallocate to imitate a file system without it.
var fallocate = unix.Fallocate

func punch(log *os.File, from, bytes int64) error {
	err := fallocate(int(log.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, from, bytes)
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOSYS) {
		return ErrCut
	}
	return err
}

// canPunch tries it in a file beside the log, because the program may write to the log.
func canPunch(path string) bool {
	f, err := newAside(path)
	if err != nil {
		return true // the copy will get the same error
	}
	err = punch(f, 0, 1)
	_, _ = f.Close(), os.Remove(f.Name()) // if this fails, the copy removes the file
	return !errors.Is(err, ErrCut)
}

// giveBack frees the space of the first upTo bytes of a log. If it cannot make a hole, it truncates the whole log and
// returns ErrCut.
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

// ShortenBy is the unit in which a log is shortened, a multiple of all block sizes. Because it is fixed, readers can
// find their position again.
const ShortenBy = 1 << 20

// A log is shortened if it begins with a hole of at least longHole and of holeLimits times its limit, because the
// kernel kills a program whose file reaches the largest size, 16 TiB on ext4.
const (
	longHole   = 64 << 20
	holeLimits = 8
)

// A rotation that drops text does not shorten a log below urgentSize, because a reader could not tell from the log's
// length how much was dropped and how much was shortened.
const urgentSize = 1 << 40

// shorten removes most of the hole at the beginning of a log. A rest stays, which shows readers that the log was not
// truncated. On a file system that cannot remove a hole, a log does not reach the largest size in practice.
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

// copyAside copies parts of a log into a temporary file, so that a crash leaves no half copy under a final name. If
// grown is true, it also copies text that is added meanwhile, in at most maxRounds rounds, because a program may write
// faster than copyAside reads.
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

// Shift renames newest to log.1, and increments the numbers of the older files. If keep files exist already, it deletes
// the oldest. If a number is free, for example because an earlier Shift was killed, only the files with lower numbers
// move.
func Shift(newest, path string, keep int) error {
	free := 1
	for ; free < keep; free++ {
		if _, err := os.Lstat(rotatedPath(path, free)); errors.Is(err, fs.ErrNotExist) {
			break
		}
	}
	for n := free; n > 1; n-- {
		Step("moving")
		if err := os.Rename(rotatedPath(path, n-1), rotatedPath(path, n)); err != nil &&
			!errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return os.Rename(newest, rotatedPath(path, 1))
}

// Share lets a program that runs as another user open its log again, as "> /dev/stderr" does. The supervisor stays the
// owner.
func Share(log *os.File, iso *runtime.Isolation) error {
	if iso == nil || iso.GID == os.Getegid() {
		return nil
	}
	return errors.Join(log.Chown(-1, iso.GID), log.Chmod(0o660))
}
