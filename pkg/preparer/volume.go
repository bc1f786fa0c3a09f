package preparer

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/pod"
)

// The directories below Config.Dir that hold one entry per identity.
const (
	homesDir    = "homes"
	logsDir     = "logs"
	versionsDir = "versions"
	volumesDir  = "volumes"
	tmpDir      = "tmp"
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
// launchable, a working directory to that of its own, and all to the pod's group. What another version of the pod left
// changes hands only with takeOver: that version may run.
func (p *Preparer) makeDirs(ctx context.Context, v *version, takeOver bool) error {
	if err := os.MkdirAll(p.logs(v.id), 0o750); err != nil {
		return fmt.Errorf("make log directory: %w", err)
	}
	if err := p.makeTmp(v.id); err != nil {
		return err
	}
	owner, err := p.owner(v, &v.m.Launchables[0])
	if err != nil {
		return err
	}
	if err := p.ownDir(ctx, p.home(v.id), owner, takeOver); err != nil {
		return fmt.Errorf("make home of pod: %w", err)
	}
	for _, vol := range v.m.Volumes {
		if err := p.ownDir(ctx, p.volume(v.id, vol.Name), owner, takeOver); err != nil {
			return fmt.Errorf("make volume %s: %w", vol.Name, err)
		}
	}
	for i := range v.m.Launchables {
		if err := p.makeWorkDir(v, &v.m.Launchables[i], takeOver); err != nil {
			return err
		}
	}
	return nil
}

// makeWorkDir makes a working directory below the pod's home. One elsewhere on the node is the operator's.
func (p *Preparer) makeWorkDir(v *version, l *manifest.Launchable, takeOver bool) error {
	if l.WorkDir == "" || filepath.IsAbs(l.WorkDir) {
		return nil
	}
	owner, err := p.owner(v, l)
	if err != nil {
		return err
	}
	// The home belongs to the pod, which may have put a link to anywhere into it.
	home, err := os.OpenRoot(p.home(v.id))
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
	// By descriptor: whatever the pod does meanwhile, a directory has one name, while a file may have another one elsewhere.
	dir, err := home.OpenFile(l.WorkDir, os.O_RDONLY|syscall.O_DIRECTORY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return fmt.Errorf("give work_dir of %s to its user: %w", l.Name, err)
	}
	defer func() { _ = dir.Close() }()
	if err := dir.Chown(owner.UID, owner.GID); err != nil {
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
