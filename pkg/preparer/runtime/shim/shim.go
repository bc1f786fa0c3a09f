// Package shim is the built-in runtime. It has one small supervisor process for each node. The supervisor keeps the
// processes of pods running, and outlives the preparer.
//
// The preparer has a Client. The supervisor runs Serve. For each start of a program, the supervisor starts a stub,
// which waits until its pid is recorded on the disk, and then becomes the program. So the supervisor can be killed at
// any instant (R12): the disk has a record of every process that runs, and the next supervisor finds them all. Programs
// write directly to their log files, and continue to run without a supervisor.
//
// # Containers
//
// A process with a Container is the first process of a container, which runc makes. runc does not stay: the process is
// a child of the supervisor, as others are. A start has these steps:
//
//  1. The record gets the container's id. From now on, the next supervisor knows that a container may be half made.
//  2. The container's directory is made anew. A thread mounts the layers in a mount namespace of its own and starts a
//     stub there, which is moved to a cgroup beside the container's. Then it becomes runc create.
//  3. The record gets the pid of the container's first process. The container's cgroup gets its limits.
//  4. runc start lets the process become its program.
//
// A supervisor that finds a container which was not started kills it by its cgroups, removes it and makes another. One
// that runs is taken over. A stop needs no runc: the signal goes to the first process, the kill to the cgroup. What is
// left of a container is removed after the stop is confirmed. If that fails, the next start or removal does it.
//
// A service manager that stops the preparer must not kill the supervisor. Under systemd, the unit has KillMode=process
// for this reason.
package shim

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rcfarm/rcfarm/pkg/internal/listen"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime/runc"
)

// Errors that a caller can test for, besides the errors of package runtime.
var (
	// ErrRunning is returned by Serve if another supervisor runs in the directory.
	ErrRunning = errors.New("a supervisor is already running in this directory")
	// ErrUnreachable is returned by a Client that could neither reach nor start a supervisor.
	ErrUnreachable = errors.New("no supervisor answers")

	errLeaving = errors.New("the supervisor is shutting down")
)

const (
	lockName   = "lock"
	socketName = "shim.sock"
	stateName  = "state"
	logName    = "supervisor.log"

	commandsName = "commands"
)

// Config is what Serve needs. Zero values mean the defaults in withDefaults.
type Config struct {
	Dir string // for lock, socket and state; absolute, and short: Dir/shim.sock has at most 107 bytes

	RestartDelay    time.Duration // pause before a restart after one short run; it doubles with each further short run
	MaxRestartDelay time.Duration // longest such pause
	StableAfter     time.Duration // a run of this length is not short, and resets the pause
	LogCheck        time.Duration // between two checks of the sizes of all log files

	Runc      string // program that makes containers; looked for on PATH
	RuncState string // directory of its state, below /run, so that a boot empties it; see defaultRuncState

	// Step, if it is not nil, is called before each step of the start and the removal of a container. It is for tests.
	Step func(name string)

	// KillAll, when it is closed, makes Serve kill every process at once and return. It is for development, because
	// there no process may outlive the terminal. The records stay, so a later Serve starts the processes again.
	KillAll <-chan struct{}

	Log func(msg string, fields map[string]any) // nil: nothing is logged
}

func (c Config) withDefaults() Config {
	c.RestartDelay = cmp.Or(c.RestartDelay, 100*time.Millisecond)
	c.MaxRestartDelay = cmp.Or(c.MaxRestartDelay, 30*time.Second)
	c.StableAfter = cmp.Or(c.StableAfter, 10*time.Second)
	c.LogCheck = cmp.Or(c.LogCheck, time.Second)
	c.Runc = cmp.Or(c.Runc, runc.DefaultProgram)
	c.RuncState = cmp.Or(c.RuncState, defaultRuncState(c.Dir))
	if c.Step == nil {
		c.Step = func(string) {}
	}
	if c.Log == nil {
		c.Log = func(string, map[string]any) {}
	}
	return c
}

// defaultRuncState is the same for each supervisor in a directory, and differs between the nodes of one machine.
func defaultRuncState(dir string) string {
	sum := sha256.Sum256([]byte(dir))
	return "/run/rcfarm-" + hex.EncodeToString(sum[:8])
}

// Serve is the supervisor. When the context ends, it returns nil, and leaves every process running for the next
// supervisor. It must run in a process of its own, because it makes this process a child subreaper and reaps orphans.
// If a supervisor runs in the directory already, it returns ErrRunning.
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
	defer func() { err = errors.Join(err, lock.Close()) }() // last, because the next supervisor can start then
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
