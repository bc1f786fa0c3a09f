// Package confine has the steps by which a stub isolates itself between fork and exec. It imports little, because a
// stub is started for every process of a node, and initialises all packages that it imports (see package stub). So the
// code for cgroups of other processes is in package isolate.
package confine

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"syscall"
)

// Isolation separates a process from the rest of the node. An older supervisor ignores a field that it does not know,
// so the process would run without that isolation. A preparer must send a new field only to a supervisor that has
// announced it, as the field Watchdogs of shim's snapshot announces watchdogs.
type Isolation struct {
	UID    int   `json:"uid"`
	GID    int   `json:"gid"`
	Groups []int `json:"groups,omitempty"` // supplementary

	NoNewPrivileges bool `json:"no_new_privileges,omitempty"` // setuid programs give it no privileges (prctl(2))
	// Tmp is the directory that the process sees as /tmp and /var/tmp; empty: it sees the node's directories.
	Tmp string `json:"tmp,omitempty"`

	// The limits apply to the process and all its descendants together, also in other sessions; zero: no limit.
	CPU    int64 `json:"cpu,omitempty"`    // thousandths of a core
	Memory int64 `json:"memory,omitempty"` // bytes
	PIDs   int64 `json:"pids,omitempty"`   // processes and threads
}

// Validate returns an error if a value cannot be valid on any node.
func (i Isolation) Validate() error {
	const maxID = 1<<32 - 2 // for setresuid, the next number means "no change"
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

// Confinement is an Isolation together with a cgroup of this node.
type Confinement struct {
	Isolation

	// Cgroup is a directory of cgroup v2, made if it is missing, for the process and all its descendants; empty: none.
	Cgroup string `json:"cgroup,omitempty"`
}

// Validate returns an error if a value cannot be applied on any node.
func (c Confinement) Validate() error {
	if err := absolute(c.Cgroup); err != nil {
		return err
	}
	if c.Cgroup == "" && c.CPU+c.Memory+c.PIDs > 0 {
		return fmt.Errorf(
			"isolation: limits (cpu %d, memory %d, pids %d) are not valid without a cgroup; allowed: zero",
			c.CPU, c.Memory, c.PIDs)
	}
	return c.Isolation.Validate()
}

// Apply isolates the calling process. Users, mounts and privileges belong to a thread. So Apply locks the goroutine to
// its thread, and the caller must exec from this goroutine, but not after an error. tie, if it is not nil, makes the
// kernel kill the process when its parent ends.
//
// The cgroup and the mounts need root, so they come before the change of the user. setgroups comes before setgid.
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

// Constants that package syscall lacks (open(2), prctl(2)).
const (
	oPath           = 0x200000
	prSetNoNewPrivs = 38
)

func tmpDirs() []string { return []string{"/tmp", "/var/tmp"} }

func coverTmp(iso Isolation) error {
	if iso.Tmp == "" {
		return nil
	}
	if err := OwnMounts(); err != nil {
		return err
	}
	// iso.Tmp is opened as a descriptor, because it may lie below /tmp, which the first mount covers, and in the new
	// namespace, because bind mounts need that.
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
			err = syscall.Mount("none", target, "",
				syscall.MS_REMOUNT|syscall.MS_BIND|syscall.MS_NOSUID|syscall.MS_NODEV, "")
		}
		if err != nil {
			return fmt.Errorf("mount private tmp %s on %s: %w", iso.Tmp, target, err)
		}
	}
	return nil
}

// OwnMounts gives the calling thread a mount namespace of its own. Its mounts are not visible outside. Mounts and
// unmounts of the node are visible inside, so a pod does not keep a file system busy that the node unmounts
// (mount_namespaces(7)).
func OwnMounts() error {
	if err := syscall.Unshare(syscall.CLONE_NEWNS); err != nil {
		return fmt.Errorf("make a mount namespace: %w", err)
	}
	if err := syscall.Mount("none", "/", "", syscall.MS_REC|syscall.MS_SLAVE, ""); err != nil {
		return fmt.Errorf("detach from the node's mounts: %w", err)
	}
	return nil
}

// become changes the real, effective and saved ids, so that the process cannot change its user back. The change of the
// effective user clears the death signal, and tie sets it again. The real and saved user change last, because from then
// on processes of the pod can signal this process (kill(2)), and could stop it before tie.
func become(iso Isolation, tie func() error) error {
	if tie == nil {
		tie = func() error { return nil }
	}
	if os.Getuid() != 0 && os.Getuid() == iso.UID && os.Getgid() == iso.GID && len(iso.Groups) == 0 {
		return tie() // only root may set groups, even if they do not change
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
