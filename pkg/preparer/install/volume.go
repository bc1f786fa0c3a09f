package install

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"github.com/rcfarm/rcfarm/pkg/internal/account"
	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/pod"
)

// These directories below Config.Dir have one entry for each identity.
const (
	homesDir    = "homes"
	logsDir     = "logs"
	versionsDir = "versions"
	volumesDir  = "volumes"
	tmpDir      = "tmp"
)

// home is kept when the pod is upgraded.
func (n *Node) home(id pod.Identity) string { return n.dirOf(homesDir, id) }

// volume: the preparer makes volumes and never removes them.
func (n *Node) volume(id pod.Identity, name string) string {
	return filepath.Join(n.dirOf(volumesDir, id), name)
}

// makeDirs makes the directories that processes and hooks need. Home and volumes belong to the user of the first
// launchable, a working directory to the user of its launchable, all to the pod's group. The version that made a
// directory may still run, so makeDirs does not change the owner.
func (v *Version) makeDirs(ctx context.Context) error { return v.ownDirs(ctx, false) }

// takeOverDirs is makeDirs that also changes the owner of directories that another version made.
func (v *Version) takeOverDirs(ctx context.Context) error { return v.ownDirs(ctx, true) }

func (v *Version) ownDirs(ctx context.Context, takeOver bool) error {
	if err := os.MkdirAll(v.n.Logs(v.ID), 0o750); err != nil {
		return fmt.Errorf("make log directory: %w", err)
	}
	if err := v.n.makeTmp(v.ID); err != nil {
		return err
	}
	owner, err := v.owner(&v.M.Launchables[0])
	if err != nil {
		return err
	}
	give := func(dir string) error { return v.n.ownDir(ctx, dir, owner, takeOver && !v.ownedInside(dir, owner)) }
	if err := give(v.n.home(v.ID)); err != nil {
		return fmt.Errorf("make home of pod: %w", err)
	}
	for _, vol := range v.M.Volumes {
		if err := give(v.n.volume(v.ID, vol.Name)); err != nil {
			return fmt.Errorf("make volume %s: %w", vol.Name, err)
		}
	}
	for i := range v.M.Launchables {
		if err := v.makeWorkDir(&v.M.Launchables[i], takeOver); err != nil {
			return err
		}
	}
	return nil
}

// ownedInside reports whether a directory belongs to a user of the pod's container, and the container begins as root.
// Images that begin as root give their directories to the user that they go on with.
func (v *Version) ownedInside(dir string, owner *account.Account) bool {
	block := v.n.blocks.has(FileName(v.ID))
	uid, gid, err := ownerOf(dir)
	return err == nil && block != 0 && owner != nil && owner.UID == block*BlockSize &&
		uid/BlockSize == block && gid/BlockSize == block
}

// makeWorkDir makes a working directory below the pod's home. The operator makes an absolute one.
func (v *Version) makeWorkDir(l *manifest.Launchable, takeOver bool) error {
	if l.WorkDir == "" || filepath.IsAbs(l.WorkDir) || l.Artifact.IsImage() {
		return nil
	}
	owner, err := v.owner(l)
	if err != nil {
		return err
	}
	// The pod may have made links in its home that lead to other places.
	home, err := os.OpenRoot(v.n.home(v.ID))
	if err != nil {
		return fmt.Errorf("make work_dir of %s: %w", l.Name, err)
	}
	defer func() { _ = home.Close() }()
	if _, err := home.Lstat(l.WorkDir); err == nil && !takeOver {
		return nil
	}
	if err := home.MkdirAll(l.WorkDir, 0o750); err != nil {
		return fmt.Errorf("make work_dir of %s: %w", l.Name, err)
	}
	if owner == nil {
		return nil
	}
	// The directories above change too if they still belong to the preparer: made now, or by a preparer that was killed
	// before this step.
	for at := filepath.Clean(l.WorkDir); at != "."; at = filepath.Dir(at) {
		if err := giveMade(home, at, owner, at == filepath.Clean(l.WorkDir)); err != nil {
			return fmt.Errorf("give work_dir of %s to its user: %w", l.Name, err)
		}
	}
	return nil
}

// giveMade gives a directory below a home to a user. Unless always is true, it does so only if the directory belongs to
// the preparer's user. It works by descriptor, so that the pod cannot replace the directory meanwhile. This is safe for
// directories, because they have only one name.
func giveMade(home *os.Root, path string, owner *account.Account, always bool) error {
	dir, err := home.OpenFile(path, os.O_RDONLY|syscall.O_DIRECTORY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer func() { _ = dir.Close() }()
	info, err := dir.Stat()
	if err != nil {
		return err
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok && !always && int(st.Uid) != os.Geteuid() {
		return nil
	}
	return dir.Chown(owner.UID, owner.GID)
}

func (v *Version) workDir(l *manifest.Launchable) string {
	if filepath.IsAbs(l.WorkDir) {
		return l.WorkDir
	}
	return filepath.Join(v.n.home(v.ID), l.WorkDir)
}
