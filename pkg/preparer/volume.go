package preparer

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/runtime"
)

// The directories below Config.Dir that hold one entry per identity.
const (
	homesDir    = "homes"
	logsDir     = "logs"
	versionsDir = "versions"
	volumesDir  = "volumes"
)

// home is the pod's own directory. It stays when the pod is upgraded.
func (p *Preparer) home(id pod.Identity) string { return p.dirOf(homesDir, id) }

// volume is a directory that the preparer makes and never removes.
func (p *Preparer) volume(id pod.Identity, name string) string {
	return filepath.Join(p.dirOf(volumesDir, id), name)
}

func (p *Preparer) logs(id pod.Identity) string { return p.dirOf(logsDir, id) }

func (p *Preparer) dirOf(kind string, id pod.Identity) string {
	return filepath.Join(p.cfg.Dir, kind, fileName(id))
}

// makeDirs makes the directories that a pod's processes and hooks find. Home and volumes belong to the user of the first
// launchable, a working directory to that of its own.
func (p *Preparer) makeDirs(v *version) error {
	if err := os.MkdirAll(p.logs(v.id), 0o750); err != nil {
		return fmt.Errorf("make log directory: %w", err)
	}
	owner, err := p.isolation(v.id, &v.m.Launchables[0])
	if err != nil {
		return err
	}
	if err := ownDir(p.home(v.id), owner); err != nil {
		return fmt.Errorf("make home of pod: %w", err)
	}
	for _, vol := range v.m.Volumes {
		if err := ownDir(p.volume(v.id, vol.Name), owner); err != nil {
			return fmt.Errorf("make volume %s: %w", vol.Name, err)
		}
	}
	for i := range v.m.Launchables {
		if err := p.makeWorkDir(v, &v.m.Launchables[i]); err != nil {
			return err
		}
	}
	return nil
}

// makeWorkDir makes a working directory below the pod's home. One elsewhere on the node is the operator's.
func (p *Preparer) makeWorkDir(v *version, l *manifest.Launchable) error {
	if l.WorkDir == "" || filepath.IsAbs(l.WorkDir) {
		return nil
	}
	owner, err := p.isolation(v.id, l)
	if err != nil {
		return err
	}
	// The home belongs to the pod, which may have put a link to anywhere into it.
	home, err := os.OpenRoot(p.home(v.id))
	if err != nil {
		return fmt.Errorf("make work_dir of %s: %w", l.Name, err)
	}
	defer func() { _ = home.Close() }()
	if err := home.MkdirAll(l.WorkDir, 0o750); err != nil {
		return fmt.Errorf("make work_dir of %s: %w", l.Name, err)
	}
	if owner == nil {
		return nil
	}
	if err := home.Lchown(l.WorkDir, owner.UID, owner.GID); err != nil {
		return fmt.Errorf("give work_dir of %s to its user: %w", l.Name, err)
	}
	return nil
}

func (p *Preparer) workDir(id pod.Identity, l *manifest.Launchable) string {
	if filepath.IsAbs(l.WorkDir) {
		return l.WorkDir
	}
	return filepath.Join(p.home(id), l.WorkDir)
}

// ownDir makes a directory and gives it to the user. One that is there keeps its mode and what is in it.
func ownDir(dir string, owner *runtime.Isolation) error {
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o750); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	info, err := os.Lstat(dir)
	switch {
	case err != nil:
		return err
	case !info.IsDir():
		return fmt.Errorf("%s is a %s; allowed: a directory", dir, info.Mode().Type())
	case owner == nil:
		return nil
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok && int(st.Uid) == owner.UID && int(st.Gid) == owner.GID {
		return nil
	}
	return os.Lchown(dir, owner.UID, owner.GID)
}

// isolation is what the processes of a launchable run under; nil: they run as the preparer does.
func (p *Preparer) isolation(id pod.Identity, l *manifest.Launchable) (*runtime.Isolation, error) {
	if p.cfg.Isolate == nil {
		return nil, nil //nolint:nilnil // no isolation is an answer
	}
	iso, err := p.cfg.Isolate(id, l)
	if err != nil {
		return nil, fmt.Errorf("isolate %s: %w", l.Name, err)
	}
	return iso, nil
}
