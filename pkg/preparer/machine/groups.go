package machine

import (
	"path"
	"slices"
	"strings"
)

// group is a cgroup of one hierarchy, and all above it that can be seen.
type group struct {
	v2   bool
	dirs []string // the innermost first
}

// mount is where a hierarchy can be seen.
type mount struct {
	v2          bool
	controllers []string // of cgroup v1
	root        string   // the group that the mount shows
	dir         string
}

// groups returns those whose limits count for pods: see Detect.
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

// own returns the groups of this process: by controller of cgroup v1, that of cgroup v2 under "" (cgroups(7), /proc/[pid]/cgroup).
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

// CgroupV2 returns the first mount of cgroup v2 in a table of mounts, "" where there is none.
func CgroupV2(table string) string {
	for _, m := range mounts(table) {
		if m.v2 {
			return m.dir
		}
	}
	return ""
}

// mounts returns the cgroup mounts of a table (proc_pid_mountinfo(5)) whose limits count here.
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

// below returns the path of a group below the mount. Of a group that the mount does not show, as from within a container, what the mount shows is all
// that can be known: its root.
func (m *mount) below(group string) string {
	if !within(m.root, group) || strings.Contains(group+"/", "/../") {
		return ""
	}
	return strings.TrimPrefix(group, m.root)
}

// within reports whether a path is that of a directory or below it.
func within(dir, name string) bool {
	return name == dir || dir == "/" && strings.HasPrefix(name, "/") || strings.HasPrefix(name, dir+"/")
}

// upTo returns a directory and those above it, up to the given one.
func upTo(top, dir string) []string {
	dirs := []string{dir}
	for dir != top && dir != "/" {
		dir = path.Dir(dir)
		dirs = append(dirs, dir)
	}
	return dirs
}

// unescape undoes the octal escapes of blanks and backslashes.
func unescape(name string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(name)
}
