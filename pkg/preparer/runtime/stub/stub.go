// Package stub is the process that the supervisor starts for each program (see package shim). The stub waits until its
// pid is recorded on the disk, and then becomes the program.
//
// A stub is the same binary as the supervisor. It runs in this package's init function, because the initialisation of
// all packages takes several times as long as its own work. Go initialises packages in the order of imports and import
// paths (Go specification, "Program initialization"). So a package with few imports comes before nearly all others,
// which a stub never initialises. A test guards the imports. A binary that imports this package runs as a stub if its
// first argument is Arg.
package stub

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime"
	"syscall"

	"github.com/rcfarm/rcfarm/pkg/preparer/runtime/confine"
)

// Arg is the first argument of a stub.
const Arg = "shim-exec"

// Descriptors that a stub inherits besides 0 to 2.
const (
	orderFD  = 3 // read end: one order as JSON; no order if the supervisor died before it recorded the pid
	resultFD = 4 // write end: why the program could not be run; closed by the kernel when it runs
)

// Order describes the program that the stub must become.
type Order struct {
	Command []string `json:"command"`
	Env     []string `json:"env"`
	Dir     string   `json:"dir"`

	Isolation *confine.Confinement `json:"isolation,omitempty"`

	// Guarded: the program is killed when its parent ends, even if it has another user. Without isolation, it keeps its
	// parent's capabilities.
	Guarded bool `json:"guarded,omitempty"`
	// Privileged: without isolation, the program keeps its parent's capabilities, because it makes containers.
	Privileged bool `json:"privileged,omitempty"`
}

func init() {
	if len(os.Args) > 1 && os.Args[1] == Arg {
		become()
	}
}

// become never returns.
func become() {
	parent := os.Getppid()
	// The program gets only descriptors 0 to 2, even if this process has inherited others.
	if err := confine.CloseOnExec(); err != nil {
		report("close inherited descriptors: %v", err)
	}
	var o Order
	if err := json.NewDecoder(os.NewFile(orderFD, "order")).Decode(&o); err != nil || len(o.Command) == 0 {
		os.Exit(1) // no process is left to report to
	}
	runtime.LockOSThread() // the settings below belong to a thread
	confine.ResetLevels()  // while this process still has the capabilities
	var tie func() error
	if o.Guarded {
		tie = func() error { return dieWith(parent) }
	}
	var err error
	switch {
	case o.Isolation != nil:
		err = confine.Apply(o.Isolation, tie)
	case o.Guarded:
		err = tie()
	case !o.Privileged:
		err = confine.DropCapabilities()
	}
	if err != nil {
		report("isolate: %v", err)
	}
	if err := os.Chdir(o.Dir); err != nil { // as the program's user
		report("change to the working directory: %v", err)
	}
	confine.ResetSignals()
	err = syscall.Exec(o.Command[0], o.Command, o.Env)
	complain(complaint{Text: confine.ExecError(o.Command[0], err).Error(), NoProgram: isMissing(o.Command[0], err)})
}

// The kernel returns the same error if an interpreter is missing.
func isMissing(path string, err error) bool {
	if !errors.Is(err, syscall.ENOENT) {
		return false
	}
	_, err = os.Stat(path)
	return os.IsNotExist(err)
}

// Start has asked for the same death signal, but the change of the effective user has cancelled it (prctl(2)). The
// parent can have ended before the new request.
func dieWith(parent int) error {
	if _, _, err := syscall.RawSyscall(syscall.SYS_PRCTL, syscall.PR_SET_PDEATHSIG, uintptr(syscall.SIGKILL),
		0); err != 0 {
		return fmt.Errorf("ask to be killed with the parent: %w", err)
	}
	if os.Getppid() != parent {
		os.Exit(1)
	}
	return nil
}

type complaint struct {
	Text      string `json:"text"`
	NoProgram bool   `json:"no_program,omitempty"`
}

func report(format string, args ...any) { complain(complaint{Text: fmt.Sprintf(format, args...)}) }

func complain(c complaint) {
	_ = json.NewEncoder(os.NewFile(resultFD, "result")).Encode(c) // no process is left to report an error to
	os.Exit(1)
}
