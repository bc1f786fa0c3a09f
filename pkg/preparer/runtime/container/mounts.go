package container

import (
	"cmp"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/rcfarm/rcfarm/pkg/field"
)

// Defaults and limits of memory that a container uses as files, in bytes.
const (
	DefaultShmSize   = 64 << 20
	DefaultTmpfsSize = 64 << 20
	minTmpfs         = 4096 // a page: the kernel takes less for no limit
	maxTmpfs         = 1 << 50
)

// maxMounts bounds the volumes, and the directories in memory, of one container.
const maxMounts = 64

const ttyGroup = 5 // of terminals; the number is the same in all distributions

// Files that the node gives to containers.
const (
	hostsPath  = "/etc/hosts"
	resolvPath = "/etc/resolv.conf"
)

// place is a path at which the node, the manifest or the image wants a mount.
type place struct {
	field, path string
	found       string // where the image's links lead
	fresh       bool   // the mount is empty when the container starts
}

// mounts returns the container's mounts, in the order in which they are made: what is below another comes later. Their
// places are where the image's links lead. Directories in memory belong to the process's user, because runc gives them
// the mode of the image's directory at that place, if there is one.
func (in *Input) mounts(errs *field.Errors, who User) []specs.Mount {
	in.checkPlaces(errs)
	shm := cmp.Or(in.Ask.ShmSize, DefaultShmSize)
	checkSize(errs, "shm_size", shm)
	var mounts []specs.Mount
	for _, file := range []struct{ path, source string }{
		{resolvPath, in.Node.ResolvConf}, {hostsPath, in.Node.Hosts},
	} {
		if file.source != "" {
			mounts = append(mounts, bind(file.source, file.path, "ro", "noexec"))
		}
	}
	for i, v := range in.Ask.Volumes {
		checkPath(errs, fmt.Sprintf("volumes[%d].source", i), v.Source, "an absolute path without . and ..")
		mode := "rw"
		if v.ReadOnly {
			mode = "ro"
		}
		mounts = append(mounts, bind(v.Source, v.Path, mode))
	}
	for i, t := range in.Ask.Tmpfs {
		size := cmp.Or(t.Size, DefaultTmpfsSize)
		checkSize(errs, fmt.Sprintf("tmpfs[%d].size", i), size)
		mounts = append(mounts, specs.Mount{
			Destination: t.Path, Type: "tmpfs", Source: "tmpfs",
			Options: []string{
				"nosuid", "nodev", "noexec", "mode=1777", fmt.Sprintf("size=%d", size), fmt.Sprintf("uid=%d", who.UID),
				fmt.Sprintf("gid=%d", who.GID),
			},
		})
	}
	for _, at := range ScratchPaths(in.Image.Config.Volumes, &in.Ask) {
		source, name := in.Node.Scratch[at], "node.scratch."+at
		checkPath(errs, name, source, "a directory of the node for this VOLUME of the image, because the root is "+
			"read-only")
		mounts = append(mounts, bind(source, at, "rw"))
	}
	for i := range mounts {
		mounts[i].Destination = cmp.Or(in.Files.Places[mounts[i].Destination], mounts[i].Destination)
	}
	slices.SortStableFunc(mounts, func(a, b specs.Mount) int { return strings.Compare(a.Destination, b.Destination) })
	if in.Ask.Init {
		mounts = append(mounts, bind(in.Node.InitProgram, initPath, "ro"))
	}
	return slices.Concat(in.Node.kernelMounts(shm), mounts)
}

func checkSize(errs *field.Errors, name string, size int64) {
	if size < minTmpfs || size > maxTmpfs {
		errs.Add(name, size, fmt.Sprintf("bytes, from %d to %d; 0: %d", minTmpfs, int64(maxTmpfs), DefaultTmpfsSize))
	}
}

// bind returns a mount of a file or directory of the node. Mounts below it are not visible.
func bind(source, at string, options ...string) specs.Mount {
	return specs.Mount{
		Destination: at, Type: "bind", Source: source,
		Options: append([]string{"bind", "rprivate", "nosuid", "nodev"}, options...),
	}
}

// kernelMounts returns what every container has in /proc, /dev and /sys.
func (n *Node) kernelMounts(shm int64) []specs.Mount {
	mounts := []specs.Mount{
		{Destination: "/proc", Type: "proc", Source: "proc", Options: []string{"nosuid", "noexec", "nodev"}},
		{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{
			"nosuid", "strictatime", "mode=755", "size=65536k",
		}},
		n.devpts(),
		{Destination: "/dev/shm", Type: "tmpfs", Source: "shm", Options: []string{
			"nosuid", "noexec", "nodev", "mode=1777", fmt.Sprintf("size=%d", shm),
		}},
		{Destination: "/dev/mqueue", Type: "mqueue", Source: "mqueue", Options: []string{"nosuid", "noexec", "nodev"}},
	}
	sys := specs.Mount{Destination: "/sys", Type: "sysfs", Source: "sysfs", Options: []string{
		"nosuid", "noexec", "nodev", "ro",
	}}
	if n.IDs != nil {
		// The kernel lets only the owner of the network namespace mount sysfs. It refuses a bind that hides mounts
		// below /sys, so they come along, read-only.
		sys = specs.Mount{Destination: "/sys", Type: "bind", Source: "/sys", Options: []string{
			"rbind", "rprivate", "nosuid", "noexec", "nodev", "rro",
		}}
	}
	return append(mounts, sys, specs.Mount{
		Destination: "/sys/fs/cgroup", Type: "cgroup", Source: "cgroup",
		Options: []string{"nosuid", "noexec", "nodev", "relatime", "ro"},
	})
}

// devpts returns the mount of the container's terminals. Their group is tty, if the container has that number.
func (n *Node) devpts() specs.Mount {
	options := []string{"nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620"}
	if n.IDs == nil || n.IDs.Size > ttyGroup {
		options = append(options, fmt.Sprintf("gid=%d", ttyGroup))
	}
	return specs.Mount{Destination: "/dev/pts", Type: "devpts", Source: "devpts", Options: options}
}

// ScratchPaths returns the VOLUME paths of an image for which a container needs directories of the node, sorted. They
// are those that no volume and no tmpfs of the manifest replaces, if the root is read-only. If the root is writable,
// they are directories of it, and there are none. There are none either if the image has more volumes than Build takes.
func ScratchPaths(volumes map[string]struct{}, ask *Ask) []string {
	if !ask.ReadOnlyRoot || len(volumes) > maxMounts {
		return nil
	}
	var paths []string
	for _, at := range slices.Sorted(maps.Keys(volumes)) {
		at = path.Join("/", at)
		replaced := slices.ContainsFunc(ask.Volumes, func(v Volume) bool { return v.Path == at }) ||
			slices.ContainsFunc(ask.Tmpfs, func(t Tmpfs) bool { return t.Path == at })
		if !replaced && !slices.Contains(paths, at) {
			paths = append(paths, at)
		}
	}
	return paths
}

// kernelPlaces returns the directories that the kernel or runc fills. They may not be links in the image.
func kernelPlaces() []string { return []string{"/proc", "/sys", "/dev"} }

// MountPaths returns the paths about which Build must know where the image's links lead.
// These are the places of mounts, and the working directory.
func (in *Input) MountPaths() []string {
	paths := append(kernelPlaces(), field.Each(in.places(), func(p place) string { return p.path })...)
	if dir := in.workPath(); isClean(dir) && !slices.Contains(paths, dir) {
		paths = append(paths, dir)
	}
	return paths
}

// checkPlaces checks all paths at which the node, the manifest or the image wants a mount. No mount may be below a
// volume: processes of the pod can change the volume, and could put a link there while the mount is made.
func (in *Input) checkPlaces(errs *field.Errors) {
	for _, list := range []struct {
		field string
		size  int
	}{
		{"volumes", len(in.Ask.Volumes)},
		{"tmpfs", len(in.Ask.Tmpfs)},
		{"image.Volumes", len(in.Image.Config.Volumes)},
	} {
		if list.size > maxMounts {
			errs.Add(list.field, field.Text(fmt.Sprintf("%d entries", list.size)),
				fmt.Sprintf("at most %d entries", maxMounts))
			return
		}
	}
	for _, dir := range kernelPlaces() {
		if found := in.Files.Places[dir]; found == "" {
			errs.Missing("files.places."+dir, "what ReadFiles has found")
		} else if found != dir {
			errs.Add("files.places."+dir, found, "an image in which "+dir+" is not a link")
		}
	}
	places := in.places()
	for _, p := range places {
		in.checkPlace(errs, p)
	}
	slices.SortStableFunc(places, func(a, b place) int { return strings.Compare(a.found, b.found) })
	for i, p := range places {
		for _, other := range places[:i] {
			if p.found == other.found || !other.fresh && contains(other.found, p.found) {
				errs.Add(p.field, p.path, fmt.Sprintf("a path that is not at or below %s of %s%s", other.path,
					other.field, leads(p)))
				break
			}
		}
	}
}

// checkPlace checks one place by itself.
func (in *Input) checkPlace(errs *field.Errors, p place) {
	const allowed = "an absolute path without . and .., not / and not /etc, outside /proc, /sys and /dev, and not " +
		hostsPath + " or " + resolvPath
	reserved := []string{"/etc", hostsPath, resolvPath}
	nodes := p.path == hostsPath || p.path == resolvPath
	switch {
	case !isClean(p.path) || isKernels(p.path) || slices.Contains(reserved, p.path) && p.field != nodesFiles:
		errs.Add(p.field, p.path, allowed)
	case p.found == "":
		errs.Missing("files.places."+p.path, "what ReadFiles has found")
	case !isClean(p.found) || isKernels(p.found) || slices.Contains(reserved, p.found) && !nodes:
		errs.Add(p.field, p.path, allowed+leads(p))
	}
}

// leads says where the image's links lead, if there are any.
func leads(p place) string {
	if p.found == p.path {
		return ""
	}
	return fmt.Sprintf("; links of the image lead from %s to %s", field.OneLine(p.path), field.OneLine(p.found))
}

// nodesFiles is the field of the files that the node gives to containers.
const nodesFiles = "node"

func (in *Input) places() []place {
	var all []place
	add := func(name, at string, fresh bool) {
		all = append(all, place{field: name, path: at, found: in.Files.Places[at], fresh: fresh})
	}
	if in.Node.Hosts != "" {
		add(nodesFiles, hostsPath, false)
	}
	if in.Node.ResolvConf != "" {
		add(nodesFiles, resolvPath, false)
	}
	for i, v := range in.Ask.Volumes {
		add(fmt.Sprintf("volumes[%d].path", i), v.Path, false)
	}
	for i, t := range in.Ask.Tmpfs {
		add(fmt.Sprintf("tmpfs[%d].path", i), t.Path, true)
	}
	for _, at := range ScratchPaths(in.Image.Config.Volumes, &in.Ask) {
		add("image.Volumes."+at, at, false)
	}
	return all
}
