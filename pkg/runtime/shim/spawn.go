package shim

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/rcfarm/rcfarm/pkg/runtime/stub"
)

// spawnTimeout bounds how long starting a detached process may take on a loaded machine.
const spawnTimeout = 10 * time.Second

// Spawn starts a supervisor that outlives the caller: in a session of its own, a child of nobody, its output appended
// to supervisor.log in dir. exe must import package stub. The supervisor's working directory is "/", so paths
// in args must be absolute. Spawn returns when the process exists, not when it serves; starting one too many is
// harmless, because it ends with ErrRunning.
func Spawn(exe string, args []string, dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("make supervisor directory: %w", err)
	}
	log, err := os.OpenFile(filepath.Join(dir, logName), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("open supervisor log: %w", err)
	}
	defer func() { _ = log.Close() }()
	ctx, cancel := context.WithTimeout(context.Background(), spawnTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, exe, append([]string{stub.Arg, stub.DetachArg, exe}, args...)...)
	cmd.ExtraFiles = []*os.File{log}
	var stderr strings.Builder
	cmd.Stderr = &stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("start a supervisor: %w: %s", err, strings.TrimSpace(stderr.String()))
	}
	return nil
}
