package proc

import (
	"errors"
	"os"
	"strconv"
	"unsafe"

	"golang.org/x/sys/unix"
)

// CloseOnExec marks every descriptor from 3 on.
func CloseOnExec() error {
	err := unix.CloseRange(3, ^uint(0), unix.CLOSE_RANGE_CLOEXEC)
	if err == nil || !errors.Is(err, unix.ENOSYS) && !errors.Is(err, unix.EINVAL) {
		return err
	}
	// Before Linux 5.11.
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if fd, err := strconv.Atoi(entry.Name()); err == nil && fd >= 3 {
			unix.CloseOnExec(fd)
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
		_, _, _ = unix.RawSyscall6(unix.SYS_RT_SIGACTION, sig, uintptr(unsafe.Pointer(&standard)), 0, 8, 0, 0)
	}
}
