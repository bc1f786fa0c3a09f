// Package machine reads facts about the machine of a node: how much CPU and memory there is for pods, and which ports
// sockets use. It reads only files of the kernel (proc(5), cgroup-v2, cgroup-v1). See docs/design/placing.md.
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

// Total is how much of a machine pods can use. Zero: not known, so there is no limit.
type Total struct {
	CPU    int64 // thousandths of a core
	Memory int64 // bytes
}

// Detect returns how much the processes of all pods can use together. File names are relative to the root of fsys.
// pods is the directory of cgroup v2 below which pods get cgroups. If it is empty, or the machine uses cgroup v1,
// pods run in the cgroups of this process. A missing file sets no limit. A file that cannot be read or parsed sets no
// limit either, and Detect returns an error for it together with the result of the other files.
func Detect(fsys fs.FS, pods string) (Total, error) {
	r := reader{fsys: fsys}
	groups := r.groups(pods)
	total := r.whole()
	for _, g := range groups {
		g.limit(&r, &total)
	}
	return total, errors.Join(r.errs...)
}

// Whole returns how much of the machine this process can use, without the limits of cgroups. It ignores errors,
// because Detect returns them.
func Whole(fsys fs.FS) Total {
	r := reader{fsys: fsys}
	return r.whole()
}

func (r *reader) whole() Total { return Total{CPU: r.cpus() * 1000, Memory: r.memTotal()} }

const unlimited = math.MaxInt64

func less(value *int64, limit int64) {
	if limit < unlimited && (*value == 0 || limit < *value) {
		*value = max(1, limit) // zero means that there is no limit
	}
}

type reader struct {
	fsys fs.FS
	errs []error
}

// text returns a file's content, or "" if the file is missing.
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

// cpus returns the number of CPUs that this process and its children may use; zero: not known.
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

// list counts the numbers of a list such as 0-3,8 (cpuset(7), list format).
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

// memTotal returns bytes; zero: not known.
func (r *reader) memTotal() int64 {
	const name = "/proc/meminfo"
	for line := range strings.Lines(r.text(name)) {
		if said, found := strings.CutPrefix(line, "MemTotal:"); found {
			if n := r.parse(name,
				strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(said), "kB"))); n < unlimited/1024 {
				return n * 1024
			}
		}
	}
	return 0
}

func (g *group) limit(r *reader, total *Total) {
	cpuset := false // only the innermost is used, because its parents have all its CPUs
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

// share returns thousandths of a core.
func share(quota, period int64) int64 {
	if quota >= unlimited/1000 || period >= unlimited || period == 0 {
		return unlimited
	}
	return quota * 1000 / period
}
