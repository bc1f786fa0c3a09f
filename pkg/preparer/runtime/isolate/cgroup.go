// Package isolate finds out how processes can be kept apart on a node, and manages the cgroups that they are in from outside.
// What a process does to itself is in package confine.
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

// Members returns the pids of the processes in the cgroup and below it. One that ends just now, or that this process
// cannot see, in another pid namespace, has the pid 0.
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
		if confine.Gone(err) || errors.Is(err, unix.EOPNOTSUPP) { // those of a threaded group are in the one above it
			return nil
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list cgroup %s: %w", dir, err)
	}
	return pids, nil
}

// Kill ends everything in the cgroup and below it at one stroke: no fork slips through. It does not wait.
func Kill(dir string) error {
	if confine.Write(dir, "cgroup.kill", "1") == nil {
		return nil
	}
	// It is gone, or the kernel is one before Linux 5.14.
	_ = confine.Write(dir, "cgroup.freeze", "1")
	pids, err := Members(dir)
	for _, pid := range pids {
		if pid > 0 { // 0 is the caller's own group
			_ = unix.Kill(pid, unix.SIGKILL) // it is frozen, so the number is its
		}
	}
	_ = confine.Write(dir, "cgroup.freeze", "0")
	if err != nil {
		return fmt.Errorf("kill cgroup %s: %w", dir, err)
	}
	return nil
}

// Remove removes an empty cgroup, with what its processes made below it. One that is not there is fine.
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

// Prune removes an empty cgroup, and those above it that are empty then. One that is in use stays, and so do those above.
func Prune(dir string) {
	mount, _, err := confine.SplitCgroup(dir)
	for err == nil && dir != mount {
		err = unix.Rmdir(dir)
		dir = filepath.Dir(dir)
	}
}
