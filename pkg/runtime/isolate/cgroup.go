// Package isolate finds out how processes can be kept apart on a node, and manages the cgroups that they are in from outside.
// What a process does to itself is in package confine.
package isolate

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/containerd/cgroups/v3/cgroup2"
	"golang.org/x/sys/unix"

	"github.com/rcfarm/rcfarm/pkg/runtime/confine"
)

const eventsFile = "cgroup.events"

// Populated reports whether any live process is in the cgroup or below it. One that is not there is empty.
func Populated(dir string) (bool, error) {
	data, err := os.ReadFile(filepath.Join(dir, eventsFile))
	if confine.Gone(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("look into cgroup: %w", err)
	}
	return !bytes.Contains(data, []byte("populated 0")), nil
}

// Members returns the pids of the processes in the cgroup and below it.
func Members(dir string) ([]int, error) {
	if busy, err := Populated(dir); err != nil || !busy {
		return nil, err
	}
	mount, group, err := confine.SplitCgroup(dir)
	if err != nil {
		return nil, err
	}
	m, err := cgroup2.Load(group, cgroup2.WithMountpoint(mount))
	if err != nil {
		return nil, fmt.Errorf("list cgroup %s: %w", dir, err)
	}
	procs, err := m.Procs(true)
	if err != nil && !confine.Gone(err) {
		return nil, fmt.Errorf("list cgroup %s: %w", dir, err)
	}
	pids := make([]int, len(procs))
	for i, pid := range procs {
		pids[i] = int(pid)
	}
	return pids, nil
}

// Kill ends everything in the cgroup and below it at one stroke: no fork slips through. It does not wait.
func Kill(dir string) error {
	if busy, err := Populated(dir); err != nil || !busy {
		return err
	}
	mount, group, err := confine.SplitCgroup(dir)
	if err != nil {
		return err
	}
	m, err := cgroup2.Load(group, cgroup2.WithMountpoint(mount))
	if err == nil {
		err = m.Kill()
	}
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
