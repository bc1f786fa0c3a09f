package tree

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// forAll is the mode of directories that cannot be removed. With it, the owners of entries in them can remove the
// entries in a later round. This is safe because other users cannot enter the root of the tree.
const forAll = 0o777

const looks = 256

// deleter empties a directory. It never goes deeper than one level: it moves a deeper directory that is not empty up to
// the root of the tree, and empties it there. So it needs few descriptors and little memory for a very deep tree.
type deleter struct {
	root     int // descriptor of the directory to empty
	as       Owner
	deadline time.Time

	dev     uint64
	prefix  string // of the new names of moved directories
	moved   int    // directories moved so far
	emptied int    // moved directories emptied so far
	removed int    // entries removed or moved
	clock   int
	left    Left // result of the last round
}

func (d *deleter) run() error {
	var st unix.Stat_t
	if err := unix.Fstat(d.root, &st); err != nil {
		return err
	}
	d.dev, d.prefix = st.Dev, fmt.Sprintf(".%d-", time.Now().UnixNano()) // move skips names that exist
	for {
		before := d.removed
		d.left = Left{Empty: true, Removed: before}
		err := d.names(d.root, func(name string) error {
			if err := d.remove(d.root, name); err != nil {
				return err
			}
			return d.catchUp()
		})
		if err != nil || d.removed == before { // this user cannot remove the rest
			return err
		}
	}
}

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

// remove removes one entry of the root. Of a directory it also removes the content, but moves directories in it that
// are not empty up to the root.
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
			return d.keep(fd, "", err) // not writable or sticky, so only the directory's owner can remove the entry
		default:
			return d.over(err)
		}
	})
	if err != nil {
		return err
	}
	if err = d.unlink(dir, name); errors.Is(err, unix.ENOTEMPTY) {
		return nil // the reason is known already: other entries were kept or moved
	}
	return d.over(err)
}

// unlink returns ENOTEMPTY for a directory that is not empty.
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
		return unix.ENOTEMPTY // some file systems return this other error
	}
	return err
}

// over keeps the entry after an error, except after ErrTime, which ends the work.
func (d *deleter) over(err error) error {
	if err == nil || errors.Is(err, ErrTime) {
		return err
	}
	return d.keep(d.root, "", err)
}

// keep stores, for the first kept entry of a round, why it was kept and who can remove it: the owner of the named entry
// or, without a name, of the directory.
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

// open makes the directory writable if the user owns it. If it cannot open it, it returns a negative number.
func (d *deleter) open(dir int, name string) (int, error) {
	const how = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC
	fd, err := unix.Openat(dir, name, how, 0)
	if errors.Is(err, unix.EACCES) {
		_ = unix.Fchmodat(dir, name, forAll, 0) // works only if the user owns the directory
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
		_ = unix.Fchmod(fd, forAll) // if this fails, the next step returns an error
	}
	return fd, nil
}

func (d *deleter) move(dir int, name string) error {
	for {
		to := d.name(d.moved + 1)
		err := unix.Renameat2(dir, name, d.root, to, unix.RENAME_NOREPLACE)
		if errors.Is(err, unix.EACCES) { // a moved directory must be writable, because its ".." changes
			_ = unix.Fchmodat(dir, name, forAll, 0)
			err = unix.Renameat2(dir, name, d.root, to, unix.RENAME_NOREPLACE)
		}
		switch {
		case err == nil:
			d.moved++
			d.removed++
			return nil
		case errors.Is(err, unix.EEXIST):
			d.moved++ // a directory of an earlier deletion; it is emptied too
		default:
			return d.keep(dir, name, err)
		}
	}
}

// visit may remove entries.
func (d *deleter) names(dir int, visit func(name string) error) error {
	if _, err := unix.Seek(dir, 0, 0); err != nil {
		return err
	}
	return readNames(dir, visit)
}

// readNames begins at the present position of the descriptor.
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
