package shim

import (
	"encoding/json"
	"fmt"
	"os"
	"syscall"

	"github.com/rcfarm/rcfarm/pkg/runtime"
	"github.com/rcfarm/rcfarm/pkg/runtime/isolate"
	"github.com/rcfarm/rcfarm/pkg/runtime/proc"
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
	if err := proc.CloseOnExec(); err != nil {
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
	proc.ResetSignals()
	err := syscall.Exec(o.Command[0], o.Command, o.Env)
	report("exec %s: %v", o.Command[0], err)
}

func report(format string, args ...any) {
	_, _ = fmt.Fprintf(os.NewFile(resultFD, "result"), format, args...)
	os.Exit(1)
}

// detach starts the command in a session of its own and exits, so that it becomes an orphan and nobody has to wait
// for it. Descriptor 3 becomes its output.
func detach(args []string) {
	const output = 3
	if err := proc.CloseOnExec(); err != nil {
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
