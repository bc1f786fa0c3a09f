// Package container makes the configuration of a container (config.json of the OCI runtime specification) from an
// image's configuration, a manifest and facts of the node. Build is a function of its arguments: it reads no files and
// changes nothing. The seccomp profile also depends on the version of the running kernel.
//
// # What every container has
//
// A container has its own pid, mount, IPC, UTS and cgroup namespaces, and the node's network. Its processes cannot gain
// privileges (no_new_privs), have Docker's seccomp profile, and at most the capabilities of RootCapabilities and those
// that the manifest asks for and the node allows. Files of the kernel that concern the whole machine are masked or
// read-only. Only the usual devices exist (null, zero, full, random, urandom, tty, a pts of its own).
//
// With the node's network, a container also reaches Unix sockets with abstract names of the whole node, because these
// names belong to the network namespace. Files of other pods stay out of reach.
//
// # Users
//
// Node.IDs decides how the accounts of the image become users of the node:
//
//   - With a block of numbers, the container has a user namespace. The image's root is the first number of the block,
//     its account 33 is the number 33 of the block. The caller must show the image's files through an idmapped mount
//     (package idmap).
//   - Without a block, there is no user namespace. Every process has the pod's number, whichever account of the image
//     it is. The groups of the account are left out, because they would be groups of the node. An image that begins as
//     root does not start, unless the manifest asks for the user root and the node allows it.
//
// # Links of an image
//
// Debian's runc 1.1.5 can be made to write to files of the kernel (CVE-2025-31133). An image has a link from /data to
// /dev, the manifest has a volume at /data, and the volume has a link from null to /proc/sys/kernel/core_pattern. runc
// takes that file for /dev/null, and gives it to the program as its output. A program that is the node's root can then
// have the kernel run programs outside of the container. runc 1.2.8 and 1.3.3 mend it.
//
// Build refuses all mounts that the image's links lead into /proc, /sys, /dev or a volume, and images in which one of
// the three directories is a link. So runc follows no link of an image when it makes a mount. The two other faults of
// that time need what no container has here: CVE-2025-52565 a terminal, CVE-2025-52881 a security label or a sysctl.
//
// # What differs between machines
//
// The configuration is the same with cgroup v1, v2 and a hybrid of both: runc shows each of them at /sys/fs/cgroup. In
// a user namespace, sysfs cannot be mounted, because the network namespace is the node's; the container then sees a
// read-only bind of the node's /sys.
package container

import (
	"cmp"
	"fmt"
	"maps"
	"path"
	"slices"

	"github.com/moby/profiles/seccomp"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/rcfarm/rcfarm/pkg/field"
)

// version is the version of the runtime specification whose fields Build uses.
const version = "1.0.2"

// Input is what a container is made from.
type Input struct {
	Image imagespec.Image
	Files Files // of the image; see ReadFiles
	Ask   Ask
	Node  Node
}

// Ask is what a manifest asks for.
type Ask struct {
	Command string   // the program; replaces the image's Entrypoint, and its Cmd too
	Args    []string // replace the image's Cmd; none: the Cmd is kept
	Env     map[string]string
	WorkDir string // absolute; empty: the image's
	User    string // user[:group], accounts or numbers of the image; empty: the image's

	Volumes      []Volume
	Tmpfs        []Tmpfs
	ShmSize      int64 // bytes of /dev/shm; zero: DefaultShmSize
	ReadOnlyRoot bool

	Capabilities Capabilities
	Init         bool // PID 1 is the node's init program, which reaps zombies

	Unsupported Unsupported
}

// Volume is a directory or file of the node that the container sees.
type Volume struct {
	Path     string // in the container: absolute
	Source   string // on the node: absolute
	ReadOnly bool
}

// Tmpfs is a directory of the container whose files are in memory.
type Tmpfs struct {
	Path string
	Size int64 // bytes; zero: DefaultTmpfsSize
}

// Capabilities are changes of the capabilities that a container has by default: names with or without CAP_. Drop may
// be ALL.
type Capabilities struct{ Add, Drop []string }

// Unsupported is what a manifest may ask for in other systems, and is refused here.
type Unsupported struct {
	Devices    []string
	GPUs       string
	Sysctls    map[string]string
	Privileged bool
	HostPID    bool
	SELinux    []string // labels
}

// Node has facts of the node and of the pod on it. Build trusts their meaning and checks their form.
type Node struct {
	Root   string // absolute path of the container's files on the node
	Cgroup string // as runc takes it: absolute, below the mounts of cgroups

	IDs       *IDs // the pod's block of numbers; nil: the node cannot idmap
	Number    int  // without IDs: the pod's user and group
	AllowRoot bool // without IDs: a manifest may ask for root, which is the node's root

	Capabilities []string // that a manifest may add, with or without CAP_
	InitProgram  string   // absolute path of a static program; empty: the node has none

	Hostname   string
	Hosts      string            // absolute path of the file that becomes /etc/hosts; empty: the image has its own
	ResolvConf string            // the same for /etc/resolv.conf
	Env        map[string]string // the node's own variables; they replace all others
	// Scratch has a directory of the node for each path that ScratchPaths returns.
	Scratch map[string]string
}

// IDs is a block of user and group numbers of the node. The number n of the container is the number First+n.
type IDs struct{ First, Size uint32 }

// Container is what Build returns.
type Container struct {
	Spec *specs.Spec // the content of config.json
	UID  uint32      // the process's user, as a number of the node: volumes must belong to it
	GID  uint32
}

// Build makes a container's configuration. The error is a field.Errors with all mistakes.
func Build(in Input) (*Container, error) {
	var errs field.Errors
	in.Ask.Unsupported.refuse(&errs)
	in.Node.validate(&errs)
	who := in.user(&errs)
	process := &specs.Process{
		User:            specs.User{UID: who.UID, GID: who.GID, AdditionalGids: who.Groups},
		Args:            in.args(&errs),
		Env:             in.env(&errs, who),
		Cwd:             in.workDir(&errs),
		Capabilities:    in.capabilities(&errs, who.UID == 0),
		NoNewPrivileges: true,
	}
	spec := &specs.Spec{
		Version: version, Process: process, Hostname: in.Node.Hostname,
		Root:   &specs.Root{Path: in.Node.Root, Readonly: in.Ask.ReadOnlyRoot},
		Mounts: in.mounts(&errs, who),
		Linux: &specs.Linux{
			CgroupsPath: in.Node.Cgroup,
			Namespaces:  in.Node.namespaces(),
			UIDMappings: in.Node.IDs.mapping(), GIDMappings: in.Node.IDs.mapping(),
			// runc adds the usual devices to the list.
			Resources:   &specs.LinuxResources{Devices: []specs.LinuxDeviceCgroup{{Allow: false, Access: "rwm"}}},
			MaskedPaths: maskedPaths(), ReadonlyPaths: readonlyPaths(),
		},
	}
	if len(errs) > 0 {
		return nil, errs.Err()
	}
	var err error
	if spec.Linux.Seccomp, err = seccomp.GetDefaultProfile(spec); err != nil {
		return nil, fmt.Errorf("make the seccomp profile: %w", err)
	}
	made := &Container{Spec: spec, UID: who.UID, GID: who.GID}
	if ids := in.Node.IDs; ids != nil {
		made.UID, made.GID = ids.First+who.UID, ids.First+who.GID
	}
	return made, nil
}

// refuse adds a mistake for each thing that the manifest asks for and that does not exist here.
func (u Unsupported) refuse(errs *field.Errors) {
	const nothing = "nothing: "
	if len(u.Devices) > 0 {
		errs.Add("devices", u.Devices[0], nothing+"containers get no devices of the node")
	}
	if u.GPUs != "" {
		errs.Add("gpus", u.GPUs, nothing+"containers get no GPUs")
	}
	for _, name := range slices.Sorted(maps.Keys(u.Sysctls)) {
		errs.Add("sysctls."+name, u.Sysctls[name], nothing+"set it on the node, whose network containers share")
	}
	if u.Privileged {
		errs.Add("privileged", true, "false: name the capabilities that the program needs in capabilities.add")
	}
	if u.HostPID {
		errs.Add("host_pid", true, "false: containers have their own process ids")
	}
	if len(u.SELinux) > 0 {
		errs.Add("selinux", u.SELinux[0], nothing+"containers get no SELinux labels")
	}
}

// maxID is the highest user number of Linux. The next number means "no user".
const maxID = 1<<32 - 2

// maxHostname is the kernel's limit in bytes (sethostname(2)).
const maxHostname = 64

func (n *Node) validate(errs *field.Errors) {
	checkPath(errs, "node.root", n.Root, "the absolute path of a directory, without . and ..")
	checkPath(errs, "node.cgroup", n.Cgroup, "the absolute path of a cgroup that is not the root, without . and ..")
	for _, file := range []struct{ field, path string }{
		{"node.hosts", n.Hosts}, {"node.resolv_conf", n.ResolvConf}, {"node.init_program", n.InitProgram},
	} {
		if file.path != "" {
			checkPath(errs, file.field, file.path, "the absolute path of a file, without . and ..")
		}
	}
	if !isHostname(n.Hostname) {
		errs.Add("node.hostname", n.Hostname, fmt.Sprintf("1 to %d letters, digits, '-' and '.'", maxHostname))
	}
	switch ids := n.IDs; {
	case ids == nil && (n.Number < 0 || n.Number > maxID):
		errs.Add("node.number", n.Number, fmt.Sprintf("a whole number from 0 to %d", maxID))
	case ids == nil:
	case ids.First == 0 || ids.Size == 0 || uint64(ids.First)+uint64(ids.Size)-1 > maxID:
		errs.Add("node.ids", field.Text(fmt.Sprintf("%d numbers from %d", ids.Size, ids.First)),
			fmt.Sprintf("1 or more numbers from 1 to %d", maxID))
	}
}

func isHostname(text string) bool {
	for i := range len(text) {
		switch c := text[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '-', c == '.':
		default:
			return false
		}
	}
	return text != "" && len(text) <= maxHostname
}

// checkPath adds a mistake unless a path is absolute, clean and not the root.
func checkPath(errs *field.Errors, name, at, allowed string) {
	switch {
	case at == "":
		errs.Missing(name, allowed)
	case !isClean(at):
		errs.Add(name, at, allowed)
	}
}

// isClean reports whether a path is absolute and clean, and not the root.
func isClean(at string) bool {
	return isText(at) && path.IsAbs(at) && path.Clean(at) == at && at != "/"
}

func (n *Node) namespaces() []specs.LinuxNamespace {
	kinds := []specs.LinuxNamespaceType{
		specs.PIDNamespace, specs.MountNamespace, specs.IPCNamespace, specs.UTSNamespace, specs.CgroupNamespace,
	}
	if n.IDs != nil {
		kinds = append(kinds, specs.UserNamespace)
	}
	return field.Each(kinds, func(kind specs.LinuxNamespaceType) specs.LinuxNamespace {
		return specs.LinuxNamespace{Type: kind}
	})
}

func (i *IDs) mapping() []specs.LinuxIDMapping {
	if i == nil {
		return nil
	}
	return []specs.LinuxIDMapping{{ContainerID: 0, HostID: i.First, Size: i.Size}}
}

// maskedPaths returns the files and directories that look empty in a container. They are Docker's: they show other
// processes' data, memory of the kernel, or hardware.
func maskedPaths() []string {
	return []string{
		"/proc/asound", "/proc/acpi", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats",
		"/proc/timer_list", "/proc/timer_stats", "/proc/sched_debug", "/proc/scsi", "/sys/firmware",
		"/sys/devices/virtual/powercap", "/sys/kernel/debug", "/sys/kernel/tracing",
	}
}

// readonlyPaths returns the files and directories through which a container could change the machine.
func readonlyPaths() []string {
	return []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"}
}

// user returns the process's user as the container sees it.
func (in *Input) user(errs *field.Errors) User {
	name, where := in.Image.Config.User, "image.User"
	if in.Ask.User != "" {
		name, where = in.Ask.User, "user"
	}
	who, err := in.Files.Accounts.Lookup(name)
	if err != nil {
		errs.Add(where, name, err.Error())
		return who
	}
	if ids := in.Node.IDs; ids != nil {
		for _, id := range append([]uint32{who.UID, who.GID}, who.Groups...) {
			if id >= ids.Size {
				errs.Add(where, name, fmt.Sprintf("a user and groups below %d: the account has the number %d, and "+
					"the pod's block of numbers ends before it", ids.Size, id))
				return who
			}
		}
		return who
	}
	return in.withoutIDs(errs, where, name, who)
}

// withoutIDs returns the process's user on a node that cannot idmap.
func (in *Input) withoutIDs(errs *field.Errors, where, name string, who User) User {
	own := User{UID: uint32(in.Node.Number), GID: uint32(in.Node.Number), Home: who.Home}
	const root = "root"
	switch {
	case who.UID != 0 && in.Node.Number == 0:
		errs.Add("node.number", 0, "a number that is not root's, because this container does not run as root")
		return own
	case who.UID != 0:
		return own
	case in.Ask.User != root:
		errs.Add(where, cmp.Or(name, "root"), "an account that is not root: this node cannot give the image's root "+
			"a number of its own, for which it needs Linux 5.19. Name another account in user, or, where the node "+
			"allows it, user: root, which is the node's root")
		return own
	case !in.Node.AllowRoot:
		errs.Add(where, name, "an account that is not root: this node does not allow root")
		return own
	}
	return User{Home: who.Home}
}
