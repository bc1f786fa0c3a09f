package tree

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// The limits for a tree that is given to another user.
const (
	maxDepth = 1000    // levels of directories; each level needs a descriptor
	maxLinks = 1 << 16 // files with several names that are counted; other such files keep their owner
)

type inode struct{ dev, number uint64 }

// giver changes the owner of one user's files. It opens only directories for reading, and changes owners by descriptor,
// not by name.
type giver struct {
	from, to Owner
	deadline time.Time

	dev   uint64
	clock int
	links map[inode]uint64 // for files with several names: how many names were found
}

func (g *giver) run(root int) error {
	var st unix.Stat_t
	if err := unix.Fstat(root, &st); err != nil {
		return err
	}
	g.dev, g.links = st.Dev, map[inode]uint64{}
	if err := g.walk(root, 1); err != nil {
		return err
	}
	if int(st.Uid) != g.from.UID {
		return nil
	}
	return unix.Fchown(root, g.to.UID, g.to.GID)
}

func (g *giver) walk(dir, depth int) error {
	if depth > maxDepth {
		return fmt.Errorf("directories in it are more than %d deep", maxDepth)
	}
	return readNames(dir, func(name string) error {
		if g.clock++; g.clock%looks == 0 && time.Now().After(g.deadline) {
			return ErrTime
		}
		// O_PATH returns a descriptor of the entry itself: it follows no link, and opens no device or pipe.
		entry, err := unix.Openat(dir, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if errors.Is(err, unix.ENOENT) {
			return nil
		}
		if err != nil {
			return err
		}
		return g.entry(entry, depth)
	})
}

// entry closes its descriptor.
func (g *giver) entry(entry, depth int) error {
	var st unix.Stat_t
	err := unix.Fstat(entry, &st)
	if err == nil && st.Dev == g.dev && st.Mode&unix.S_IFMT == unix.S_IFDIR {
		return g.inside(entry, &st, depth)
	}
	defer func() { _ = unix.Close(entry) }()
	if err != nil || st.Dev != g.dev || int(st.Uid) != g.from.UID || st.Nlink > 1 && !g.allNames(&st) {
		return err // unchanged: mounts, other users' files, files with names elsewhere
	}
	return unix.Fchownat(entry, "", g.to.UID, g.to.GID, unix.AT_EMPTY_PATH)
}

// inside closes its descriptor.
func (g *giver) inside(entry int, st *unix.Stat_t, depth int) error {
	dir, err := unix.Openat(entry, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	_ = unix.Close(entry) // so that each level needs only one descriptor
	if errors.Is(err, unix.EACCES) && int(st.Uid) != g.from.UID {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(dir) }()
	if err := g.walk(dir, depth+1); err != nil || int(st.Uid) != g.from.UID {
		return err
	}
	return unix.Fchown(dir, g.to.UID, g.to.GID)
}

// allNames counts one more name of a file, and reports whether all names were found now.
func (g *giver) allNames(st *unix.Stat_t) bool {
	id := inode{st.Dev, st.Ino}
	if _, known := g.links[id]; !known && len(g.links) == maxLinks {
		return false
	}
	g.links[id]++
	return g.links[id] == st.Nlink
}
