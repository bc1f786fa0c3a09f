package preparer

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"

	"github.com/rcfarm/rcfarm/pkg/account"
	"github.com/rcfarm/rcfarm/pkg/durable"
	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/runtime"
)

// keepVersions is how many versions of a pod stay installed, the one that runs included.
const keepVersions = 3

// Names in the directory of a pod's versions.
const (
	currentLink = "current"
	tempVersion = "tmp-" // a version's name starts with a digit
)

// defaultCommand is what a tar artifact is started with.
const defaultCommand = "bin/launch"

// maxProcesses bounds how many processes the scripts of one launchable's directory may be.
const maxProcesses = 64

// version is one version of a pod on this node.
type version struct {
	id  pod.Identity
	in  *Installed
	m   *manifest.Manifest
	dir string
	// roots are where the artifacts are, by launchable, while dir is not there yet.
	roots map[string]string
}

// version returns a version that is in the pod's record, nil when its manifest is not known.
func (p *Preparer) version(rec *Record, in *Installed) *version {
	m := in.manifest()
	if m == nil {
		return nil
	}
	v := &version{id: rec.Intent.Identity, in: in, m: m}
	v.dir = filepath.Join(p.dirOf(versionsDir, v.id), v.name())
	return v
}

func (v *version) name() string { return fmt.Sprintf("%d-%s", v.in.Revision, short(v.in.Digest)) }

// configPath is where the launchable's copy of the configuration is: each has its own, for its own user.
func (v *version) configPath(l *manifest.Launchable) string {
	return filepath.Join(v.dir, l.Name+".json")
}

// path returns where a file of a launchable's artifact is. An absolute one is on the node already.
func (v *version) path(launchable, file string) string {
	if filepath.IsAbs(file) {
		return file
	}
	root := filepath.Join(v.dir, launchable)
	if v.roots != nil {
		root = v.roots[launchable]
	}
	return filepath.Join(root, filepath.FromSlash(file))
}

// layOut makes the version's directory: the configuration, and a link to each artifact. It is built under another name, so
// that a directory of this name is always whole. A power failure may take it away again, with the rename; whoever needs it
// makes it anew.
func (p *Preparer) layOut(v *version) error {
	config, err := renderConfig(v.m.Config)
	if err != nil {
		return err
	}
	temp := filepath.Join(filepath.Dir(v.dir), tempVersion+v.name())
	if err := os.RemoveAll(temp); err != nil {
		return fmt.Errorf("remove leftover: %w", err)
	}
	if err := os.MkdirAll(temp, 0o755); err != nil {
		return fmt.Errorf("make directory of version: %w", err)
	}
	p.step("layout begun")
	for i := range v.m.Launchables {
		l := &v.m.Launchables[i]
		owner, err := p.owner(v, l)
		if err != nil {
			return err
		}
		if err := writeConfig(filepath.Join(temp, filepath.Base(v.configPath(l))), config, owner); err != nil {
			return fmt.Errorf("write config: %w", err)
		}
		if l.Artifact.Kind != manifest.ArtifactTar {
			continue
		}
		if err := os.Symlink(v.roots[l.Name], filepath.Join(temp, l.Name)); err != nil {
			return fmt.Errorf("link artifact: %w", err)
		}
	}
	if err := durable.SyncDir(temp); err != nil {
		return fmt.Errorf("write version to disk: %w", err)
	}
	p.step("layout written")
	// One of this name is from a try that was not finished: nothing that is recorded is made again.
	if err := os.RemoveAll(v.dir); err != nil {
		return fmt.Errorf("remove leftover: %w", err)
	}
	if err := os.Rename(temp, v.dir); err != nil {
		return fmt.Errorf("put version in place: %w", err)
	}
	p.step("layout done")
	return nil
}

// writeConfig writes a file that only its owner and group can read, to the disk.
func writeConfig(path string, data []byte, owner *account.Account) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o640)
	if err != nil {
		return err
	}
	if owner != nil {
		err = f.Chown(owner.UID, owner.GID)
	}
	if err == nil {
		_, err = f.Write(data)
	}
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// present reports whether the version's directory is there.
func (v *version) present() bool {
	info, err := os.Lstat(v.dir)
	return err == nil && info.IsDir()
}

// switchTo makes the link to the current version point to this one, in one step.
func (p *Preparer) switchTo(v *version) error {
	link := filepath.Join(filepath.Dir(v.dir), currentLink)
	if now, err := os.Readlink(link); err == nil && now == v.name() {
		return nil
	}
	temp := filepath.Join(filepath.Dir(v.dir), tempVersion+currentLink)
	err := os.Remove(temp)
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		err = os.Symlink(v.name(), temp)
	}
	if err == nil {
		p.step("switch begun")
		err = os.Rename(temp, link)
	}
	if err != nil {
		return fmt.Errorf("switch to version %s: %w", v.name(), err)
	}
	p.step("switch done")
	return nil
}

// prune removes what is installed of versions that the record does not name.
func (p *Preparer) prune(rec *Record) error {
	dir := p.dirOf(versionsDir, rec.Intent.Identity)
	keep := map[string]bool{currentLink: true}
	for _, in := range rec.versions() {
		keep[(&version{in: in}).name()] = true
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("read directory of versions: %w", err)
	}
	var errs []error
	for _, entry := range entries {
		if keep[entry.Name()] {
			continue
		}
		if err := os.RemoveAll(filepath.Join(dir, entry.Name())); err != nil {
			errs = append(errs, fmt.Errorf("remove old version: %w", err))
		}
		p.step("version pruned")
	}
	return errors.Join(errs...)
}

// processName is what the file of a script must be called, because it becomes part of a process's id.
var processName = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}$`)

// processesOf finds the processes that the launchables stand for. Once installed, a version has these and no others.
func (v *version) processesOf() ([]Process, error) {
	var all []Process
	names := map[string]bool{}
	for i := range v.m.Launchables {
		found, err := v.scriptsOf(&v.m.Launchables[i])
		if err != nil {
			return nil, forGood(fmt.Errorf("command of %s: %w", v.m.Launchables[i].Name, err))
		}
		for _, proc := range found {
			if names[proc.Name] {
				return nil, forGood(fmt.Errorf("two processes would be called %s; rename a launchable or a script", proc.Name))
			}
			names[proc.Name] = true
		}
		all = append(all, found...)
	}
	return all, nil
}

// scriptsOf returns the processes of one launchable: its command, or every executable file in it.
func (v *version) scriptsOf(l *manifest.Launchable) ([]Process, error) {
	command := l.Command
	switch {
	case l.Artifact.Kind == manifest.ArtifactExec:
		command = l.Artifact.Path
	case command == "":
		command = defaultCommand
	}
	path := v.path(l.Name, command)
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() || l.Artifact.Kind == manifest.ArtifactExec {
		return []Process{{Name: l.Name, Launchable: l.Name, Path: command}}, checkProgram(path, info)
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		return nil, err
	}
	var found []Process
	for _, entry := range entries { // in the order of their names
		file := filepath.Join(path, entry.Name())
		if info, err := os.Stat(file); err != nil {
			return nil, err
		} else if checkProgram(file, info) != nil {
			continue
		}
		if !processName.MatchString(entry.Name()) {
			return nil, fmt.Errorf("script %q: allowed: a name of at most 64 letters, digits, '-', '_' and '.' that starts with a letter or digit", entry.Name())
		}
		found = append(found, Process{Name: l.Name + "-" + entry.Name(), Launchable: l.Name, Path: command + "/" + entry.Name()})
	}
	if len(found) == 0 || len(found) > maxProcesses {
		return nil, fmt.Errorf("%s holds %d executable files; allowed: 1 to %d", path, len(found), maxProcesses)
	}
	return found, nil
}

// checkProgram reports why a file cannot be executed.
func checkProgram(path string, info fs.FileInfo) error {
	switch {
	case !info.Mode().IsRegular():
		return fmt.Errorf("%s is a %s; allowed: an executable file", path, info.Mode().Type())
	case info.Mode().Perm()&0o111 == 0:
		return fmt.Errorf("%s is not executable", path)
	}
	return nil
}

// versionsOf returns the versions that the processes belong to, as far as they are known, the newest first.
func (p *Preparer) versionsOf(rec *Record, procs []runtime.Status) []*version {
	var found []*version
	for _, in := range rec.versions() {
		has := slices.ContainsFunc(procs, func(s runtime.Status) bool { return s.Spec.Revision == in.Revision })
		if v := p.version(rec, in); has && v != nil {
			found = append(found, v)
		}
	}
	return found
}
