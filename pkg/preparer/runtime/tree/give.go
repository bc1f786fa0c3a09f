package tree

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// Bounds of a tree that is given to another user.
const (
	maxDepth = 1000    // directories below each other; one descriptor for each
	maxLinks = 1 << 16 // files with several names that are told apart; the rest stays as it is
)

// inode names a file.
type inode struct{ dev, number uint64 }

// giver gives to one user what is another's. It never opens anything but directories, and changes nothing by its name.
type giver struct {
	from, to Owner
	deadline time.Time

	dev   uint64
	clock int
	links map[inode]uint64 // of files with several names, how many were found
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

// walk gives what is in a directory.
func (g *giver) walk(dir, depth int) error {
	if depth > maxDepth {
		return fmt.Errorf("directories in it are more than %d deep", maxDepth)
	}
	return readNames(dir, func(name string) error {
		if g.clock++; g.clock%looks == 0 && time.Now().After(g.deadline) {
			return ErrTime
		}
		// A descriptor of what it is, and of nothing that it could lead to or do.
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

// entry gives an entry, and closes it.
func (g *giver) entry(entry, depth int) error {
	var st unix.Stat_t
	err := unix.Fstat(entry, &st)
	if err == nil && st.Dev == g.dev && st.Mode&unix.S_IFMT == unix.S_IFDIR {
		return g.inside(entry, &st, depth)
	}
	defer func() { _ = unix.Close(entry) }()
	if err != nil || st.Dev != g.dev || int(st.Uid) != g.from.UID || st.Nlink > 1 && !g.allNames(&st) {
		return err // what is mounted in it, what is somebody else's, and what has a name elsewhere stays
	}
	return unix.Fchownat(entry, "", g.to.UID, g.to.GID, unix.AT_EMPTY_PATH)
}

// inside gives what is in a directory, then the directory, and closes it.
func (g *giver) inside(entry int, st *unix.Stat_t, depth int) error {
	dir, err := unix.Openat(entry, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	_ = unix.Close(entry) // one descriptor for each level
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

// allNames reports whether the last of a file's names was found just now.
func (g *giver) allNames(st *unix.Stat_t) bool {
	id := inode{st.Dev, st.Ino}
	if _, known := g.links[id]; !known && len(g.links) == maxLinks {
		return false
	}
	g.links[id]++
	return g.links[id] == st.Nlink
}
