// Package stub is what the supervisor starts for each process (see package shim): it waits until its pid is recorded on disk
// and then becomes the program.
//
// It does so in its init, although an init that acts is a surprise, because of what it would cost in main. The stub is the
// program that the supervisor is, with all that this imports, and the initialisation of that takes several times as long as
// everything the stub does itself. Go initialises packages by import path among those whose imports are initialised (Go
// specification, "Program initialization"): a package that imports little runs before nearly all others, and a stub never
// comes to the rest. So what is imported here, directly or not, decides what a start costs; a test guards it. Whatever
// imports this package is a stub when its first argument is Arg.
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
	orderFD  = 3 // read end: one order as JSON; closed without one when the supervisor died before recording the pid
	resultFD = 4 // write end: why the program could not be run; closed by the kernel when it runs
)

// Order is what the stub is to become.
type Order struct {
	Command []string `json:"command"`
	Env     []string `json:"env"`
	Dir     string   `json:"dir"`

	Isolation *confine.Confinement `json:"isolation,omitempty"`

	// Guarded: it dies with its parent, whatever user it becomes. Without isolation it keeps the capabilities that its parent has.
	Guarded bool `json:"guarded,omitempty"`
}

func init() {
	if len(os.Args) > 1 && os.Args[1] == Arg {
		become()
	}
}

// become is the life of a stub. It never returns.
func become() {
	parent := os.Getppid()
	// Nothing but 0 to 2 reaches the program, whatever this process inherited.
	if err := confine.CloseOnExec(); err != nil {
		report("close inherited descriptors: %v", err)
	}
	var o Order
	if err := json.NewDecoder(os.NewFile(orderFD, "order")).Decode(&o); err != nil || len(o.Command) == 0 {
		os.Exit(1) // nobody is left to be told
	}
	runtime.LockOSThread() // what is asked of the kernel is a thread's
	confine.ResetLevels()  // while it may still
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
	default:
		err = confine.DropCapabilities()
	}
	if err != nil {
		report("isolate: %v", err)
	}
	if err := os.Chdir(o.Dir); err != nil { // as the user that the program runs as
		report("change to the working directory: %v", err)
	}
	confine.ResetSignals()
	err = syscall.Exec(o.Command[0], o.Command, o.Env)
	complain(complaint{Text: confine.ExecError(o.Command[0], err).Error(), NoProgram: isMissing(o.Command[0], err)})
}

// isMissing reports whether a program could not be executed because there is none. The kernel has the same error for a
// script, or a program, whose interpreter is missing.
func isMissing(path string, err error) bool {
	if !errors.Is(err, syscall.ENOENT) {
		return false
	}
	_, err = os.Stat(path)
	return os.IsNotExist(err)
}

// dieWith asks to be killed with the parent. A change of the effective user has undone what Start asked for (prctl(2)).
// The parent may have been killed meanwhile: it is looked for after the signal is set, so that it cannot end between
// the two.
func dieWith(parent int) error {
	if _, _, err := syscall.RawSyscall(syscall.SYS_PRCTL, syscall.PR_SET_PDEATHSIG, uintptr(syscall.SIGKILL), 0); err != 0 {
		return fmt.Errorf("ask to be killed with the parent: %w", err)
	}
	if os.Getppid() != parent {
		os.Exit(1)
	}
	return nil
}

// complaint says why the program does not run.
type complaint struct {
	Text      string `json:"text"`
	NoProgram bool   `json:"no_program,omitempty"`
}

func report(format string, args ...any) { complain(complaint{Text: fmt.Sprintf(format, args...)}) }

func complain(c complaint) {
	_ = json.NewEncoder(os.NewFile(resultFD, "result")).Encode(c) // nobody else is there to be told
	os.Exit(1)
}
