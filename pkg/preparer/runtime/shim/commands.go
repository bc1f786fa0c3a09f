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

	mu     sync.Mutex
	beside map[string]*beside // by the id of the process
}

// beside is what runs beside one process. The lock of commands guards it.
type beside struct {
	ending  bool                             // none may begin
	running map[*context.CancelFunc]struct{} // what ends each
}

// of returns what runs beside a process. The caller holds c.mu.
func (c *commands) of(id string) *beside {
	b := c.beside[id]
	if b == nil {
		b = &beside{running: map[*context.CancelFunc]struct{}{}}
		c.beside[id] = b
	}
	return b
}

// begin notes a command, which cancel ends, unless its process is being stopped. What runs the command holds the file that comes back.
func (c *commands) begin(id string, cancel context.CancelFunc) (lock *os.File, over func(), err error) {
	lock, err = lockShared(filepath.Join(c.dir, id))
	if err != nil {
		return nil, nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	b := c.of(id)
	if b.ending {
		_ = lock.Close()
		return nil, nil, runtime.ErrNotRunning
	}
	b.running[&cancel] = struct{}{}
	return lock, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(b.running, &cancel)
	}, nil
}

// end tells all commands beside a process to end, and keeps others from beginning until reopen is called.
func (c *commands) end(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	b := c.of(id)
	b.ending = true
	for cancel := range b.running {
		(*cancel)()
	}
}

func (c *commands) reopen(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.of(id).ending = false
}

// forget drops what is known about a process that is no more. A file that a command still holds stays.
func (c *commands) forget(id string) {
	c.end(id)
	if free, err := c.free(id); err == nil && free {
		_ = os.Remove(filepath.Join(c.dir, id)) // it is empty, and may be made again
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.beside, id)
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
