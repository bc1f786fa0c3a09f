package confine

import (
	"os"
	"strconv"
	"syscall"
)

// Every process of a pod begins with these levels. If the kernel must not kill the preparer (OOMScoreAdjust=-1000),
// pods must not inherit that.
const (
	OOMScoreAdj = 0 // proc_pid_oom_score_adj(5)
	Nice        = 0 // setpriority(2)
)

// ResetLevels sets the levels of the calling process. The calling goroutine must be locked to its thread. Without
// CAP_SYS_RESOURCE or CAP_SYS_NICE, the process keeps a higher level.
func ResetLevels() {
	_ = os.WriteFile("/proc/self/oom_score_adj", []byte(strconv.Itoa(OOMScoreAdj)), 0)
	_ = syscall.Setpriority(syscall.PRIO_PROCESS, 0, Nice)
}
