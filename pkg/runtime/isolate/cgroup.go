package isolate

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containerd/cgroups/v3/cgroup2"
	"golang.org/x/sys/unix"

	"github.com/rcfarm/rcfarm/pkg/runtime"
)

// The controllers behind the limits of an Isolation.
const (
	CPU    = "cpu"
	Memory = "memory"
	PIDs   = "pids"
)

func limitControllers() []string { return []string{CPU, Memory, PIDs} }

const (
	controllersFile = "cgroup.controllers"
	eventsFile      = "cgroup.events"
)

// cpuPeriod is the kernel's default, in microseconds; minQuota is the least that it takes (cgroup-v2, cpu.max).
const (
	cpuPeriod = 100_000
	minQuota  = 1_000
)

// joinCgroup makes the cgroup with the limits that its controllers can hold, and moves the calling process into it.
func joinCgroup(iso runtime.Isolation) error {
	if iso.Cgroup == "" {
		return nil
	}
	group, err := manage(iso.Cgroup)
	if err != nil {
		return fmt.Errorf("make cgroup %s: %w", iso.Cgroup, err)
	}
	// What cannot be passed down, or is in the hands of cgroup v1, is no reason not to run: whoever asked for it has been
	// told by Probe.
	usable, err := passDown(group, limits(iso, limitControllers()).EnabledControllers())
	if err == nil {
		err = group.Update(limits(iso, usable))
	}
	if err != nil {
		return fmt.Errorf("limit cgroup %s: %w", iso.Cgroup, err)
	}
	if err := group.AddProc(uint64(os.Getpid())); err != nil {
		return fmt.Errorf("join cgroup %s: %w", iso.Cgroup, err)
	}
	return nil
}

// manage returns the cgroup of a directory, which it makes when it is missing. Somebody else may be removing empty ones
// above it at this moment.
func manage(dir string) (*cgroup2.Manager, error) {
	mount, group, err := split(dir)
	if err != nil {
		return nil, err
	}
	for tries := 10; ; tries-- {
		m, err := cgroup2.NewManager(mount, group, &cgroup2.Resources{})
		if err == nil || tries == 0 || !gone(err) {
			return m, err
		}
	}
}

// passDown makes controllers available in a cgroup as far as those above it have them, and returns what it has then.
func passDown(group *cgroup2.Manager, controllers []string) ([]string, error) {
	for _, c := range controllers { // each by itself: one that is refused would keep the others out
		_ = group.ToggleControllers([]string{c}, cgroup2.Enable)
	}
	return group.Controllers()
}

// limits returns those limits of an isolation whose controllers are usable.
func limits(iso runtime.Isolation, usable []string) *cgroup2.Resources {
	var r cgroup2.Resources
	if iso.CPU > 0 && slices.Contains(usable, CPU) {
		quota, period := max(iso.CPU*cpuPeriod/1000, minQuota), uint64(cpuPeriod)
		r.CPU = &cgroup2.CPU{Max: cgroup2.NewCPUMax(&quota, &period)}
	}
	if iso.Memory > 0 && slices.Contains(usable, Memory) {
		r.Memory = &cgroup2.Memory{Max: &iso.Memory}
	}
	if iso.PIDs > 0 && slices.Contains(usable, PIDs) {
		r.Pids = &cgroup2.Pids{Max: iso.PIDs}
	}
	return &r
}

// split divides a directory, which need not be there yet, into the mount of cgroup v2 and a path below it. Every cgroup
// has a list of its controllers, and nothing above the mount has.
func split(dir string) (mount, group string, err error) {
	dir = filepath.Clean(dir)
	for at := filepath.Dir(dir); at != "/"; at = filepath.Dir(at) {
		if _, err := os.Stat(filepath.Join(at, controllersFile)); err == nil {
			mount = at
		} else if mount != "" {
			break
		}
	}
	if mount == "" {
		return "", "", fmt.Errorf("%s is not below a mount of cgroup v2", dir)
	}
	return mount, strings.TrimPrefix(dir, mount), nil
}

// Populated reports whether any live process is in the cgroup or below it. One that is not there is empty.
func Populated(dir string) (bool, error) {
	data, err := os.ReadFile(filepath.Join(dir, eventsFile))
	if gone(err) {
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
	mount, group, err := split(dir)
	if err != nil {
		return nil, err
	}
	m, err := cgroup2.Load(group, cgroup2.WithMountpoint(mount))
	if err != nil {
		return nil, fmt.Errorf("list cgroup %s: %w", dir, err)
	}
	procs, err := m.Procs(true)
	if err != nil && !gone(err) {
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
	mount, group, err := split(dir)
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
	if gone(err) {
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
	if err != nil && !gone(err) {
		return fmt.Errorf("remove cgroup %s: %w", dir, err)
	}
	return nil
}

// Prune removes an empty cgroup, and those above it that are empty then. One that is in use stays, and so do those above.
func Prune(dir string) {
	mount, _, err := split(dir)
	for err == nil && dir != mount {
		err = unix.Rmdir(dir)
		dir = filepath.Dir(dir)
	}
}

// gone reports whether an error says that the cgroup has been removed, before or meanwhile.
func gone(err error) bool { return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) }
