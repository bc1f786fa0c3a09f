package install

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"

	"github.com/rcfarm/rcfarm/pkg/internal/account"
	"github.com/rcfarm/rcfarm/pkg/internal/durable"
	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/pod"
)

// Names in the directory of a pod's versions.
const (
	currentLink = "current"
	tempVersion = "tmp-" // a version's name starts with a digit
)

// maxProcesses bounds how many processes the scripts of one launchable's directory may be.
const maxProcesses = 64

// Version is one version of a pod on this node.
type Version struct {
	ID pod.Identity
	In *Installed
	M  *manifest.Manifest

	n   *Node
	uid int // of the pod, as a user and as a group; zero: none
	dir string
	// roots are where the artifacts are, by launchable, while dir is not there yet.
	roots map[string]string
}

// Version returns a version of a pod that has the number uid, nil when its manifest is not known.
func (n *Node) Version(id pod.Identity, uid int, in *Installed) *Version {
	m := in.Decode()
	if m == nil {
		return nil
	}
	return n.version(id, uid, in, m)
}

func (n *Node) version(id pod.Identity, uid int, in *Installed, m *manifest.Manifest) *Version {
	v := &Version{ID: id, In: in, M: m, n: n, uid: uid}
	v.dir = filepath.Join(n.dirOf(versionsDir, id), in.name())
	return v
}

// Installed is one version of a pod on the node, as its record has it.
type Installed struct {
	Digest   string          `json:"digest"`
	Revision int64           `json:"revision"`           // of the intent that had it installed; part of its processes' ids
	Manifest json.RawMessage `json:"manifest,omitempty"` // canonical JSON; nil when the record was rebuilt from the runtime
	Ports    map[string]int  `json:"ports,omitempty"`
	Replicas int             `json:"replicas,omitempty"` // of the pod's role, as the intent said that had it installed; zero: nobody said
	// Processes are what the launchables stand for, found in the artifacts; nil when the record was rebuilt from the runtime.
	Processes []Process `json:"processes,omitempty"`
	// MadeAs is the digest that the version was installed with, where only its limits have changed since: directory,
	// processes and environment are named by it. Empty: Digest.
	MadeAs string `json:"made_as,omitempty"`
	// Former are the digests before the limits changed, the latest last, at most maxFormer.
	Former []string `json:"former_digests,omitempty"`
	// Launching: what follows the start, after_launch and enable, is not done yet.
	Launching bool `json:"launching,omitempty"`
}

// Process is one supervised process of a version. Its name is part of its id.
type Process struct {
	Name       string `json:"name"`
	Launchable string `json:"launchable"`
	Path       string `json:"path"` // of the program: in the launchable's artifact, or absolute
}

// Known reports whether everything is there that running the version needs.
func (in *Installed) Known() bool { return in.Manifest != nil && in.Processes != nil }

// Decode returns the manifest of what is installed, nil when it is not known.
func (in *Installed) Decode() *manifest.Manifest {
	if in == nil || in.Manifest == nil {
		return nil
	}
	var m manifest.Manifest
	if json.Unmarshal(in.Manifest, &m) != nil {
		return nil // a record with such a manifest is refused when it is loaded
	}
	return &m
}

func (in *Installed) name() string { return fmt.Sprintf("%d-%s", in.Revision, Short(in.Made())) }

// Made returns the digest that the version was installed with.
func (in *Installed) Made() string { return cmp.Or(in.MadeAs, in.Digest) }

// maxFormer is how many digests are kept of before the limits changed: the agent may have the services with one of
// them.
const maxFormer = 8

// Relimited returns the version with the limits of a manifest, in canonical JSON, that differs from its own in nothing
// else.
func (in *Installed) Relimited(digest string, canonical json.RawMessage) *Installed {
	next := *in
	next.Digest, next.Manifest, next.MadeAs = digest, canonical, in.Made()
	former := slices.DeleteFunc(slices.Clone(in.Former), func(f string) bool { return f == in.Digest || f == digest })
	former = append(former, in.Digest)
	next.Former = former[max(0, len(former)-maxFormer):]
	if next.MadeAs == digest {
		next.MadeAs = ""
	}
	return &next
}

// configPath is where the launchable's copy of the configuration is: each has its own, for its own user.
func (v *Version) configPath(l *manifest.Launchable) string {
	return filepath.Join(v.dir, l.Name+".json")
}

// Path returns where a file of a launchable's artifact is. An absolute one is on the node already.
func (v *Version) Path(launchable, file string) string {
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
func (v *Version) layOut() error {
	config, err := renderConfig(v.M.Config)
	if err != nil {
		return err
	}
	temp := filepath.Join(filepath.Dir(v.dir), tempVersion+v.In.name())
	if err := os.RemoveAll(temp); err != nil {
		return fmt.Errorf("remove leftover: %w", err)
	}
	if err := os.MkdirAll(temp, 0o755); err != nil {
		return fmt.Errorf("make directory of version: %w", err)
	}
	v.n.cfg.Step("layout begun")
	for i := range v.M.Launchables {
		l := &v.M.Launchables[i]
		owner, err := v.owner(l)
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
	v.n.cfg.Step("layout written")
	// One of this name is from a try that was not finished: nothing that is recorded is made again.
	if err := os.RemoveAll(v.dir); err != nil {
		return fmt.Errorf("remove leftover: %w", err)
	}
	if err := os.Rename(temp, v.dir); err != nil {
		return fmt.Errorf("put version in place: %w", err)
	}
	v.n.cfg.Step("layout done")
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
func (v *Version) present() bool {
	info, err := os.Lstat(v.dir)
	return err == nil && info.IsDir()
}

// Switch makes the link to the current version point to this one, in one step.
func (v *Version) Switch() error {
	link := filepath.Join(filepath.Dir(v.dir), currentLink)
	if now, err := os.Readlink(link); err == nil && now == v.In.name() {
		return nil
	}
	temp := filepath.Join(filepath.Dir(v.dir), tempVersion+currentLink)
	err := os.Remove(temp)
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		err = os.Symlink(v.In.name(), temp)
	}
	if err == nil {
		v.n.cfg.Step("switch begun")
		err = os.Rename(temp, link)
	}
	if err != nil {
		return fmt.Errorf("switch to version %s: %w", v.In.name(), err)
	}
	v.n.cfg.Step("switch done")
	return nil
}

// Prune removes what is installed of versions of a pod that are not to be kept.
func (n *Node) Prune(id pod.Identity, kept []*Installed) error {
	dir := n.dirOf(versionsDir, id)
	keep := map[string]bool{currentLink: true}
	for _, in := range kept {
		keep[in.name()] = true
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
		n.cfg.Step("version pruned")
	}
	return errors.Join(errs...)
}

// processName is what the file of a script must be called, because it becomes part of a process's id.
var processName = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}$`)

// FindProcesses finds the processes that the launchables stand for in their artifacts. Once installed, a version has these and no others.
func (v *Version) FindProcesses(roots map[string]string) ([]Process, error) {
	v.roots = roots
	defer func() { v.roots = nil }()
	var all []Process
	names := map[string]bool{}
	for i := range v.M.Launchables {
		found, err := v.scriptsOf(&v.M.Launchables[i])
		if err != nil {
			return nil, forGood(fmt.Errorf("command of %s: %w", v.M.Launchables[i].Name, err))
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
func (v *Version) scriptsOf(l *manifest.Launchable) ([]Process, error) {
	command := l.Command
	switch {
	case l.Artifact.Kind == manifest.ArtifactExec:
		command = l.Artifact.Path
	case command == "":
		command = manifest.DefaultCommand
	}
	path := v.Path(l.Name, command)
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() || l.Artifact.Kind == manifest.ArtifactExec {
		return []Process{{Name: l.Name, Launchable: l.Name, Path: command}}, CheckProgram(path)
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		return nil, err
	}
	var found []Process
	for _, entry := range entries { // in the order of their names
		file := filepath.Join(path, entry.Name())
		if _, err := os.Stat(file); err != nil {
			return nil, err
		} else if CheckProgram(file) != nil {
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

// CheckProgram reports why a file cannot be executed.
func CheckProgram(path string) error {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return err
	case !info.Mode().IsRegular():
		return fmt.Errorf("%s is a %s; allowed: an executable file", path, info.Mode().Type())
	case info.Mode().Perm()&0o111 == 0:
		return fmt.Errorf("%s is not executable", path)
	}
	return nil
}
