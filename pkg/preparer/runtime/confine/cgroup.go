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

// The cgroup controllers for the limits of an Isolation.
const (
	CPU    = "cpu"
	Memory = "memory"
	PIDs   = "pids"
)

// Controllers returns the three controllers.
func Controllers() []string { return []string{CPU, Memory, PIDs} }

// Files of a cgroup (cgroup-v2, core interface files).
const (
	controllersFile = "cgroup.controllers"
	subtreeFile     = "cgroup.subtree_control"
	MembersFile     = "cgroup.procs"
)

// The kernel's default period, and the least quota that it accepts, in microseconds (cgroup-v2, cpu.max).
const (
	cpuPeriod = 100_000
	minQuota  = 1_000
)

const (
	noLimit    = "max"
	noCPULimit = "max 100000"
)

type limit struct {
	controller, file, value string
	optional                bool // some kernels do not have the file
}

func limits(iso Isolation) []limit {
	var all []limit
	if iso.CPU > 0 {
		all = append(all, cpuLimit(iso.CPU))
	}
	if iso.Memory > 0 {
		all = append(all, limit{controller: Memory, file: "memory.max", value: strconv.FormatInt(iso.Memory, 10)},
			// Without memory.swap.max, memory beyond the limit would use the swap of the whole machine. With
			// memory.oom.group, the kernel kills all processes of the cgroup together, because the others are of no use
			// without the one it chose.
			limit{controller: Memory, file: "memory.swap.max", value: "0", optional: true},
			limit{controller: Memory, file: "memory.oom.group", value: "1", optional: true})
	}
	if iso.PIDs > 0 {
		all = append(all, limit{controller: PIDs, file: "pids.max", value: strconv.FormatInt(iso.PIDs, 10)})
	}
	return all
}

func cpuLimit(millicores int64) limit {
	return limit{
		controller: CPU, file: "cpu.max",
		value: fmt.Sprintf("%d %d", max(millicores*cpuPeriod/1000, minQuota), cpuPeriod),
	}
}

// Setting is the desired content of one file of a cgroup.
type Setting struct {
	File, Value string
}

// Settings returns the content of a cgroup's files for an isolation's limits of CPU and memory, also for limits that
// the isolation does not have. A kernel or a cgroup without the controller may lack some of the files.
func Settings(iso Isolation) []Setting {
	all := []Setting{
		{"cpu.max", noCPULimit},
		{"memory.max", noLimit},
		{"memory.swap.max", noLimit},
		{"memory.oom.group", "0"},
	}
	for _, l := range limits(iso) {
		for i := range all {
			if all[i].File == l.file {
				all[i].Value = l.value
			}
		}
	}
	return all
}

// Cap limits how much CPU, in thousandths of a core, and memory, in bytes, all processes in a cgroup and below it use
// together; zero: no limit. It ignores limits of controllers that the node lacks.
func Cap(dir string, cpu, memory int64) error {
	caps := []limit{
		{controller: CPU, file: "cpu.max", value: noLimit},
		{controller: Memory, file: "memory.max", value: noLimit},
	}
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

// Limit gives a new cgroup, which is made if it is missing, the limits of an isolation. It ignores limits of
// controllers that the node lacks.
func Limit(c *Confinement) error {
	if err := MakeCgroup(c.Cgroup); err != nil {
		return err
	}
	if err := applyLimits(c.Cgroup, limits(c.Isolation)); err != nil {
		return fmt.Errorf("limit cgroup %s: %w", c.Cgroup, err)
	}
	return nil
}

func joinCgroup(c *Confinement) error {
	if c.Cgroup == "" {
		return nil
	}
	if err := Limit(c); err != nil {
		return err
	}
	if err := Write(c.Cgroup, MembersFile, strconv.Itoa(os.Getpid())); err != nil {
		return fmt.Errorf("join cgroup %s: %w", c.Cgroup, err)
	}
	return nil
}

// applyLimits leaves out limits of controllers that the cgroup cannot have, for example because cgroup v1 uses them.
// isolate.Probe has reported these.
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

// MakeCgroup makes a cgroup if it is missing. It tries several times, because another process may remove an empty
// parent cgroup at the same moment.
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

// PassDown makes controllers available in a cgroup if its parents have them, and returns those that it then has.
func PassDown(dir string, controllers []string) ([]string, error) {
	mount, group, err := SplitCgroup(dir)
	if err != nil {
		return nil, err
	}
	above := mount
	for name := range strings.SplitSeq(strings.TrimPrefix(group, "/"), "/") {
		for _, c := range controllers { // one by one, because the kernel refuses all if it refuses one
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

// SplitCgroup divides a directory, which need not exist, into the mount of cgroup v2 and the path below it. It finds
// the mount because every cgroup has a list of its controllers, and directories above the mount have none.
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

// Write writes to a file of a cgroup. It never creates a file, because the kernel makes these files.
func Write(dir, file, text string) error {
	f, err := os.OpenFile(path.Join(dir, file), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}

// Gone reports whether an error means that a cgroup was removed, before or during the call.
func Gone(err error) bool { return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENODEV) }
