package confine

import (
	"os"
	"strconv"
	"syscall"
)

// What every process of a pod begins with, whatever the preparer has: a preparer that the kernel is told to spare
// (OOMScoreAdjust=-1000) must not have its pods spared with it.
const (
	OOMScoreAdj = 0 // proc_pid_oom_score_adj(5)
	Nice        = 0 // setpriority(2)
)

// ResetLevels gives the calling process those. Whoever lacks CAP_SYS_RESOURCE or CAP_SYS_NICE may not go down to them,
// and keeps what it has: isolate.Levels says so. The calling goroutine must be locked to its thread.
func ResetLevels() {
	_ = os.WriteFile("/proc/self/oom_score_adj", []byte(strconv.Itoa(OOMScoreAdj)), 0)
	_ = syscall.Setpriority(syscall.PRIO_PROCESS, 0, Nice)
}
