package preparer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/rcfarm/rcfarm/pkg/account"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/runtime/tree"
)

// Trees deletes what pods leave behind, and gives it to other users, without being led by it; tree.Runner is one.
type Trees interface {
	Delete(ctx context.Context, dir *os.File, as tree.Owner, limit time.Duration) (tree.Left, error)
	Give(ctx context.Context, dir *os.File, from, to tree.Owner, limit time.Duration) error
}

// removedDir is below each kind of directories, and nobody but the preparer can enter it: what a pod left is moved there at
// one stroke, and deleted when there is time.
const removedDir = ".removed"

// Bounds of one child's work.
const (
	deleteSlice = 30 * time.Second // then others have their turn
	giveLimit   = 5 * time.Minute  // a pod waits for it
)

// discard takes away what a stopped pod left. It takes no longer the more that is.
func (p *Preparer) discard(kind string, id pod.Identity) error {
	p.removing.Lock()
	defer p.removing.Unlock()
	removed := filepath.Join(p.cfg.Dir, kind, removedDir)
	err := os.MkdirAll(removed, 0o700)
	if err == nil {
		err = os.Rename(p.dirOf(kind, id), filepath.Join(removed, fileName(id)+"."+strconv.FormatInt(time.Now().UnixNano(), 10)))
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("remove what a stopped pod left: %w", err)
	}
	p.litter.Raise()
	return nil
}

// removedOf returns the file name of the identity whose something in a removedDir was.
func removedOf(name string) string { return strings.TrimSuffix(name, filepath.Ext(name)) }

// deleteRemoved deletes what was taken away until ctx ends.
func (p *Preparer) deleteRemoved(ctx context.Context) {
	for ctx.Err() == nil {
		if p.deleteRound(ctx) {
			continue
		}
		select {
		case <-p.litter:
		case <-time.After(p.cfg.CollectEvery): // what could not be deleted, and what an earlier run has left
		case <-ctx.Done():
		}
	}
}

// deleteRound gives each tree one slice of time, and reports whether some need more.
func (p *Preparer) deleteRound(ctx context.Context) (more bool) {
	for _, kind := range podDirs {
		removed := filepath.Join(p.cfg.Dir, kind, removedDir)
		key := "removing " + kind
		entries, err := os.ReadDir(removed)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		for _, entry := range entries {
			treeErr := p.deleteTree(ctx, kind, filepath.Join(removed, entry.Name()))
			more = more || errors.Is(treeErr, tree.ErrTime)
			if !errors.Is(treeErr, tree.ErrTime) {
				err = errors.Join(err, treeErr)
			}
			p.step("directory removed")
		}
		switch {
		case ctx.Err() != nil:
			return false
		case err != nil:
			p.trouble.Report(key, "what stopped pods left cannot be removed", err)
		default:
			p.trouble.Over(key)
		}
		p.removing.Lock()
		_ = os.Remove(removed) // if it is empty
		p.removing.Unlock()
	}
	return more
}

// deleteTree deletes one tree, first as the pod's user, then as whoever else has something in it.
func (p *Preparer) deleteTree(ctx context.Context, kind, path string) error {
	dir, err := openTree(path)
	if err != nil {
		return fmt.Errorf("open %s: %w", path, err)
	}
	defer func() { _ = dir.Close() }()
	own := tree.Owner{UID: os.Getuid(), GID: os.Getgid()}
	as := own
	if kind == homesDir || kind == tmpDir {
		as = p.userOf(removedOf(filepath.Base(path)), own)
	}
	pods := as
	stuck := map[int]bool{} // users that could remove nothing more
	for {
		if own.UID == 0 { // nobody else can enter it where it is
			if err := errors.Join(dir.Chown(as.UID, as.GID), dir.Chmod(0o700)); err != nil {
				return err
			}
		}
		left, err := p.cfg.Trees.Delete(ctx, dir, as, deleteSlice)
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
func (p *Preparer) userOf(name string, other tree.Owner) tree.Owner {
	p.mu.Lock()
	defer p.mu.Unlock()
	if number := p.users.of[name]; number != 0 {
		return tree.Owner{UID: number, GID: number}
	}
	return other
}

// giveDir gives a directory, with what its owner has in it, to another owner.
func (p *Preparer) giveDir(ctx context.Context, path string, owner *account.Account) error {
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
	return p.cfg.Trees.Give(ctx, dir, from, tree.Owner{UID: owner.UID, GID: owner.GID}, giveLimit)
}
