// Package isolate finds out how processes can be isolated on a node, and manages the cgroups of other processes.
package isolate

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/rcfarm/rcfarm/pkg/preparer/runtime/confine"
)

// Members returns the pids of the processes in the cgroup and below it. The pid of a process that is ending, or that is
// in a pid namespace that this process cannot see, is 0.
func Members(dir string) (pids []int, err error) {
	err = filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.IsDir() {
			var data []byte
			data, err = os.ReadFile(filepath.Join(path, confine.MembersFile))
			for pid := range strings.FieldsSeq(string(data)) {
				n, _ := strconv.Atoi(pid) // the kernel writes numbers
				pids = append(pids, n)
			}
		}
		// a threaded group: the group above lists its processes
		if confine.Gone(err) || errors.Is(err, unix.EOPNOTSUPP) {
			return nil
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list cgroup %s: %w", dir, err)
	}
	return pids, nil
}

// Kill kills all processes in the cgroup and below it at once, so that no fork escapes. It does not wait for their end.
func Kill(dir string) error {
	if confine.Write(dir, "cgroup.kill", "1") == nil {
		return nil
	}
	// The cgroup is gone, or the kernel is older than Linux 5.14.
	_ = confine.Write(dir, "cgroup.freeze", "1")
	pids, err := Members(dir)
	for _, pid := range pids {
		if pid > 0 { // 0 would mean the caller's own process group
			_ = unix.Kill(pid, unix.SIGKILL) // the process is frozen, so the pid is still its own
		}
	}
	_ = confine.Write(dir, "cgroup.freeze", "0")
	if err != nil {
		return fmt.Errorf("kill cgroup %s: %w", dir, err)
	}
	return nil
}

// Remove removes an empty cgroup, and the cgroups below it, which its processes have made.
func Remove(dir string) error {
	entries, err := os.ReadDir(dir)
	if confine.Gone(err) {
		return nil
	}
	for _, entry := range entries {
		if entry.IsDir() {
			err = errors.Join(err, Remove(filepath.Join(dir, entry.Name())))
		}
	}
	if err == nil {
		err = unix.Rmdir(dir)
	}
	if err != nil && !confine.Gone(err) {
		return fmt.Errorf("remove cgroup %s: %w", dir, err)
	}
	return nil
}

// Prune removes an empty cgroup and each parent that is empty then.
func Prune(dir string) {
	mount, _, err := confine.SplitCgroup(dir)
	for err == nil && dir != mount {
		err = unix.Rmdir(dir)
		dir = filepath.Dir(dir)
	}
}
