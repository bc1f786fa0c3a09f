// Package idmap mounts directories so that their files have other owners there. Nothing changes on the disk, and each
// mount can show other owners. It needs Linux 5.12 and a file system that supports it, such as ext4, xfs, btrfs or
// tmpfs (mount_setattr(2), MOUNT_ATTR_IDMAP). For the lower layers of an overlay it needs Linux 5.19.
//
// runc makes such mounts itself only since version 1.2. Version 1.1 ignores the request without an error, and the
// container then sees files that belong to nobody. So the mounts are made before runc is called.
package idmap

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// Range maps numbers of users and groups: the owner OnDisk+n is shown as the owner Shown+n. Owners that no Range has
// are shown as the overflow user (65534), and nobody can make files for them.
type Range struct{ OnDisk, Shown, Size uint32 }

// Bind mounts the directory or file source on target, with other owners. Mounts below source are not visible at target.
// The mount belongs to the mount namespace of the calling thread. The error wraps errors.ErrUnsupported if the kernel
// or the file system cannot do it.
//
// Bind starts a process that never runs, because a mapping of numbers exists only as the user namespace of a process.
// In a program that waits for the end of all its children, Bind must not run at the same time as such a wait.
func Bind(source, target string, ranges []Range) error {
	mapping, err := NewMapping(ranges)
	if err != nil {
		return fmt.Errorf("mount %s on %s: %w", source, target, err)
	}
	defer func() { _ = mapping.Close() }()
	return mapping.Bind(source, target)
}

// Mapping is a list of ranges for several mounts. It costs a process, so it is made once.
type Mapping struct{ namespace *os.File }

// NewMapping makes a Mapping. What the comment of Bind says about its process holds for NewMapping.
func NewMapping(ranges []Range) (*Mapping, error) {
	namespace, err := userNamespace(ranges)
	if err != nil {
		return nil, fmt.Errorf("make a user namespace for other owners: %w", err)
	}
	return &Mapping{namespace}, nil
}

// Close does not change mounts that were made.
func (m *Mapping) Close() error { return m.namespace.Close() }

// Bind is the function Bind with this Mapping.
func (m *Mapping) Bind(source, target string) error {
	if err := m.bind(source, target); err != nil {
		return fmt.Errorf("mount %s on %s with other owners: %w", source, target, err)
	}
	return nil
}

func (m *Mapping) bind(source, target string) error {
	tree, err := unix.OpenTree(unix.AT_FDCWD, source, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return fmt.Errorf("open_tree: %w", unsupported(err))
	}
	defer func() { _ = unix.Close(tree) }()
	err = unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH, &unix.MountAttr{
		Attr_set: unix.MOUNT_ATTR_IDMAP, Userns_fd: uint64(m.namespace.Fd()),
		Propagation: unix.MS_PRIVATE, // otherwise a copy of a shared mount shows what is mounted below source later
	})
	if err != nil {
		return fmt.Errorf("mount_setattr: %w", unsupported(err))
	}
	if err := unix.MoveMount(tree, "", unix.AT_FDCWD, target, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("move_mount: %w", err)
	}
	return nil
}

// unsupported adds errors.ErrUnsupported to errors of a kernel or file system that cannot idmap.
func unsupported(err error) error {
	if errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP) {
		return fmt.Errorf("%w by this kernel or file system: %w", errors.ErrUnsupported, err)
	}
	return err
}

// userNamespace returns a user namespace with the mapping. The process that it is made for is a copy of this program.
// The kernel stops it before its first instruction, because this thread traces it.
func userNamespace(ranges []Range) (*os.File, error) {
	ids := make([]syscall.SysProcIDMap, len(ranges))
	for i, r := range ranges {
		ids[i] = syscall.SysProcIDMap{ContainerID: int(r.OnDisk), HostID: int(r.Shown), Size: int(r.Size)}
	}
	runtime.LockOSThread() // if the tracing thread ended, the process would run
	defer runtime.UnlockOSThread()
	pid, err := syscall.ForkExec("/proc/self/exe", []string{"idmap"}, &syscall.ProcAttr{
		Dir: "/", Env: []string{}, Sys: &syscall.SysProcAttr{
			Ptrace: true, Pdeathsig: syscall.SIGKILL, Cloneflags: syscall.CLONE_NEWUSER,
			UidMappings: ids, GidMappings: ids,
		},
	})
	if err != nil {
		return nil, err
	}
	namespace, err := os.Open(fmt.Sprintf("/proc/%d/ns/user", pid))
	return namespace, errors.Join(err, end(pid))
}

// end kills a process and waits for its end.
func end(pid int) error {
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		return err
	}
	for {
		var status unix.WaitStatus
		_, err := unix.Wait4(pid, &status, 0, nil)
		if err == nil && status.Stopped() || errors.Is(err, unix.EINTR) {
			continue // it has stopped at its first instruction before
		}
		return err
	}
}
