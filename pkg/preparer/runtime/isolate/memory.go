package isolate

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Memory counts what the kernel has done, since the cgroup was made, because its memory ran out (cgroup-v2,
// memory.events).
type Memory struct {
	Kills int64 // processes killed in the cgroup and below it, because of any limit
	Own   int64 // how often the cgroup's own limit was the reason
}

// MemoryOf reads the counters of a cgroup. Without a cgroup or a memory controller they are zero.
func MemoryOf(dir string) Memory {
	if dir == "" {
		return Memory{}
	}
	all := counters(dir, "memory.events")
	own, local := counters(dir, "memory.events.local")["oom"]
	// Before Linux 5.2 there is only the sum with the cgroups below. Pods have no cgroups below.
	if !local {
		own = all["oom"]
	}
	return Memory{Kills: all["oom_kill"], Own: own}
}

// Since returns by how much the counters have grown.
func (m Memory) Since(before Memory) Memory {
	return Memory{Kills: m.Kills - before.Kills, Own: m.Own - before.Own}
}

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
