// Package isolate keeps a process from the rest of its node: a cgroup, a /tmp of its own, another user, no new
// privileges. A runtime's stub applies it to itself between fork and exec.
package isolate

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	goruntime "runtime"

	"golang.org/x/sys/unix"

	"github.com/rcfarm/rcfarm/pkg/runtime"
)

// Apply isolates the calling process. Users, mounts and privileges belong to a thread before exec: the calling goroutine
// stays locked to its thread and becomes the program from there. After an error it must not become it.
//
// The order is fixed by what each step needs: cgroup and mounts need root, which the user step gives up, and setgid needs
// it after setgroups. The limits of the cgroup hold from the first step on.
func Apply(iso *runtime.Isolation) error {
	goruntime.LockOSThread()
	for _, step := range []func(runtime.Isolation) error{joinCgroup, coverTmp, become, renouncePrivileges} {
		if err := step(*iso); err != nil {
			return err
		}
	}
	return nil
}

// tmpDirs is what a private tmp covers.
func tmpDirs() []string { return []string{"/tmp", "/var/tmp"} }

// coverTmp gives the thread mounts of its own and puts iso.Tmp over the node's temporary directories.
func coverTmp(iso runtime.Isolation) error {
	if iso.Tmp == "" {
		return nil
	}
	if err := ownMounts(); err != nil {
		return err
	}
	// By descriptor, because it may lie below what is covered first; opened in the new namespace, as bind mounts demand.
	dir, err := unix.Open(iso.Tmp, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open private tmp %s: %w", iso.Tmp, err)
	}
	defer func() { _ = unix.Close(dir) }()
	for _, target := range tmpDirs() {
		if _, err := os.Stat(target); errors.Is(err, fs.ErrNotExist) {
			continue
		}
		err := unix.Mount(fmt.Sprintf("/proc/self/fd/%d", dir), target, "", unix.MS_BIND, "")
		if err == nil {
			err = unix.Mount("none", target, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_NOSUID|unix.MS_NODEV, "")
		}
		if err != nil {
			return fmt.Errorf("mount private tmp %s on %s: %w", iso.Tmp, target, err)
		}
	}
	return nil
}

// ownMounts gives the thread a mount namespace. What is mounted in it is not seen outside; what the node mounts and
// unmounts later is seen inside, so that no pod keeps a file system of the node busy (mount_namespaces(7)).
func ownMounts() error {
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("make a mount namespace: %w", err)
	}
	if err := unix.Mount("none", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return fmt.Errorf("detach from the node's mounts: %w", err)
	}
	return nil
}

// become changes the user for good: real, effective and saved ids, so that there is no way back.
func become(iso runtime.Isolation) error {
	if os.Getuid() != 0 && os.Getuid() == iso.UID && os.Getgid() == iso.GID && len(iso.Groups) == 0 {
		return nil // only root may even ask for the groups that it has
	}
	if err := unix.Setgroups(iso.Groups); err != nil {
		return fmt.Errorf("take groups %v: %w", iso.Groups, err)
	}
	if err := unix.Setresgid(iso.GID, iso.GID, iso.GID); err != nil {
		return fmt.Errorf("become group %d: %w", iso.GID, err)
	}
	if err := unix.Setresuid(iso.UID, iso.UID, iso.UID); err != nil {
		return fmt.Errorf("become user %d: %w", iso.UID, err)
	}
	return nil
}

func renouncePrivileges(iso runtime.Isolation) error {
	if !iso.NoNewPrivileges {
		return nil
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("renounce new privileges: %w", err)
	}
	return nil
}
