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
	"github.com/rcfarm/rcfarm/pkg/preparer/image"
)

const (
	currentLink = "current"
	tempVersion = "tmp-" // no version has such a name, because these start with a digit
)

// maxProcesses is for one launchable's directory.
const maxProcesses = 64

// Version is one version of a pod on this node.
type Version struct {
	ID pod.Identity
	In *Installed
	M  *manifest.Manifest

	n   *Node
	uid int // number of the pod's user and group; zero: none
	dir string
	// roots has the artifacts' directories by launchable, as long as dir does not exist.
	roots map[string]string
	// images are by launchable. Install and Ensure set them.
	images map[string]image.Image
}

// Version returns nil if the manifest is not known. uid is the pod's number.
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

// Installed is one version of a pod, as in the pod's record.
type Installed struct {
	Digest string `json:"digest"`
	// Revision is of the intent for which the version was installed. It is part of its processes' ids.
	Revision int64 `json:"revision"`
	// Manifest is canonical JSON; nil if the record was rebuilt from the runtime.
	Manifest json.RawMessage `json:"manifest,omitempty"`
	Ports    map[string]int  `json:"ports,omitempty"`
	// Replicas is how many replicas the pod's role had in that intent; zero: not known.
	Replicas int `json:"replicas,omitempty"`
	// Processes are as found in the artifacts; nil if the record was rebuilt from the runtime.
	Processes []Process `json:"processes,omitempty"`
	// MadeAs is the digest with which the version was installed, if its limits have changed since. Directory, process
	// ids and environment keep it. Empty: it is Digest.
	MadeAs string `json:"made_as,omitempty"`
	// Former has the digests before changes of the limits, the latest last, at most maxFormer.
	Former []string `json:"former_digests,omitempty"`
	// Launching: the hooks after_launch and enable have not ended yet.
	Launching bool `json:"launching,omitempty"`
}

// Process is one supervised process of a version.
type Process struct {
	Name       string `json:"name"`
	Launchable string `json:"launchable"`
	// Path is of the program: relative to the launchable's artifact, or absolute; empty: it is in an image.
	Path string `json:"path"`
}

// Known reports whether the version can be run.
func (i *Installed) Known() bool { return i.Manifest != nil && i.Processes != nil }

// Decode returns nil if the manifest is not known.
func (i *Installed) Decode() *manifest.Manifest {
	if i == nil || i.Manifest == nil {
		return nil
	}
	var m manifest.Manifest
	if json.Unmarshal(i.Manifest, &m) != nil {
		return nil // impossible: a record with such a manifest is not loaded
	}
	return &m
}

func (i *Installed) name() string { return fmt.Sprintf("%d-%s", i.Revision, Short(i.Made())) }

// Made returns the digest with which the version was installed.
func (i *Installed) Made() string { return cmp.Or(i.MadeAs, i.Digest) }

// maxFormer former digests are kept, because the services at the agent may still have one.
const maxFormer = 8

// Relimited returns the version with another manifest, in canonical JSON, that differs only in limits.
func (i *Installed) Relimited(digest string, canonical json.RawMessage) *Installed {
	next := *i
	next.Digest, next.Manifest, next.MadeAs = digest, canonical, i.Made()
	former := slices.DeleteFunc(slices.Clone(i.Former), func(f string) bool { return f == i.Digest || f == digest })
	former = append(former, i.Digest)
	next.Former = former[max(0, len(former)-maxFormer):]
	if next.MadeAs == digest {
		next.MadeAs = ""
	}
	return &next
}

// configPath: each launchable has a copy of the configuration, because launchables can have different users.
func (v *Version) configPath(l *manifest.Launchable) string {
	return filepath.Join(v.dir, l.Name+".json")
}

// Path returns the path of a file of a launchable's artifact. An absolute file is of the node.
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

// layOut makes the version's directory under another name and then renames it, so that a directory with the final name
// is complete. A power failure can undo the rename; then Ensure makes the directory again.
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
		if !l.Artifact.IsFetched() {
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
	// Such a directory is from an unfinished try, because a recorded version is not made again.
	if err := os.RemoveAll(v.dir); err != nil {
		return fmt.Errorf("remove leftover: %w", err)
	}
	if err := os.Rename(temp, v.dir); err != nil {
		return fmt.Errorf("put version in place: %w", err)
	}
	v.n.cfg.Step("layout done")
	return nil
}

// writeConfig also syncs the file.
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

func (v *Version) present() bool {
	info, err := os.Lstat(v.dir)
	return err == nil && info.IsDir()
}

// Switch changes the link currentLink to this version, in one step.
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

// Prune removes the versions that are not in kept.
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

// processName is the allowed name of a script's file. It becomes part of a process's id.
var processName = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}$`)

// FindProcesses finds the processes in the artifacts. An image has one, which is found when its container starts. An
// installed version keeps exactly these.
func (v *Version) FindProcesses(fetched Fetched) ([]Process, error) {
	v.roots = fetched.dirs
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
				return nil,
					forGood(fmt.Errorf("two processes would be called %s; rename a launchable or a script", proc.Name))
			}
			names[proc.Name] = true
		}
		all = append(all, found...)
	}
	return all, nil
}

// scriptsOf returns the launchable's command or, if it is a directory, each executable file in it.
func (v *Version) scriptsOf(l *manifest.Launchable) ([]Process, error) {
	command := l.Command
	switch {
	case l.Artifact.IsImage():
		return []Process{{Name: l.Name, Launchable: l.Name}}, nil
	case l.Artifact.IsOnNode():
		command = l.Artifact.Path
	case command == "":
		command = manifest.DefaultCommand
	}
	path := v.Path(l.Name, command)
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() || l.Artifact.IsOnNode() {
		return []Process{{Name: l.Name, Launchable: l.Name, Path: command}}, CheckProgram(path)
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		return nil, err
	}
	var found []Process
	for _, entry := range entries { // sorted by name
		file := filepath.Join(path, entry.Name())
		if _, err := os.Stat(file); err != nil {
			return nil, err
		} else if CheckProgram(file) != nil {
			continue
		}
		if !processName.MatchString(entry.Name()) {
			return nil, fmt.Errorf("script %q: allowed: a name of at most 64 letters, digits, '-', '_' and '.' that "+
				"starts with a letter, a digit or _", entry.Name())
		}
		found = append(found,
			Process{Name: l.Name + "-" + entry.Name(), Launchable: l.Name, Path: command + "/" + entry.Name()})
	}
	if len(found) == 0 || len(found) > maxProcesses {
		return nil, fmt.Errorf("%s holds %d executable files; allowed: 1 to %d", path, len(found), maxProcesses)
	}
	return found, nil
}

// CheckProgram returns why a file cannot be executed.
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
