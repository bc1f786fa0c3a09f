package shim

import (
	"errors"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime/isolate"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime/proc"
)

// child is one started process. It is either the supervisor's own child, which stays a zombie and so keeps its pid from
// being used again until reap, or one that an earlier supervisor started, which is only known by its pidfd and start time.
type child struct {
	*proc.Process

	before isolate.Memory // counters of its cgroup when it was started: an earlier run may have left the cgroup behind
}

// starved says in an exit that the kernel has killed the process for want of memory, where the counters of its cgroup
// say so and nothing contradicts them. limit is the process's own, in bytes; zero: none.
func starved(exit *pod.Exit, counted isolate.Memory, limit int64) {
	if counted.Kills <= 0 || !exit.Unknown && exit.Signal != "SIGKILL" {
		return
	}
	exit.OutOfMemory = true
	if counted.Own > 0 {
		exit.MemoryLimit = limit
	}
}

// status returns how the exited process ended and, for an own child, gives its pid back to the kernel. It must be
// called once.
func (c *child) status(launchable string) pod.Exit {
	exit := pod.Exit{Launchable: launchable, Code: -1, Unknown: true, At: time.Now().UTC()}
	if !c.Own {
		return exit // only a parent is told
	}
	var ws unix.WaitStatus
	_, err := unix.Wait4(c.PID, &ws, 0, nil)
	for errors.Is(err, unix.EINTR) {
		_, err = unix.Wait4(c.PID, &ws, 0, nil)
	}
	if err != nil {
		return exit
	}
	exit.Unknown = false
	if ws.Signaled() {
		exit.Signal = unix.SignalName(ws.Signal())
	} else {
		exit.Code = ws.ExitStatus()
	}
	return exit
}
