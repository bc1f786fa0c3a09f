package shim

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/rcfarm/rcfarm/pkg/runtime"
	"github.com/rcfarm/rcfarm/pkg/runtime/isolate"
)

// StubArg is the first argument of a process that is to call ExecStub before anything else.
const StubArg = "shim-exec"

// detachArg, behind StubArg, asks the stub to start a supervisor and go away (Spawn).
const detachArg = "detach"

// Descriptors that a stub inherits besides 0 to 2.
const (
	orderFD  = 3 // read end: one order as JSON; closed without one when the supervisor died before recording the pid
	resultFD = 4 // write end: why the program could not be run; closed by the kernel when it runs
)

// order is what the stub is to become.
type order struct {
	Command []string `json:"command"`
	Env     []string `json:"env"`
	Dir     string   `json:"dir"`

	Isolation *runtime.Isolation `json:"isolation,omitempty"`
}

// ExecStub is the whole life of a stub. A binary that runs Serve or calls Spawn calls it first thing in main when
// os.Args[1] is StubArg. It never returns.
func ExecStub() {
	if len(os.Args) > 3 && os.Args[2] == detachArg {
		detach(os.Args[3:])
	}
	// Nothing but 0 to 2 reaches the program, whatever this process inherited.
	if err := closeOnExec(); err != nil {
		report("close inherited descriptors: %v", err)
	}
	var o order
	if err := json.NewDecoder(os.NewFile(orderFD, "order")).Decode(&o); err != nil || len(o.Command) == 0 {
		os.Exit(1) // nobody is left to be told
	}
	if o.Isolation != nil {
		if err := isolate.Apply(o.Isolation); err != nil {
			report("isolate: %v", err)
		}
	}
	if err := os.Chdir(o.Dir); err != nil { // as the user that the program runs as
		report("change to the working directory: %v", err)
	}
	resetIgnored()
	err := syscall.Exec(o.Command[0], o.Command, o.Env)
	report("exec %s: %v", o.Command[0], err)
}

func report(format string, args ...any) {
	_, _ = fmt.Fprintf(os.NewFile(resultFD, "result"), format, args...)
	os.Exit(1)
}

// closeOnExec marks every descriptor from 3 on.
func closeOnExec() error {
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

// resetIgnored undoes what exec would otherwise hand on from whoever started the supervisor, such as nohup: a handled
// signal is reset to its default by exec, an ignored one stays ignored (signal(7)). It reaches the two signals below
// SIGRTMIN that os/signal leaves alone, and that a make built on posix_spawn is known to leave ignored.
func resetIgnored() {
	var standard [4]uint64 // the kernel's sigaction, all zero: SIG_DFL, no flags, an empty mask
	for sig := uintptr(1); sig <= lastSignal; sig++ {
		// SIGKILL and SIGSTOP refuse, and are never ignored.
		_, _, _ = unix.RawSyscall6(unix.SYS_RT_SIGACTION, sig, uintptr(unsafe.Pointer(&standard)), 0, 8, 0, 0)
	}
}

// detach starts the command in a session of its own and exits, so that it becomes an orphan and nobody has to wait
// for it. Descriptor 3 becomes its output.
func detach(args []string) {
	const output = 3
	if err := closeOnExec(); err != nil {
		fmt.Fprintf(os.Stderr, "close inherited descriptors: %v", err)
		os.Exit(1)
	}
	_, err := syscall.ForkExec(args[0], args, &syscall.ProcAttr{
		Dir: "/", Env: os.Environ(), Files: []uintptr{0, output, output}, Sys: &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		fmt.Fprintf(os.Stderr, "start %s: %v", args[0], err)
		os.Exit(1)
	}
	os.Exit(0)
}
