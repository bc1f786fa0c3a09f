package isolate

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/rcfarm/rcfarm/pkg/preparer/runtime/confine"
)

// Levels returns the levels that confine.ResetLevels cannot set on this node, with one sentence for each level.
func Levels() (without []string) {
	text, err := os.ReadFile("/proc/self/oom_score_adj")
	score, convErr := strconv.Atoi(strings.TrimSpace(string(text)))
	if err == nil && convErr == nil {
		without = append(without,
			lacks("oom_score_adj", score, confine.OOMScoreAdj, unix.CAP_SYS_RESOURCE, "CAP_SYS_RESOURCE")...)
	}
	const highest = 20 // the system call returns 20 minus the nice value
	if prio, err := unix.Getpriority(unix.PRIO_PROCESS, 0); err == nil {
		without = append(without, lacks("nice", highest-prio, confine.Nice, unix.CAP_SYS_NICE, "CAP_SYS_NICE")...)
	}
	return without
}

// A level can be raised without a capability.
func lacks(what string, has, wanted, capability int, name string) []string {
	if may, err := capable(capability); has <= wanted || err == nil && may {
		return nil
	}
	return []string{fmt.Sprintf("%s: pods have %d, as the preparer, and not %d: it lacks %s", what, has, wanted, name)}
}
