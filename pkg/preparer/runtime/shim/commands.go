package shim

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rcfarm/rcfarm/pkg/preparer/runtime"
	"github.com/rcfarm/rcfarm/pkg/wait"
)

// commandsWait is how long a stop waits for the end of commands. After that, the stop fails.
const commandsWait = 10 * time.Second

// commands manages the commands that run beside processes. The directory has a file for each such process. The guard of
// a command holds a shared lock on it until no process of the command is left, even if the preparer is killed.
type commands struct {
	dir string

	mu    sync.Mutex
	ended map[string]chan struct{} // by id of the process; closed while the process is being stopped
}

// When the channel is closed, the commands beside the process must end.
func (c *commands) end(id string) chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended[id] == nil {
		c.ended[id] = make(chan struct{})
	}
	return c.ended[id]
}

// begin returns the locked file for the guard of a command, or runtime.ErrNotRunning. The command must end when ended
// is closed. A stop of the process first closes the channel and then checks the lock. So no command begins unnoticed.
func (c *commands) begin(id string) (lock *os.File, ended <-chan struct{}, err error) {
	lock, err = lockShared(filepath.Join(c.dir, id))
	if err != nil {
		return nil, nil, err
	}
	ended = c.end(id)
	if closed(ended) {
		_ = lock.Close()
		return nil, nil, runtime.ErrNotRunning
	}
	return lock, ended, nil
}

// stop ends all commands beside a process, and allows no new commands until reopen is called.
func (c *commands) stop(id string) {
	ended := c.end(id)
	c.mu.Lock()
	defer c.mu.Unlock()
	if !closed(ended) {
		close(ended)
	}
}

func (c *commands) reopen(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if ended := c.ended[id]; ended != nil && closed(ended) {
		delete(c.ended, id)
	}
}

// The file stays if a command still holds the lock.
func (c *commands) forget(id string) {
	c.stop(id)
	c.reopen(id)
	if free, err := c.free(id); err == nil && free {
		_ = os.Remove(filepath.Join(c.dir, id)) // on an error, the empty file stays
	}
}

// free reports whether no process of a command beside this process is left.
func (c *commands) free(id string) (bool, error) {
	f, err := os.OpenFile(filepath.Join(c.dir, id), os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return true, nil // no command ever ran beside the process
	}
	if err == nil {
		defer func() { _ = f.Close() }()
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	}
	if err != nil && !errors.Is(err, unix.EWOULDBLOCK) {
		return false, fmt.Errorf("find out whether commands run beside %s: %w", id, err)
	}
	return err == nil, nil
}

func (c *commands) await(ctx context.Context, id string) error {
	const firstLook, lastLook = 2 * time.Millisecond, 200 * time.Millisecond
	deadline := time.Now().Add(commandsWait)
	for look := firstLook; ; look = min(2*look, lastLook) {
		free, err := c.free(id)
		switch {
		case free || err != nil:
			return err
		case time.Now().After(deadline):
			return fmt.Errorf("a command that was run beside %s: %w after %s", id, runtime.ErrSurvived, commandsWait)
		}
		if err := wait.Pause(ctx, look); err != nil {
			return err
		}
	}
}

func lockShared(path string) (*os.File, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, fmt.Errorf("note that a command runs: %w", err)
	}
	for {
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			return nil, fmt.Errorf("note that a command runs: %w", err)
		}
		err = unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB)
		if err == nil && sameFile(f, path) {
			return f, nil
		}
		_ = f.Close()
		switch {
		case errors.Is(err, unix.EWOULDBLOCK):
			return nil, runtime.ErrNotRunning
		case err != nil:
			return nil, fmt.Errorf("note that a command runs: %w", err)
		}
	}
}

// sameFile reports whether path still names the open file.
func sameFile(f *os.File, path string) bool {
	now, err := os.Lstat(path)
	if err != nil {
		return false
	}
	info, err := f.Stat()
	return err == nil && os.SameFile(now, info)
}
