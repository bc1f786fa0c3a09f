// Package shim is the built-in runtime: one small supervisor process per node that keeps the processes of pods
// running and outlives the preparer.
//
// Three kinds of process are involved, all of the same binary. The preparer holds a Client. The supervisor runs Serve.
// For each start the supervisor makes a stub, see package stub: it waits until its pid is recorded on disk and then
// becomes the real program. So the supervisor may be killed at any instant (R12): its successor finds every process
// that runs, and there is none that is not recorded. Programs write straight into their log files, and nothing that
// they need passes through the supervisor.
//
// A service manager that starts the preparer must not kill the supervisor along with it: under systemd the unit says
// KillMode=process.
package shim

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rcfarm/rcfarm/pkg/internal/listen"
)

// Errors that a caller may test for, besides those of package runtime.
var (
	// ErrRunning is returned by Serve when another supervisor works in the directory.
	ErrRunning = errors.New("a supervisor is already running in this directory")
	// ErrUnreachable is returned by a Client that could neither reach nor start a supervisor.
	ErrUnreachable = errors.New("no supervisor answers")

	errLeaving = errors.New("the supervisor is shutting down")
)

// Names inside of Config.Dir.
const (
	lockName   = "lock"
	socketName = "shim.sock"
	stateName  = "state"
	logName    = "supervisor.log"

	commandsName = "commands"
)

// Config is what Serve needs. Zero values mean the defaults that withDefaults has.
type Config struct {
	Dir string // lock, socket and state; absolute, so short that Dir/shim.sock has at most 107 bytes

	RestartDelay    time.Duration // between the end of a process and its first restart; doubles with each short run
	MaxRestartDelay time.Duration // bound of that doubling
	StableAfter     time.Duration // a run of this length makes the delay start over
	LogCheck        time.Duration // between two looks at the sizes of all log files

	// KillAll, when it closes, makes Serve kill every process at once and return. It serves development, where
	// nothing is to outlive the terminal; records stay, so a later Serve in the same directory starts them again.
	KillAll <-chan struct{}

	Log func(msg string, fields map[string]any) // nil: nothing is logged
}

func (c Config) withDefaults() Config {
	c.RestartDelay = cmp.Or(c.RestartDelay, 100*time.Millisecond)
	c.MaxRestartDelay = cmp.Or(c.MaxRestartDelay, 30*time.Second)
	c.StableAfter = cmp.Or(c.StableAfter, 10*time.Second)
	c.LogCheck = cmp.Or(c.LogCheck, time.Second)
	if c.Log == nil {
		c.Log = func(string, map[string]any) {}
	}
	return c
}

// Serve is the supervisor. It takes over what an earlier supervisor left running, serves clients until the context
// ends, and returns nil with every process still running for the next supervisor to take over. It needs a process of
// its own: it becomes a child subreaper and reaps orphans. It returns ErrRunning if the directory has a supervisor.
func Serve(ctx context.Context, cfg Config) (err error) {
	cfg = cfg.withDefaults()
	path, err := socketPath(cfg.Dir)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Join(cfg.Dir, stateName), 0o700); err != nil {
		return fmt.Errorf("make supervisor directory: %w", err)
	}
	lock, err := takeLock(filepath.Join(cfg.Dir, lockName))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lock.Close()) }() // last: the successor must find nobody at work
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("become a child subreaper: %w", err)
	}
	s, err := newSupervisor(cfg)
	if err != nil {
		return err
	}
	defer s.close()
	listener, err := listen.Socket(path)
	if err != nil {
		return fmt.Errorf("listen for clients: %w", err)
	}
	return s.run(ctx, listener)
}

func takeLock(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open supervisor lock: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("lock %s: %w", path, ErrRunning)
		}
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return f, nil
}

// socketPath returns where the supervisor of the directory listens.
func socketPath(dir string) (string, error) {
	path := filepath.Join(dir, socketName)
	if !filepath.IsAbs(path) {
		return "", fmt.Errorf("supervisor directory %q: not valid; allowed: an absolute path", dir)
	}
	if err := listen.CheckSocket(path); err != nil {
		return "", fmt.Errorf("supervisor %w", err)
	}
	return path, nil
}
