package shim

import (
	"errors"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime/isolate"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime/proc"
)

// child is one started process. If this supervisor started it, it stays a zombie until status reaps it, so its pid is
// not used again. If an earlier supervisor started it, only its pidfd and start time identify it.
type child struct {
	*proc.Process

	before isolate.Memory // counters of the cgroup at the start; not zero if an earlier run has left the cgroup behind
}

// starved sets exit.OutOfMemory if the kernel killed the process because memory ran out, according to the counters of
// its cgroup. limit is the memory limit in bytes; zero: none.
func starved(exit *pod.Exit, counted isolate.Memory, limit int64) {
	if counted.Kills <= 0 || !exit.Unknown && exit.Signal != "SIGKILL" {
		return
	}
	exit.OutOfMemory = true
	if counted.Own > 0 {
		exit.MemoryLimit = limit
	}
}

// Call status once, after the end of the process, because it reaps the process.
func (c *child) status(launchable string) pod.Exit {
	exit := pod.Exit{Launchable: launchable, Code: -1, Unknown: true, At: time.Now().UTC()}
	if !c.Own {
		return exit // only the parent gets the exit status
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
