package shim

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"

	"github.com/rcfarm/rcfarm/pkg/preparer/runtime/confine"
)

// Spawn starts a supervisor that outlives the caller, with its output in supervisor.log in dir. exe must import package
// stub. The supervisor's working directory is "/", so paths in args must be absolute. Spawn returns when the process
// exists, perhaps before it serves. A second supervisor in the same directory does no harm, because it ends with
// ErrRunning.
func Spawn(exe string, args []string, dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("make supervisor directory: %w", err)
	}
	log, err := os.OpenFile(filepath.Join(dir, logName), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("open supervisor log: %w", err)
	}
	defer func() { _ = log.Close() }()
	if err := confine.CloseOnExec(); err != nil { // the supervisor must not inherit this process's descriptors
		return fmt.Errorf("close inherited descriptors: %w", err)
	}
	cmd := exec.Command(exe, args...) //nolint:noctx // it outlives this process
	cmd.Dir, cmd.Stdout, cmd.Stderr = "/", log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start a supervisor: %w", err)
	}
	go func() { _ = cmd.Wait() }() // reaps the supervisor if it ends before its parent
	return nil
}
