package install

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/rcfarm/rcfarm/pkg/internal/account"
	"github.com/rcfarm/rcfarm/pkg/obs"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime/tree"
	"github.com/rcfarm/rcfarm/pkg/wait"
)

// removedDir is below each kind of directories, and nobody but the preparer can enter it: what a pod left is moved there at
// one stroke, and deleted when there is time.
const removedDir = ".removed"

// Bounds of one child's work.
const (
	deleteSlice = 30 * time.Second // then others have their turn
	giveLimit   = 5 * time.Minute  // a pod waits for it
)

// podDirs are the kinds of directories that a stopped pod leaves behind and that are removed in time.
var podDirs = []string{versionsDir, homesDir, logsDir, tmpDir}

// Discard takes away what a stopped pod left, except for its volumes. It takes no longer the more that is.
func (n *Node) Discard(id pod.Identity) error {
	var errs []error
	for _, kind := range podDirs {
		errs = append(errs, n.discard(kind, id))
	}
	return errors.Join(errs...)
}

func (n *Node) discard(kind string, id pod.Identity) error {
	removed := filepath.Join(n.cfg.Dir, kind, removedDir)
	for {
		err := os.MkdirAll(removed, 0o700)
		if err == nil {
			err = os.Rename(n.dirOf(kind, id), filepath.Join(removed, FileName(id)+"."+strconv.FormatInt(time.Now().UnixNano(), 10)))
		}
		switch {
		case err == nil:
			n.litter.Raise()
			return nil
		case !errors.Is(err, fs.ErrNotExist):
			return fmt.Errorf("remove what a stopped pod left: %w", err)
		case !n.isThere(kind, id):
			return nil
		} // else deleteRound has just removed the empty directory that it was to be moved into
	}
}

func (n *Node) isThere(kind string, id pod.Identity) bool {
	_, err := os.Lstat(n.dirOf(kind, id))
	return !errors.Is(err, fs.ErrNotExist)
}

// Left reports whether a pod left anything that Discard takes away.
func (n *Node) Left(id pod.Identity) bool {
	return slices.ContainsFunc(podDirs, func(kind string) bool { return n.isThere(kind, id) })
}

// ReportStrangers logs directories of pods that are not known, as after their records were lost. Whose data that is nobody can say, so it
// stays (P4).
func (n *Node) ReportStrangers(known map[pod.Identity]bool) {
	names := make(map[string]bool, len(known))
	for id := range known {
		names[FileName(id)] = true
	}
	for _, kind := range podDirs {
		entries, _ := os.ReadDir(filepath.Join(n.cfg.Dir, kind)) // it may not be there yet
		var strange []string
		for _, entry := range entries {
			if !names[entry.Name()] && entry.Name() != removedDir {
				strange = append(strange, entry.Name())
			}
		}
		if len(strange) > 0 {
			n.cfg.Log.WithFields(obs.Fields{"directory": filepath.Join(n.cfg.Dir, kind), "names": strings.Join(strange, " ")}).
				Warn("directories of pods that the node has no record of; left alone")
		}
	}
}

// removedOf returns the file name of the identity whose something in a removedDir was.
func removedOf(name string) string { return strings.TrimSuffix(name, filepath.Ext(name)) }

// DeleteRemoved deletes what was taken away until ctx ends; every is between two tries at what could not be deleted, and looks at what an
// earlier run has left.
func (n *Node) DeleteRemoved(ctx context.Context, every time.Duration) {
	wait.Each(ctx, n.litter, func() time.Duration {
		if n.deleteRound(ctx) {
			return 0
		}
		return every
	})
}

// deleteRound gives each tree one slice of time, and reports whether some need more.
func (n *Node) deleteRound(ctx context.Context) (more bool) {
	for _, kind := range podDirs {
		removed := filepath.Join(n.cfg.Dir, kind, removedDir)
		entries, err := os.ReadDir(removed)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		for _, entry := range entries {
			treeErr := n.deleteTree(ctx, kind, filepath.Join(removed, entry.Name()))
			more = more || errors.Is(treeErr, tree.ErrTime)
			if !errors.Is(treeErr, tree.ErrTime) {
				err = errors.Join(err, treeErr)
			}
			n.cfg.Step("directory removed")
		}
		if ctx.Err() != nil {
			return false
		}
		n.cfg.Limiter.Saw("removing "+kind, "what stopped pods left cannot be removed", err)
		_ = os.Remove(removed) // if it is empty
	}
	return more
}

// deleteTree deletes one tree, first as the pod's user, then as whoever else has something in it.
func (n *Node) deleteTree(ctx context.Context, kind, path string) error {
	dir, err := openTree(path)
	if err != nil {
		return fmt.Errorf("open %s: %w", path, err)
	}
	defer func() { _ = dir.Close() }()
	own := tree.Owner{UID: os.Getuid(), GID: os.Getgid()}
	as := own
	if kind == homesDir || kind == tmpDir {
		as = n.userOf(removedOf(filepath.Base(path)), own)
	}
	pods := as
	stuck := map[int]bool{} // users that could remove nothing more
	for {
		if own.UID == 0 { // nobody else can enter it where it is
			if err := errors.Join(dir.Chown(as.UID, as.GID), dir.Chmod(0o700)); err != nil {
				return err
			}
		}
		left, err := tree.Delete(ctx, dir, as, deleteSlice)
		if err != nil {
			return err
		}
		if left.Empty {
			return os.Remove(path)
		}
		if left.Removed > 0 {
			clear(stuck)
		}
		stuck[as.UID] = true
		if own.UID != 0 || stuck[left.UID] {
			return fmt.Errorf("%s: something that user %d has in it cannot be removed: %s", path, left.UID, left.Why)
		}
		as = tree.Owner{UID: left.UID, GID: pods.GID}
	}
}

// openTree opens a directory, and nothing that stands in its place.
func openTree(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_RDONLY|syscall.O_DIRECTORY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
}

// userOf returns the user of a pod by the file name of its identity, or the other one where it has none of its own.
func (n *Node) userOf(name string, other tree.Owner) tree.Owner {
	if number := n.users.has(name); number != 0 {
		return tree.Owner{UID: number, GID: number}
	}
	return other
}

// giveDir gives a directory, with what its owner has in it, to another owner.
func (n *Node) giveDir(ctx context.Context, path string, owner *account.Account) error {
	dir, err := openTree(path)
	if err != nil {
		return err
	}
	defer func() { _ = dir.Close() }()
	info, err := dir.Stat()
	if err != nil {
		return err
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return errors.ErrUnsupported
	}
	if _, err := dir.Readdirnames(1); errors.Is(err, io.EOF) && int(st.Uid) == os.Getuid() {
		return dir.Chown(owner.UID, owner.GID) // made just now
	}
	if _, err := dir.Seek(0, io.SeekStart); err != nil {
		return err
	}
	if int(st.Uid) == owner.UID { // nothing but the group is another
		return dir.Chown(owner.UID, owner.GID)
	}
	from := tree.Owner{UID: int(st.Uid), GID: int(st.Gid)}
	return tree.Give(ctx, dir, from, tree.Owner{UID: owner.UID, GID: owner.GID}, giveLimit)
}
