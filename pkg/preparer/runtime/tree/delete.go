package tree

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// forAll is the mode of directories that stand in the way: whoever has something in them gets at it, in a later round. Nobody
// else gets into the root.
const forAll = 0o777

// looks is how many entries are removed between two looks at the clock.
const looks = 256

// deleter empties a directory. It never goes deeper than one level: a directory that is not empty is moved up to the root of the
// tree, and has its turn there. So it needs a handful of descriptors and no memory, however deep the tree is.
type deleter struct {
	root     int // descriptor of the directory to be emptied
	as       Owner
	deadline time.Time

	dev     uint64
	prefix  string // of the names of directories that were moved
	moved   int    // directories that were moved so far
	emptied int    // of those, how many have had their turn
	removed int    // entries that were removed or moved
	clock   int
	left    Left // of the last round
}

func (d *deleter) run() error {
	var st unix.Stat_t
	if err := unix.Fstat(d.root, &st); err != nil {
		return err
	}
	d.dev, d.prefix = st.Dev, fmt.Sprintf(".%d-", time.Now().UnixNano()) // a name that is taken is passed over
	for {
		before := d.removed
		d.left = Left{Empty: true, Removed: before}
		err := d.names(d.root, func(name string) error {
			if err := d.remove(d.root, name); err != nil {
				return err
			}
			return d.catchUp()
		})
		if err != nil || d.removed == before { // what is left is somebody else's
			return err
		}
	}
}

// catchUp gives those their turn that were moved.
func (d *deleter) catchUp() error {
	for d.emptied < d.moved {
		d.emptied++
		if err := d.remove(d.root, d.name(d.emptied)); err != nil {
			return err
		}
	}
	return nil
}

func (d *deleter) name(n int) string { return fmt.Sprintf("%s%d", d.prefix, n) }

// remove removes one entry of the root: a directory with what it holds, but for directories that hold something themselves.
func (d *deleter) remove(dir int, name string) error {
	err := d.unlink(dir, name)
	if !errors.Is(err, unix.ENOTEMPTY) {
		return d.over(err)
	}
	fd, err := d.open(dir, name)
	if fd < 0 || err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	err = d.names(fd, func(inner string) error {
		err := d.unlink(fd, inner)
		switch {
		case errors.Is(err, unix.ENOTEMPTY):
			return d.move(fd, inner)
		case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
			return d.keep(fd, "", err) // who may not write to it, or it is sticky: its owner can
		default:
			return d.over(err)
		}
	})
	if err != nil {
		return err
	}
	if err = d.unlink(dir, name); errors.Is(err, unix.ENOTEMPTY) {
		return nil // it was said why
	}
	return d.over(err)
}

// unlink removes an entry, a directory too. It returns ENOTEMPTY for one that holds something.
func (d *deleter) unlink(dir int, name string) error {
	if d.clock++; d.clock%looks == 0 && time.Now().After(d.deadline) {
		return ErrTime
	}
	err := unix.Unlinkat(dir, name, 0)
	if errors.Is(err, unix.EISDIR) {
		err = unix.Unlinkat(dir, name, unix.AT_REMOVEDIR)
	}
	switch {
	case err == nil:
		d.removed++
	case errors.Is(err, unix.ENOENT):
		return nil
	case errors.Is(err, unix.EEXIST):
		return unix.ENOTEMPTY // as some file systems say it
	}
	return err
}

// over takes what became of an entry: only the end of the time ends the work.
func (d *deleter) over(err error) error {
	if err == nil || errors.Is(err, ErrTime) {
		return err
	}
	return d.keep(d.root, "", err)
}

// keep notes why something stays: it is for the owner of the named entry, or of the directory itself, to remove it.
func (d *deleter) keep(dir int, name string, why error) error {
	if !d.left.Empty {
		return nil
	}
	d.left.Empty, d.left.UID, d.left.Why = false, d.as.UID, why.Error()
	var st unix.Stat_t
	var err error
	if name == "" {
		err = unix.Fstat(dir, &st)
	} else {
		err = unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW)
	}
	if err == nil {
		d.left.UID = int(st.Uid)
	}
	return nil
}

// open opens a directory, and makes it writable if it is the user's own. It returns a negative number where it cannot.
func (d *deleter) open(dir int, name string) (int, error) {
	const how = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC
	fd, err := unix.Openat(dir, name, how, 0)
	if errors.Is(err, unix.EACCES) {
		_ = unix.Fchmodat(dir, name, forAll, 0) // only its owner may
		fd, err = unix.Openat(dir, name, how, 0)
	}
	if err != nil {
		return -1, d.keep(dir, name, err)
	}
	var st unix.Stat_t
	if err = unix.Fstat(fd, &st); err == nil && st.Dev != d.dev {
		err = errors.New("something is mounted in it")
	}
	if err != nil {
		_ = unix.Close(fd)
		return -1, d.keep(dir, name, err)
	}
	if int(st.Uid) == d.as.UID && st.Mode&0o7777 != forAll {
		_ = unix.Fchmod(fd, forAll) // what follows says if it failed
	}
	return fd, nil
}

// move moves a directory that is not empty up to the root.
func (d *deleter) move(dir int, name string) error {
	for {
		to := d.name(d.moved + 1)
		err := unix.Renameat2(dir, name, d.root, to, unix.RENAME_NOREPLACE)
		if errors.Is(err, unix.EACCES) { // its entry for its parent changes, so it must be writable
			_ = unix.Fchmodat(dir, name, forAll, 0)
			err = unix.Renameat2(dir, name, d.root, to, unix.RENAME_NOREPLACE)
		}
		switch {
		case err == nil:
			d.moved++
			d.removed++
			return nil
		case errors.Is(err, unix.EEXIST):
			d.moved++ // that one has its turn too
		default:
			return d.keep(dir, name, err)
		}
	}
}

// names calls visit for each entry of a directory. Entries may come and go meanwhile.
func (d *deleter) names(dir int, visit func(name string) error) error {
	if _, err := unix.Seek(dir, 0, 0); err != nil {
		return err
	}
	return readNames(dir, visit)
}

// readNames reads a directory from where its descriptor stands.
func readNames(dir int, visit func(name string) error) error {
	buf := make([]byte, 32<<10)
	for {
		n, err := unix.Getdents(dir, buf)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || n == 0 {
			return err
		}
		_, _, names := unix.ParseDirent(buf[:n], -1, nil)
		for _, name := range names {
			if err := visit(name); err != nil {
				return err
			}
		}
	}
}
