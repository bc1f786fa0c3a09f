package isolate

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	goruntime "runtime"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/rcfarm/rcfarm/pkg/preparer/machine"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime/confine"
)

// Host has the parts of an Isolation that this node can apply.
type Host struct {
	Users   bool     // processes may run as other users
	Tmp     bool     // processes may have a tmp of their own
	Cgroup  string   // directory of cgroup v2 below which processes get their cgroups; empty: none
	Limits  []string // the limits that such cgroups can have: confine.CPU, Memory, PIDs
	Without []string // parts that this node cannot apply, each with the reason
	uids    []idRange
	gids    []idRange
}

// Probe finds out by trial what this node can apply. It makes the cgroup parent, a path below the mount of cgroup v2,
// and passes controllers down to it. It leaves no other change.
func Probe(parent string) Host {
	var h Host
	h.probeUsers()
	h.probeTmp()
	h.probeCgroup(parent)
	return h
}

func (h *Host) lack(what, format string, args ...any) {
	h.Without = append(h.Without, what+": "+fmt.Sprintf(format, args...))
}

func (h *Host) probeUsers() {
	for _, c := range []struct {
		bit  int
		name string
	}{{unix.CAP_SETUID, "CAP_SETUID"}, {unix.CAP_SETGID, "CAP_SETGID"}, {unix.CAP_CHOWN, "CAP_CHOWN"}} {
		if has, err := capable(c.bit); err != nil || !has {
			h.lack("users", "this process is not root: it lacks %s", c.name)
			return
		}
	}
	uids, err := readIDMap("/proc/self/uid_map")
	if err == nil {
		h.uids = uids
		h.gids, err = readIDMap("/proc/self/gid_map")
	}
	if err != nil {
		h.lack("users", "%v", err)
		return
	}
	h.Users = true
}

// Mapped is Host.Mapped for callers without a Host.
func Mapped(first, last int) bool {
	var h Host
	h.probeUsers()
	return h.Mapped(first, last)
}

// Mapped reports whether all numbers from first to last can be users and groups on this node. In a user namespace, some
// numbers may not exist.
func (h *Host) Mapped(first, last int) bool {
	return h.Users && covered(h.uids, first, last) && covered(h.gids, first, last)
}

func capable(bit int) (bool, error) {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		return false, fmt.Errorf("read capabilities: %w", err)
	}
	return data[bit/32].Effective&(1<<(bit%32)) != 0, nil
}

func (h *Host) probeTmp() {
	tried := make(chan error)
	go func() {
		goruntime.LockOSThread() // never unlocked, so that the thread and its mounts end
		tried <- confine.OwnMounts()
	}()
	if err := <-tried; err != nil {
		h.lack("tmp", "%v", err)
		return
	}
	h.Tmp = true
}

func (h *Host) probeCgroup(parent string) {
	mount, err := cgroupMount()
	if err != nil {
		h.lack("cgroup", "%v", err)
		return
	}
	dir := filepath.Join(mount, parent)
	usable, err := tryChild(dir)
	if err != nil {
		h.lack("cgroup", "%v", err)
		return
	}
	h.Cgroup = dir
	for _, c := range confine.Controllers() {
		if slices.Contains(usable, c) {
			h.Limits = append(h.Limits, c)
		} else {
			h.lack(c+" limit", "cgroup v2 at %s does not have the controller to itself; cgroup v1, or a process in a "+
				"parent cgroup, may hold it", mount)
		}
	}
}

// tryChild returns the controllers that a child of the parent cgroup has.
func tryChild(parent string) ([]string, error) {
	if err := confine.MakeCgroup(parent); err != nil {
		return nil, err
	}
	child, err := os.MkdirTemp(parent, "probe-")
	if err != nil {
		return nil, fmt.Errorf("make cgroup: %w", err)
	}
	defer func() { _ = Remove(child) }()
	return confine.PassDown(child, confine.Controllers())
}

func cgroupMount() (string, error) {
	table, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return "", fmt.Errorf("find cgroup v2: %w", err)
	}
	mount := machine.CgroupV2(string(table))
	if mount == "" {
		err = fmt.Errorf("cgroup v2 is not mounted")
	}
	return mount, err
}

// idRange is a range of user or group numbers that exist in this user namespace.
type idRange struct{ first, last int }

func readIDMap(path string) ([]idRange, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read the user namespace: %w", err)
	}
	return parseIDMap(data)
}

// Each line has the first id inside, the first id outside, and the length (user_namespaces(7)).
func parseIDMap(data []byte) ([]idRange, error) {
	var ranges []idRange
	for line := range bytes.Lines(data) {
		var first, outside, length int
		if _, err := fmt.Sscan(string(line), &first, &outside, &length); err != nil {
			return nil, fmt.Errorf("read the user namespace: line %q: %w", line, err)
		}
		ranges = append(ranges, idRange{first, first + length - 1})
	}
	return ranges, nil
}

func covered(ranges []idRange, first, last int) bool {
	return slices.ContainsFunc(ranges, func(r idRange) bool { return r.first <= first && last <= r.last })
}
