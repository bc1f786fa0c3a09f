// Package confine is what a stub does to itself between fork and exec: it keeps the process from the rest of its node, with a
// cgroup, a /tmp of its own, another user and no new privileges, and drops what it inherited.
//
// It asks for nothing but system calls and files. A stub is started for every process of a node, and what it imports is
// initialised in each (see package stub): what manages cgroups from outside is in package isolate.
package confine

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"syscall"
)

// Isolation is what is wanted to keep a process from the rest of the node.
type Isolation struct {
	UID    int   `json:"uid"`
	GID    int   `json:"gid"`
	Groups []int `json:"groups,omitempty"` // supplementary

	NoNewPrivileges bool   `json:"no_new_privileges,omitempty"` // setuid programs give it nothing (prctl(2))
	Tmp             string `json:"tmp,omitempty"`               // directory that it sees as /tmp and /var/tmp; empty: the node's

	// The limits are of the process and all its descendants together, whatever sessions they make; zero: none.
	CPU    int64 `json:"cpu,omitempty"`    // thousandths of a core
	Memory int64 `json:"memory,omitempty"` // bytes
	PIDs   int64 `json:"pids,omitempty"`   // processes and threads
}

// Validate reports why an isolation cannot be had anywhere.
func (i Isolation) Validate() error {
	const maxID = 1<<32 - 2 // one more means "leave it"
	for _, id := range append([]int{i.UID, i.GID}, i.Groups...) {
		if id < 0 || id > maxID {
			return fmt.Errorf("isolation: user or group %d is not valid; allowed: 0 to %d", id, maxID)
		}
	}
	if err := absolute(i.Tmp); err != nil {
		return err
	}
	for name, limit := range map[string]int64{"cpu": i.CPU, "memory": i.Memory, "pids": i.PIDs} {
		if limit < 0 {
			return fmt.Errorf("isolation: %s limit %d is not valid; allowed: zero for none, or more", name, limit)
		}
	}
	return nil
}

func absolute(dir string) error {
	if dir != "" && dir[0] != '/' {
		return fmt.Errorf("isolation: directory %q is not valid; allowed: an absolute path, or nothing", dir)
	}
	return nil
}

// Confinement is an Isolation with what it takes on this node. It is applied after the fork and before the program.
type Confinement struct {
	Isolation

	// Cgroup is a directory of cgroup v2, made when missing, that the process and all its descendants live in; empty: none. The limits
	// are of this group.
	Cgroup string `json:"cgroup,omitempty"`
}

// Validate reports why a confinement cannot be applied anywhere.
func (c Confinement) Validate() error {
	if err := absolute(c.Cgroup); err != nil {
		return err
	}
	if c.Cgroup == "" && c.CPU+c.Memory+c.PIDs > 0 {
		return fmt.Errorf("isolation: limits (cpu %d, memory %d, pids %d) are not valid without a cgroup; allowed: zero", c.CPU, c.Memory, c.PIDs)
	}
	return c.Isolation.Validate()
}

// Apply isolates the calling process. Users, mounts and privileges belong to a thread before exec: the calling goroutine
// stays locked to its thread and becomes the program from there. After an error it must not become it.
//
// The order is fixed by what each step needs: cgroup and mounts need root, which the user step gives up, and setgid needs
// it after setgroups. The limits of the cgroup hold from the first step on.
//
// tie, unless nil, ties the process to its parent. It is called when no later step can undo that, and before the user
// that the process becomes may signal it.
func Apply(c *Confinement, tie func() error) error {
	runtime.LockOSThread()
	if err := joinCgroup(c); err != nil {
		return err
	}
	if err := coverTmp(c.Isolation); err != nil {
		return err
	}
	if err := become(c.Isolation, tie); err != nil {
		return err
	}
	if err := DropCapabilities(); err != nil {
		return err
	}
	return renouncePrivileges(c.Isolation)
}

// What package syscall lacks; the same on all architectures that it has Linux for (include/uapi, open(2) and prctl(2)).
const (
	oPath           = 0x200000
	prSetNoNewPrivs = 38
)

// tmpDirs is what a private tmp covers.
func tmpDirs() []string { return []string{"/tmp", "/var/tmp"} }

// coverTmp gives the thread mounts of its own and puts iso.Tmp over the node's temporary directories.
func coverTmp(iso Isolation) error {
	if iso.Tmp == "" {
		return nil
	}
	if err := OwnMounts(); err != nil {
		return err
	}
	// By descriptor, because it may lie below what is covered first; opened in the new namespace, as bind mounts demand.
	dir, err := syscall.Open(iso.Tmp, oPath|syscall.O_DIRECTORY|syscall.O_NOFOLLOW|syscall.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open private tmp %s: %w", iso.Tmp, err)
	}
	defer func() { _ = syscall.Close(dir) }()
	for _, target := range tmpDirs() {
		if _, err := os.Stat(target); errors.Is(err, fs.ErrNotExist) {
			continue
		}
		err := syscall.Mount(fmt.Sprintf("/proc/self/fd/%d", dir), target, "", syscall.MS_BIND, "")
		if err == nil {
			err = syscall.Mount("none", target, "", syscall.MS_REMOUNT|syscall.MS_BIND|syscall.MS_NOSUID|syscall.MS_NODEV, "")
		}
		if err != nil {
			return fmt.Errorf("mount private tmp %s on %s: %w", iso.Tmp, target, err)
		}
	}
	return nil
}

// OwnMounts gives the calling thread a mount namespace. What is mounted in it is not seen outside; what the node mounts and
// unmounts later is seen inside, so that no pod keeps a file system of the node busy (mount_namespaces(7)).
func OwnMounts() error {
	if err := syscall.Unshare(syscall.CLONE_NEWNS); err != nil {
		return fmt.Errorf("make a mount namespace: %w", err)
	}
	if err := syscall.Mount("none", "/", "", syscall.MS_REC|syscall.MS_SLAVE, ""); err != nil {
		return fmt.Errorf("detach from the node's mounts: %w", err)
	}
	return nil
}

// become changes the user for good: real, effective and saved ids, so that there is no way back.
//
// The effective user changes first, because that change clears the death signal, which tie sets again. Only a process
// with the real or the saved user may send signals (kill(2)): so no pod can stop this process while it is tied to
// nothing.
func become(iso Isolation, tie func() error) error {
	if tie == nil {
		tie = func() error { return nil }
	}
	if os.Getuid() != 0 && os.Getuid() == iso.UID && os.Getgid() == iso.GID && len(iso.Groups) == 0 {
		return tie() // only root may even ask for the groups that it has
	}
	if err := syscall.Setgroups(iso.Groups); err != nil {
		return fmt.Errorf("take groups %v: %w", iso.Groups, err)
	}
	if err := syscall.Setresgid(iso.GID, iso.GID, iso.GID); err != nil {
		return fmt.Errorf("become group %d: %w", iso.GID, err)
	}
	const keep = -1
	if err := syscall.Setresuid(keep, iso.UID, keep); err != nil {
		return fmt.Errorf("become user %d: %w", iso.UID, err)
	}
	if err := tie(); err != nil {
		return err
	}
	if err := syscall.Setresuid(iso.UID, iso.UID, iso.UID); err != nil {
		return fmt.Errorf("become user %d for good: %w", iso.UID, err)
	}
	return nil
}

func renouncePrivileges(iso Isolation) error {
	if !iso.NoNewPrivileges {
		return nil
	}
	if _, _, err := syscall.RawSyscall6(syscall.SYS_PRCTL, prSetNoNewPrivs, 1, 0, 0, 0, 0); err != 0 {
		return fmt.Errorf("renounce new privileges: %w", err)
	}
	return nil
}
