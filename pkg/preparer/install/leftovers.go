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

// removedDir is beside the directories of the pods, in homes, logs, tmp and versions. Only the preparer can enter it.
// Each of these directories of a removed pod is moved there by one rename, and deleted later.
const removedDir = ".removed"

// Time limits for one child process of package tree.
const (
	deleteSlice = 30 * time.Second // after this, the next tree gets its turn
	giveLimit   = 5 * time.Minute  // a pod waits for this work
)

var podDirs = []string{versionsDir, homesDir, logsDir, tmpDir}

// Discard moves the directories of a stopped pod, except for its volumes, to removedDir. This takes the same short time
// for any number of files.
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
			err = os.Rename(n.dirOf(kind, id),
				filepath.Join(removed, FileName(id)+"."+strconv.FormatInt(time.Now().UnixNano(), 10)))
		}
		switch {
		case err == nil:
			n.litter.Raise()
			return nil
		case !errors.Is(err, fs.ErrNotExist):
			return fmt.Errorf("remove what a stopped pod left: %w", err)
		case !n.isThere(kind, id):
			return nil
		} // deleteRound has just removed the empty directory removed, so try again
	}
}

func (n *Node) isThere(kind string, id pod.Identity) bool {
	_, err := os.Lstat(n.dirOf(kind, id))
	return !errors.Is(err, fs.ErrNotExist)
}

// Left reports whether Discard would move directories.
func (n *Node) Left(id pod.Identity) bool {
	return slices.ContainsFunc(podDirs, func(kind string) bool { return n.isThere(kind, id) })
}

// ReportStrangers logs the directories of pods that the node does not know. It does not remove them, because pods whose
// records were lost may still need them (P4).
func (n *Node) ReportStrangers(known map[pod.Identity]bool) {
	names := make(map[string]bool, len(known))
	for id := range known {
		names[FileName(id)] = true
	}
	for _, kind := range podDirs {
		entries, _ := os.ReadDir(filepath.Join(n.cfg.Dir, kind)) // the directory may not exist yet
		var strange []string
		for _, entry := range entries {
			if !names[entry.Name()] && entry.Name() != removedDir {
				strange = append(strange, entry.Name())
			}
		}
		if len(strange) > 0 {
			n.cfg.Log.WithFields(obs.Fields{
				"directory": filepath.Join(n.cfg.Dir, kind),
				"names":     strings.Join(strange, " "),
			}).
				Warn("directories of pods that the node has no record of; left alone")
		}
	}
}

func removedOf(name string) string { return strings.TrimSuffix(name, filepath.Ext(name)) }

// DeleteRemoved deletes the content of each removedDir until ctx ends. every is the pause before it tries again what it
// could not delete.
func (n *Node) DeleteRemoved(ctx context.Context, every time.Duration) {
	wait.Each(ctx, n.litter, func() time.Duration {
		if n.deleteRound(ctx) {
			return 0
		}
		return every
	})
}

// deleteRound works on each tree for at most deleteSlice. more: some trees need more time.
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
		_ = os.Remove(removed) // succeeds only if the directory is empty
	}
	return more
}

// deleteTree works first as the pod's user, then as other users who own files in the tree.
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
	stuck := map[int]bool{} // users who cannot remove more
	for {
		if own.UID == 0 { // safe, because other users cannot enter removedDir
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

func openTree(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_RDONLY|syscall.O_DIRECTORY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
}

func (n *Node) userOf(name string, other tree.Owner) tree.Owner {
	if block := n.blocks.has(name); block != 0 {
		return tree.Owner{UID: block * BlockSize, GID: block * BlockSize}
	}
	if number := n.users.has(name); number != 0 {
		return tree.Owner{UID: number, GID: number}
	}
	return other
}

// giveDir changes the owner of a directory, and of its owner's files in it.
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
		return dir.Chown(owner.UID, owner.GID) // the directory is new
	}
	if _, err := dir.Seek(0, io.SeekStart); err != nil {
		return err
	}
	if int(st.Uid) == owner.UID { // only the group differs
		return dir.Chown(owner.UID, owner.GID)
	}
	from := tree.Owner{UID: int(st.Uid), GID: int(st.Gid)}
	return tree.Give(ctx, dir, from, tree.Owner{UID: owner.UID, GID: owner.GID}, giveLimit)
}
