package confine

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"unsafe"
)

// Constants that package syscall lacks (close_range(2)).
const (
	sysCloseRange     = 436
	closeRangeCloexec = 4
)

// CloseOnExec marks all descriptors except 0 to 2 as close-on-exec.
func CloseOnExec() error {
	_, _, no := syscall.RawSyscall(sysCloseRange, 3, ^uintptr(0), closeRangeCloexec)
	if no == 0 {
		return nil
	}
	if no != syscall.ENOSYS && no != syscall.EINVAL {
		return no
	}
	// The kernel is older than Linux 5.11.
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

const lastSignal = 64

// ResetSignals resets all signals to their defaults. exec leaves ignored signals ignored (signal(7)), for example after
// nohup. Some builds of make leave the two signals below SIGRTMIN ignored, which os/signal does not touch.
func ResetSignals() {
	var standard [4]uint64 // the kernel's sigaction, all zero: SIG_DFL, no flags, an empty mask
	for sig := uintptr(1); sig <= lastSignal; sig++ {
		// SIGKILL and SIGSTOP cannot be changed, and are never ignored.
		_, _, _ = syscall.RawSyscall6(syscall.SYS_RT_SIGACTION, sig, uintptr(unsafe.Pointer(&standard)), 0, 8, 0, 0)
	}
}

// maxShebang is how much of a script's first line the kernel reads, in bytes (execve(2)).
const maxShebang = 256

// ExecError describes why a program could not be executed. If the interpreter of a script is missing, the kernel
// reports that the script is missing.
func ExecError(path string, err error) error {
	first, interpreter := firstLine(path)
	switch {
	case errors.Is(err, syscall.ENOEXEC) && first != "":
		return fmt.Errorf("exec %s: %w: it is neither a program for this machine nor a script with a #! line", path,
			err)
	case interpreter == "" || !errors.Is(err, syscall.ENOENT) && !errors.Is(err, syscall.EACCES):
		return fmt.Errorf("exec %s: %w", path, err)
	}
	if info, statErr := os.Stat(interpreter); statErr == nil && (info.IsDir() || info.Mode().Perm()&0o111 == 0) {
		return fmt.Errorf("exec %s: its #! line names %q, which is not a program: %w", path, interpreter, err)
	} else if statErr == nil {
		return fmt.Errorf("exec %s: %w", path, err)
	}
	return fmt.Errorf("exec %s: its #! line names %q, which is not on this node: %w", path, interpreter, err)
}

func firstLine(path string) (first, interpreter string) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return "", ""
	}
	defer func() { _ = f.Close() }()
	buf := make([]byte, maxShebang)
	n, _ := f.Read(buf)
	line, _, _ := strings.Cut(string(buf[:n]), "\n")
	rest, script := strings.CutPrefix(line, "#!")
	if !script {
		return string(buf[:n]), ""
	}
	interpreter, _, _ = strings.Cut(strings.TrimLeft(rest, " \t"), " ")
	return line, interpreter
}
