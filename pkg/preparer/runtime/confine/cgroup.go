package confine

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// The controllers behind the limits of an Isolation.
const (
	CPU    = "cpu"
	Memory = "memory"
	PIDs   = "pids"
)

// Controllers returns all of them.
func Controllers() []string { return []string{CPU, Memory, PIDs} }

// Files of a cgroup (cgroup-v2, core interface files).
const (
	controllersFile = "cgroup.controllers"
	subtreeFile     = "cgroup.subtree_control"
	MembersFile     = "cgroup.procs"
)

// cpuPeriod is the kernel's default, in microseconds; minQuota is the least that it takes (cgroup-v2, cpu.max).
const (
	cpuPeriod = 100_000
	minQuota  = 1_000
)

// noLimit stands for none in the files of limits, and noCPULimit is what the kernel shows then.
const (
	noLimit    = "max"
	noCPULimit = "max 100000"
)

// limit is one limit of a cgroup.
type limit struct {
	controller, file, value string
	optional                bool // some kernels do not have the file
}

// limits returns those that an isolation has.
func limits(iso Isolation) []limit {
	var all []limit
	if iso.CPU > 0 {
		all = append(all, cpuLimit(iso.CPU))
	}
	if iso.Memory > 0 {
		all = append(all, limit{controller: Memory, file: "memory.max", value: strconv.FormatInt(iso.Memory, 10)},
			// What is beyond the limit would go to swap, which is the whole machine's; and what lost one process is of no use without it.
			limit{controller: Memory, file: "memory.swap.max", value: "0", optional: true},
			limit{controller: Memory, file: "memory.oom.group", value: "1", optional: true})
	}
	if iso.PIDs > 0 {
		all = append(all, limit{controller: PIDs, file: "pids.max", value: strconv.FormatInt(iso.PIDs, 10)})
	}
	return all
}

func cpuLimit(millicores int64) limit {
	return limit{controller: CPU, file: "cpu.max", value: fmt.Sprintf("%d %d", max(millicores*cpuPeriod/1000, minQuota), cpuPeriod)}
}

// Setting is what a file of a cgroup is to hold.
type Setting struct {
	File, Value string
}

// Settings returns what the files of a cgroup hold for the limits of CPU and memory of an isolation, whatever they
// held before. A kernel may lack some of the files, and a cgroup those of a controller that it cannot have.
func Settings(iso Isolation) []Setting {
	all := []Setting{{"cpu.max", noCPULimit}, {"memory.max", noLimit}, {"memory.swap.max", noLimit}, {"memory.oom.group", "0"}}
	for _, l := range limits(iso) {
		for i := range all {
			if all[i].File == l.file {
				all[i].Value = l.value
			}
		}
	}
	return all
}

// Cap bounds what all processes in a cgroup and below it take together: thousandths of a core and bytes, zero: not bounded. What an
// earlier cap said is taken back. Controllers that cannot be had there are left out, as isolate.Probe has said.
func Cap(dir string, cpu, memory int64) error {
	caps := []limit{{controller: CPU, file: "cpu.max", value: noLimit}, {controller: Memory, file: "memory.max", value: noLimit}}
	if cpu > 0 {
		caps[0] = cpuLimit(cpu)
	}
	if memory > 0 {
		caps[1].value = strconv.FormatInt(memory, 10)
	}
	err := MakeCgroup(dir)
	if err == nil {
		err = applyLimits(dir, caps)
	}
	if err != nil {
		return fmt.Errorf("cap cgroup %s: %w", dir, err)
	}
	return nil
}

// joinCgroup makes the cgroup with the limits that its controllers can hold, and moves the calling process into it.
func joinCgroup(c *Confinement) error {
	if c.Cgroup == "" {
		return nil
	}
	if err := MakeCgroup(c.Cgroup); err != nil {
		return err
	}
	if err := applyLimits(c.Cgroup, limits(c.Isolation)); err != nil {
		return fmt.Errorf("limit cgroup %s: %w", c.Cgroup, err)
	}
	if err := Write(c.Cgroup, MembersFile, strconv.Itoa(os.Getpid())); err != nil {
		return fmt.Errorf("join cgroup %s: %w", c.Cgroup, err)
	}
	return nil
}

// applyLimits gives a cgroup its limits. What cannot be passed down, or is in the hands of cgroup v1, is no reason not to
// run: whoever asked for it has been told by isolate.Probe.
func applyLimits(dir string, wanted []limit) error {
	if len(wanted) == 0 {
		return nil
	}
	var controllers []string
	for _, l := range wanted {
		controllers = append(controllers, l.controller)
	}
	usable, err := PassDown(dir, controllers)
	if err != nil {
		return err
	}
	for _, l := range wanted {
		if !slices.Contains(usable, l.controller) {
			continue
		}
		if err := Write(dir, l.file, l.value); err != nil && !(l.optional && errors.Is(err, fs.ErrNotExist)) {
			return err
		}
	}
	return nil
}

// MakeCgroup makes a cgroup when it is missing. Somebody else may be removing empty ones above it at this moment.
func MakeCgroup(dir string) error {
	_, _, err := SplitCgroup(dir)
	if err != nil {
		return fmt.Errorf("make cgroup %s: %w", dir, err)
	}
	for tries := 10; ; tries-- {
		err := os.MkdirAll(dir, 0o755)
		if err == nil {
			return nil
		}
		if tries == 0 || !Gone(err) {
			return fmt.Errorf("make cgroup %s: %w", dir, err)
		}
	}
}

// PassDown makes controllers available in a cgroup as far as those above it have them, and returns what it has then.
func PassDown(dir string, controllers []string) ([]string, error) {
	mount, group, err := SplitCgroup(dir)
	if err != nil {
		return nil, err
	}
	above := mount
	for name := range strings.SplitSeq(strings.TrimPrefix(group, "/"), "/") {
		for _, c := range controllers { // each by itself: one that is refused would keep the others out
			_ = Write(above, subtreeFile, "+"+c)
		}
		above = path.Join(above, name)
	}
	data, err := os.ReadFile(path.Join(dir, controllersFile))
	if err != nil {
		return nil, err
	}
	return strings.Fields(string(data)), nil
}

// SplitCgroup divides a directory, which need not be there yet, into the mount of cgroup v2 and a path below it. Every cgroup
// has a list of its controllers, and nothing above the mount has.
func SplitCgroup(dir string) (mount, group string, err error) {
	dir = path.Clean(dir)
	for at := path.Dir(dir); at != "/"; at = path.Dir(at) {
		if _, err := os.Stat(path.Join(at, controllersFile)); err == nil {
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

// Write changes a file of a cgroup. The kernel makes these files: none is ever created.
func Write(dir, file, text string) error {
	f, err := os.OpenFile(path.Join(dir, file), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}

// Gone reports whether an error says that a cgroup has been removed, before or meanwhile.
func Gone(err error) bool { return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENODEV) }
