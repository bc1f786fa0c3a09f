package isolate

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Memory is what the kernel did in a cgroup for want of memory, since the cgroup was made (cgroup-v2, memory.events).
type Memory struct {
	Kills int64 // processes that it killed in the cgroup and below it, whichever limit was reached
	Own   int64 // times that the cgroup's own limit left it no other choice
}

// MemoryOf reads the counters of a cgroup. All are zero where the cgroup is gone, has no memory controller, or is none
// (dir is empty).
func MemoryOf(dir string) Memory {
	if dir == "" {
		return Memory{}
	}
	all := counters(dir, "memory.events")
	own, local := counters(dir, "memory.events.local")["oom"]
	if !local { // before Linux 5.2, where the limits of cgroups below it count as its own; pods make none
		own = all["oom"]
	}
	return Memory{Kills: all["oom_kill"], Own: own}
}

// Since returns what has come to the counters as they were before.
func (m Memory) Since(before Memory) Memory {
	return Memory{Kills: m.Kills - before.Kills, Own: m.Own - before.Own}
}

// counters reads a file with a name and a number in each line. A line of another form is left out.
func counters(dir, file string) map[string]int64 {
	data, err := os.ReadFile(filepath.Join(dir, file))
	if err != nil {
		return nil // a nil map has no counters
	}
	found := map[string]int64{}
	for line := range strings.Lines(string(data)) {
		name, number, _ := strings.Cut(strings.TrimSpace(line), " ")
		if n, err := strconv.ParseInt(number, 10, 64); err == nil {
			found[name] = n
		}
	}
	return found
}
