package confine

import (
	"os"
	"strconv"
	"syscall"
	"unsafe"
)

// What package syscall lacks; the same on all architectures (close_range(2)).
const (
	sysCloseRange     = 436
	closeRangeCloexec = 4
)

// CloseOnExec marks every descriptor from 3 on.
func CloseOnExec() error {
	_, _, no := syscall.RawSyscall(sysCloseRange, 3, ^uintptr(0), closeRangeCloexec)
	if no == 0 {
		return nil
	}
	if no != syscall.ENOSYS && no != syscall.EINVAL {
		return no
	}
	// Before Linux 5.11.
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if fd, err := strconv.Atoi(entry.Name()); err == nil && fd >= 3 {
			syscall.CloseOnExec(fd)
		}
	}
	return nil
}

// lastSignal is the highest signal number of Linux.
const lastSignal = 64

// ResetSignals undoes what exec would otherwise hand on from whoever started the caller, such as nohup: a handled
// signal is reset to its default by exec, an ignored one stays ignored (signal(7)). It reaches the two signals below
// SIGRTMIN that os/signal leaves alone, and that a make built on posix_spawn is known to leave ignored.
func ResetSignals() {
	var standard [4]uint64 // the kernel's sigaction, all zero: SIG_DFL, no flags, an empty mask
	for sig := uintptr(1); sig <= lastSignal; sig++ {
		// SIGKILL and SIGSTOP refuse, and are never ignored.
		_, _, _ = syscall.RawSyscall6(syscall.SYS_RT_SIGACTION, sig, uintptr(unsafe.Pointer(&standard)), 0, 8, 0, 0)
	}
}
