// Package machine reads what the machine of a node has: how much CPU and memory there is for pods, and which ports sockets hold. It is made
// of pure functions of files, which are those of the kernel (proc(5), cgroup-v2, cgroup-v1), so that each can be told what the files say. See ADR 25.
package machine

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"path"
	"strconv"
	"strings"
)

// Total is what pods can have of a machine. Zero: not known, so that there is no limit.
type Total struct {
	CPU    int64 // thousandths of a core
	Memory int64 // bytes
}

// Detect returns what processes of pods can have in all. Files are named as from the root of fsys. pods is the directory of cgroup v2 below which
// pods get cgroups, such as /sys/fs/cgroup/rcfarm; empty: they stay in that of this process. Limits of cgroup v1 are those of this process, since pods
// stay in its groups. A file that is missing limits nothing; one that cannot be read or understood limits nothing either, and is told as an error
// beside what the others say.
func Detect(fsys fs.FS, pods string) (Total, error) {
	r := reader{fsys: fsys}
	groups := r.groups(pods)
	total := r.whole()
	for _, g := range groups {
		g.limit(&r, &total)
	}
	return total, errors.Join(r.errs...)
}

// Whole returns what the machine has for this process, whatever cgroups leave of it. What is wrong with its files is among what Detect tells.
func Whole(fsys fs.FS) Total {
	r := reader{fsys: fsys}
	return r.whole()
}

func (r *reader) whole() Total { return Total{CPU: r.cpus() * 1000, Memory: r.memTotal()} }

// unlimited is above everything that a machine has. A limit that is not smaller is none.
const unlimited = math.MaxInt64

// less makes the value the limit, where that is less than what is known so far.
func less(value *int64, limit int64) {
	if limit < unlimited && (*value == 0 || limit < *value) {
		*value = max(1, limit) // zero means that there is no limit
	}
}

// reader reads files and gathers what is wrong with them.
type reader struct {
	fsys fs.FS
	errs []error
}

// text returns what a file says, "" where it is missing.
func (r *reader) text(name string) string {
	data, err := fs.ReadFile(r.fsys, strings.TrimPrefix(name, "/"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		r.errs = append(r.errs, err)
	}
	return strings.TrimSpace(string(data))
}

func (r *reader) wrong(name, text string) {
	r.errs = append(r.errs, fmt.Errorf("%s: cannot make sense of %q", name, text))
}

// number returns a number that stands in a file, unlimited where it is missing, or says so in the way of cgroups.
func (r *reader) number(name string) int64 {
	return r.parse(name, r.text(name))
}

func (r *reader) parse(name, text string) int64 {
	if text == "" || text == "max" || text == "-1" {
		return unlimited
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		r.wrong(name, text)
		return unlimited
	}
	return int64(min(n, unlimited))
}

// cpus returns how many CPUs this process, and so what it starts, may run on; zero: not known.
func (r *reader) cpus() int64 {
	const online, status = "/sys/devices/system/cpu/online", "/proc/self/status"
	var n int64
	less(&n, r.list(online, r.text(online)))
	for line := range strings.Lines(r.text(status)) {
		if allowed, found := strings.CutPrefix(line, "Cpus_allowed_list:"); found {
			less(&n, r.list(status, strings.TrimSpace(allowed)))
		}
	}
	return n
}

// list counts the numbers of a list such as 0-3,8 (cpuset(7), list format); unlimited where it is empty.
func (r *reader) list(name, text string) int64 {
	if text == "" {
		return unlimited
	}
	var n int64
	for part := range strings.SplitSeq(text, ",") {
		low, high, isRange := strings.Cut(part, "-")
		first, err := strconv.ParseInt(low, 10, 32)
		last := first
		if isRange && err == nil {
			last, err = strconv.ParseInt(high, 10, 32)
		}
		if err != nil || last < first {
			r.wrong(name, text)
			return unlimited
		}
		n += last - first + 1
	}
	return n
}

// memTotal returns the memory of the machine in bytes; zero: not known.
func (r *reader) memTotal() int64 {
	const name = "/proc/meminfo"
	for line := range strings.Lines(r.text(name)) {
		if said, found := strings.CutPrefix(line, "MemTotal:"); found {
			if n := r.parse(name, strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(said), "kB"))); n < unlimited/1024 {
				return n * 1024
			}
		}
	}
	return 0
}

// limit lowers what there is to what a group and those above it have.
func (g *group) limit(r *reader, total *Total) {
	cpuset := false // the innermost counts: it has none that those above it do not have
	for _, dir := range g.dirs {
		file := func(name string) string { return path.Join(dir, name) }
		if g.v2 {
			less(&total.Memory, r.number(file("memory.max")))
			quota, period, _ := strings.Cut(r.text(file("cpu.max")), " ")
			less(&total.CPU, share(r.parse(file("cpu.max"), quota), r.parse(file("cpu.max"), period)))
		} else {
			less(&total.Memory, r.number(file("memory.limit_in_bytes")))
			less(&total.CPU, share(r.number(file("cpu.cfs_quota_us")), r.number(file("cpu.cfs_period_us"))))
		}
		for _, name := range []string{"cpuset.cpus.effective", "cpuset.effective_cpus", "cpuset.cpus"} {
			if n := r.list(file(name), r.text(file(name))); n < unlimited && !cpuset {
				less(&total.CPU, n*1000)
				cpuset = true
			}
		}
	}
}

// share returns thousandths of a core for a quota in a period.
func share(quota, period int64) int64 {
	if quota >= unlimited/1000 || period >= unlimited || period == 0 {
		return unlimited
	}
	return quota * 1000 / period
}
