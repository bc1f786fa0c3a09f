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

// commandsWait bounds how long a stop waits for commands that were told to end, before it says so and fails.
const commandsWait = 10 * time.Second

// commands are those that run beside processes. The directory has a file for each process that a command was run beside. Whatever runs
// such a command holds a shared lock on it until nothing of the command is left. The kernel keeps that: a preparer that was killed cannot
// forget what it had started.
type commands struct {
	dir string

	mu    sync.Mutex
	ended map[string]chan struct{} // by the id of the process; closed once it is being stopped
}

// end returns what tells the commands beside a process to end.
func (c *commands) end(id string) chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended[id] == nil {
		c.ended[id] = make(chan struct{})
	}
	return c.ended[id]
}

// begin returns a file for whatever runs a command to hold, unless the process is being stopped. The command must end when the channel is
// closed: whoever stops the process closes that first, and looks at the file last.
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

// stop tells all commands beside a process to end, and keeps others from beginning until reopen is called.
func (c *commands) stop(id string) {
	ended := c.end(id)
	c.mu.Lock()
	defer c.mu.Unlock()
	if !closed(ended) {
		close(ended)
	}
}

// reopen lets commands run beside a process.
func (c *commands) reopen(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if ended := c.ended[id]; ended != nil && closed(ended) {
		delete(c.ended, id)
	}
}

// forget ends commands beside a process that is no more. A file that one still holds stays.
func (c *commands) forget(id string) {
	c.stop(id)
	c.reopen(id)
	if free, err := c.free(id); err == nil && free {
		_ = os.Remove(filepath.Join(c.dir, id)) // it is empty, and may be made again
	}
}

// free reports whether nothing of any command beside a process is left.
func (c *commands) free(id string) (bool, error) {
	f, err := os.OpenFile(filepath.Join(c.dir, id), os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return true, nil // there never was one
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

// await returns nil when nothing of any command beside a process is left.
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

// lockShared takes the shared lock on a file that a command is to hold.
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

// sameFile reports whether an open file still has its name.
func sameFile(f *os.File, path string) bool {
	now, err := os.Lstat(path)
	if err != nil {
		return false
	}
	info, err := f.Stat()
	return err == nil && os.SameFile(now, info)
}
