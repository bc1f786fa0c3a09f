package machine

import (
	"path"
	"slices"
	"strings"
)

// group is a cgroup of one hierarchy, with all parents that are visible here.
type group struct {
	v2   bool
	dirs []string // the innermost first
}

type mount struct {
	v2          bool
	controllers []string // of cgroup v1
	root        string   // the group at the root of the mount
	dir         string
}

// groups returns the groups whose limits apply to pods. See Detect.
func (r *reader) groups(pods string) (found []group) {
	own := r.own()
	seen := map[string]bool{}
	for _, m := range mounts(r.text("/proc/self/mountinfo")) {
		below := ""
		switch {
		case m.v2 && pods != "":
			if below = pods; !within(m.dir, pods) {
				continue
			}
			below = strings.TrimPrefix(pods, m.dir)
		case m.v2:
			below = m.below(own[""])
		default:
			below = m.below(own[m.controllers[0]])
		}
		if dir := path.Join(m.dir, below); !seen[dir] {
			seen[dir] = true
			found = append(found, group{v2: m.v2, dirs: upTo(m.dir, dir)})
		}
	}
	return found
}

// own returns the groups of this process by controller of cgroup v1. The group of cgroup v2 has the key "" (cgroups(7),
// /proc/[pid]/cgroup).
func (r *reader) own() map[string]string {
	of := map[string]string{}
	for line := range strings.Lines(r.text("/proc/self/cgroup")) {
		_, rest, _ := strings.Cut(strings.TrimSpace(line), ":")
		controllers, at, found := strings.Cut(rest, ":")
		for name := range strings.SplitSeq(controllers, ",") {
			if found {
				of[name] = at
			}
		}
	}
	return of
}

// CgroupV2 returns the directory of the first mount of cgroup v2 in a table of mounts. If there is none, it returns "".
func CgroupV2(table string) string {
	for _, m := range mounts(table) {
		if m.v2 {
			return m.dir
		}
	}
	return ""
}

// mounts returns the mounts of cgroup v2, and of cgroup v1 with a controller for CPU or memory
// (proc_pid_mountinfo(5)).
func mounts(table string) (found []mount) {
	for line := range strings.Lines(table) {
		mounted, source, isLine := strings.Cut(strings.TrimSpace(line), " - ")
		at, of := strings.Fields(mounted), strings.Fields(source)
		if !isLine || len(at) < 5 || len(of) < 3 {
			continue
		}
		m := mount{v2: of[0] == "cgroup2", root: unescape(at[3]), dir: unescape(at[4])}
		for option := range strings.SplitSeq(of[2], ",") {
			if slices.Contains([]string{"cpu", "cpuset", "memory"}, option) {
				m.controllers = append(m.controllers, option)
			}
		}
		if m.v2 || of[0] == "cgroup" && len(m.controllers) > 0 {
			found = append(found, m)
		}
	}
	return found
}

// below returns the path of a group below the mount. If the mount does not show the group, for example in a
// container, it returns the root of the mount.
func (m *mount) below(group string) string {
	if !within(m.root, group) || strings.Contains(group+"/", "/../") {
		return ""
	}
	return strings.TrimPrefix(group, m.root)
}

func within(dir, name string) bool {
	return name == dir || dir == "/" && strings.HasPrefix(name, "/") || strings.HasPrefix(name, dir+"/")
}

func upTo(top, dir string) []string {
	dirs := []string{dir}
	for dir != top && dir != "/" {
		dir = path.Dir(dir)
		dirs = append(dirs, dir)
	}
	return dirs
}

func unescape(name string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(name)
}
